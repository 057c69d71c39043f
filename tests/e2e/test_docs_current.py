"""The documentation says what the tool says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_the_page_of_commands_is_current() -> None:
    spec = importlib.util.spec_from_file_location("docs_generate", PROJECT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.PAGE.read_text() == generate.page(), "run `doit docs`"


def test_every_link_of_the_readme_and_the_docs_leads_somewhere() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_command_that_the_readme_shows_exists() -> None:
    from click import Context, Group

    from aj.client.main import aj

    shown = re.findall(r"^aj ((?:[a-z]+ ?)+)", (PROJECT / "README.md").read_text(), re.MULTILINE)
    assert shown
    for words in shown:
        command: object = aj
        for word in words.split():
            if not isinstance(command, Group):
                break
            command = command.get_command(Context(command), word)
            assert command is not None, f"`aj {words}` does not exist"
