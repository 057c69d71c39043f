"""`python docs/generate.py`: writes docs/commands.md from the command line's own help texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

PAGE = Path(__file__).parent / "commands.md"


def page() -> str:
    """The page: one section a command, its help as `--help` prints it."""
    from aj.client.main import aj

    sections = [
        f"## {path}\n\n```text\n{text.rstrip()}\n```\n"
        for path, text in _helps(aj, click.Context(aj, info_name="aj", **aj.context_settings))
    ]
    return "# Commands\n\nWritten by `doit docs` from the help texts.\n\n" + "\n".join(sections)


def _helps(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    context.max_content_width = context.terminal_width = 100
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            assert member is not None
            yield from _helps(member, click.Context(member, parent=context, info_name=name, **member.context_settings))


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stderr.write(f"wrote {PAGE}\n")
