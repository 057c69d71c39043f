"""The frame around every command: help, usage errors, the one error boundary, JSON mode, broken pipes, colours."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aj import __version__

Here = Callable[..., Any]
COMMANDS = (
    "run plan job queue list template code render snapshot init config schema doctor daemon cache completion".split()  # noqa: SIM905
)


def test_help_names_every_command_and_exits_0(here: Here) -> None:
    ran = here("--help")
    assert ran.code == 0
    assert ran.err == ""
    for command in COMMANDS:
        assert f"\n  {command} " in ran.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(here: Here, command: str) -> None:
    ran = here(command, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: aj {command} ")


def test_help_imports_nothing_heavy(project: Any) -> None:
    for words in (("--help",), ("run", "--help"), ("--version",)):
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "aj", *words],
            env=project.env,
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in ran.stderr.splitlines()}
        assert not loaded & {
            "yaml",
            "jsonschema",
            "rich",
            "http",
            "asyncio",
            "jinja2",
            "doit",
            "starlette",
            "subprocess",
        }


def test_template_show_imports_neither_validator_nor_renderer(project: Any) -> None:
    project.template()
    words = [sys.executable, "-X", "importtime", "-m", "aj", "template", "show", "local"]
    ran = subprocess.run(words, cwd=project.folder, env=project.env, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in ran.stderr.splitlines()}
    assert not loaded & {"jsonschema", "rich", "http", "asyncio", "jinja2", "doit", "starlette", "azure", "kubernetes"}


def test_run_help_shows_examples_sections_and_exit_codes(here: Here) -> None:
    text = here("run", "--help").out
    for part in ("Examples:", "aj run -t local python train.py", "Shape:", "Exit codes:", "130 interrupted"):
        assert part in text


def test_version(here: Here) -> None:
    assert here("--version").out == f"aj {__version__}\n"
    assert here("--json", "--version").document() == {"kind": "version", "version": __version__}


@pytest.mark.parametrize(
    ("words", "unknown", "meant"),
    [
        (("run", "-t", "x", "--dry", "python"), "--dry", "--dry-run"),
        (("plan", "--chek", "python"), "--chek", "--check"),
        (("daemon", "stop", "--forc"), "--forc", "--force"),
        (("code", "stats", "--list"), "--list", "--list-all"),
        (("queue", "wait", "x", "--time", "3"), "--time", "--timeout"),
        (("--versio",), "--versio", "--version"),
    ],
)
def test_S03_options_are_not_abbreviated(here: Here, words: tuple[str, ...], unknown: str, meant: str) -> None:
    ran = here(*words)
    assert ran.code == 2
    assert f"unknown option `{unknown}`" in ran.err
    assert f"did you mean `{meant}`?" in ran.err
    assert ran.out == ""


def test_an_unknown_command_suggests_a_near_one(here: Here) -> None:
    ran = here("tempalte", "list")
    assert ran.code == 2
    assert ran.err == "error: unknown command `tempalte`\n  --> aj\n  help: did you mean `template`?\n"
    assert "did you mean `cancel`?" in here("job", "cancle", "x").err


def test_no_command_shows_the_help_and_exits_2(here: Here) -> None:
    ran = here()
    assert ran.code == 2
    assert "Usage: aj" in ran.err
    assert here("--json").document()["error"]["message"] == "missing command"


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "rnu"),
        ("--json", "--bogus"),
        ("--json", "run", "--bogus"),
        ("--json", "run", "-n", "0", "python"),
        ("--json", "job", "show"),
        ("--json", "config", "template"),
        ("--json", "run", "--amlt", "--follow", "-t", "x", "python"),
        ("plan", "--json", "--bogus"),
        ("plan", "-t", "x", "--json", "-n"),
        ("--json", "template", "show", "none"),
    ],
)
def test_json_mode_gives_one_error_document_for_every_usage_error(here: Here, words: tuple[str, ...]) -> None:
    ran = here(*words)
    document = ran.document()
    assert ran.code == 2
    assert document["kind"] == "error"
    assert document["error"]["hint"]
    assert "error:" not in ran.err


def test_json_behind_COMMAND_is_the_commands(here: Here) -> None:
    ran = here("plan", "--bogus", "python", "--json")
    assert ran.code == 2
    assert ran.out == ""


def test_AJ_OUTPUT_asks_for_json_too(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJ_OUTPUT", "json")
    assert here("rnu").document()["error"]["type"] == "UsageError"
    assert here("run", "--help").document()["kind"] == "help"
    monkeypatch.setenv("AJ_OUTPUT", "yaml")
    ran = here("config", "show")
    assert ran.code == 2
    assert "AJ_OUTPUT is `yaml`" in ran.err


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "1_0", "４", "", " 3", "9" * 30])
def test_S06_counts_are_ascii_digits_from_1(here: Here, value: str) -> None:
    ran = here("run", "-t", "x", "-n", value, "python")
    assert ran.code == 2
    assert "is not a whole number from 1" in ran.err


def test_a_bug_of_ours_shows_one_line_and_keeps_its_traceback(
    here: Here, project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aj.shared import config

    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero\nor so")

    monkeypatch.setattr(config, "read_json", broken)
    ran = here("config", "show")
    assert ran.code == 70
    assert "error: ZeroDivisionError: by zero" in ran.err
    assert "Traceback" not in ran.err
    (log,) = Path(project.env["AJ_CACHE_HOME"], "logs").iterdir()
    assert str(log) in ran.err
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert here("--json", "config", "show").document()["error"]["type"] == "InternalError"
    monkeypatch.setenv("AJ_DEBUG", "1")
    assert "Traceback" in here("config", "show").err


def test_a_system_error_is_told_in_words(here: Here, project: Any) -> None:
    project.home.write_text("a file where a folder should be")
    ran = here("init")
    assert ran.code == 1
    assert "error: " in ran.err
    assert str(project.home) in ran.err
    assert "Traceback" not in ran.err


def test_ctrl_c_exits_130_and_stays_json(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    from aj.shared import config

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "read_json", interrupted)
    ran = here("config", "show")
    assert (ran.code, ran.out, ran.err) == (130, "", "error: interrupted\n")
    ran = here("--json", "config", "show")
    assert ran.code == 130
    assert ran.document()["error"]["type"] == "InterruptedByUser"


def test_a_reader_that_hangs_up_is_no_error(project: Any) -> None:
    child = project.start("schema", "output", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert child.wait(30) in (141, -signal.SIGPIPE)
    assert child.stderr.read() == b""
    child.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_stdout_is_told(project: Any) -> None:
    with Path("/dev/full").open("wb") as full:
        child = project.start("--version", stdout=full, stderr=subprocess.PIPE)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 1
    assert err.decode() == "error: the output cannot be written: No space left on device\n"


def test_names_that_are_not_utf8_never_break_the_output(project: Any) -> None:
    project.template()
    ran = project.aj("template", "show", b"\xff\x1b[31m")
    assert ran.code == 2
    assert "\\udcff" in ran.err
    assert "\x1b" not in ran.err
    error = project.aj("--json", "template", "show", b"\xff").document()["error"]
    assert "\udcff" in error["message"]
    assert project.aj("template", "show", "é", env={"LC_ALL": "C", "PYTHONUTF8": "0"}).code == 2


def test_words_that_are_not_utf8_are_refused_and_named(project: Any) -> None:
    project.template()
    for words in (("echo", b"\xff"), ("--env", b"A=\xff", "true")):
        ran = project.aj("--json", "run", "-d", "-t", "local", *words)
        assert ran.code == 2
        assert "UTF-8" in ran.document()["error"]["message"]


def _on_terminal(project: Any, *words: str, env: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    child = project.start(*words, stdout=theirs, stderr=theirs, env={**project.env, "TERM": "xterm", **env})
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 4096):
            text += piece
    except OSError:
        pass
    child.wait(30)
    os.close(ours)
    return text.decode()


def test_colours_need_a_terminal_and_leave(project: Any) -> None:
    assert "\x1b[1;31merror:\x1b[0m" in _on_terminal(project, "rnu", env={})
    assert "\x1b" not in _on_terminal(project, "rnu", env={"NO_COLOR": "1"})
    assert "\x1b" not in _on_terminal(project, "rnu", env={"TERM": "dumb"})
    assert "\x1b" not in project.aj("rnu").err


def test_without_stdin_no_command_waits(project: Any) -> None:
    """S07: commands that other tools make interactive."""
    for words, code in (("init", 0), ("config template", 2), ("run", 2), ("completion", 2), ("init", 0)):
        for closed in ("<&-", "<&- >&-", "<&- >&- 2>&-"):
            command = ["bash", "-c", f"{sys.executable} -m aj {words} {closed}"]
            ran = subprocess.run(
                command, cwd=project.folder, env=project.env, capture_output=True, timeout=20, check=False
            )
            assert (ran.returncode, b"Traceback" in ran.stderr) == (code, False), (words, closed)


def test_a_current_folder_that_was_removed_is_told(project: Any) -> None:
    command = ["bash", "-c", f"mkdir gone && cd gone && rmdir ../gone && {sys.executable} -m aj config show"]
    ran = subprocess.run(
        command, cwd=project.folder, env=project.env, capture_output=True, text=True, timeout=20, check=False
    )
    assert ran.returncode == 2
    assert "error: the current folder cannot be read" in ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(here: Here, shell: str) -> None:
    assert "_AJ_COMPLETE" in here("completion", shell).out
    assert here("--json", "completion", shell).document()["shell"] == shell


def test_template_names_complete(project: Any) -> None:
    project.template("gpu")
    project.template("cpu")
    env = {"_AJ_COMPLETE": "bash_complete", "COMP_WORDS": "aj run -t g", "COMP_CWORD": "3"}
    assert project.aj(env=env).out == "plain,gpu\n"
    env = {"_AJ_COMPLETE": "bash_complete", "COMP_WORDS": "aj tem", "COMP_CWORD": "1"}
    assert project.aj(env=env).out == "plain,template\n"


def test_the_texts_of_help_belong_to_commands_that_exist() -> None:
    import click

    from aj.client import main
    from aj.client.commands import _texts

    def find(path: str) -> click.Command:
        command: click.Command = main.aj
        for name in path.split()[1:]:
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), name)
            assert found is not None, path
            command = found
        return command

    for path, sections in _texts()["sections"].items():
        names = {param.name for param in find(path).params}
        assert {name for listed in sections.values() for name in listed} <= names
    for path in {**_texts()["examples"], **_texts()["exits"]}:
        find(path)
