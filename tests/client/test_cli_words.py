"""What the command line means: options in front of COMMAND, COMMAND to the end, variables, contradictions, dry runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Here = Callable[..., Any]


@pytest.fixture
def argv(here: Here, project: Any) -> Callable[..., list[str]]:
    """The command of a dry run, as the document has it."""
    project.template()

    def call(*words: str) -> list[str]:
        document = here("--json", "run", "-d", "-t", "local", *words).document()
        assert document["status"] == "dry_run", document
        command = document["config"]["jobs"][0]["command"]
        assert isinstance(command, list)
        return command

    return call


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("python", "-c", "--help"), "python -c --help"),
        (("python", "-n", "3"), "python -n 3"),
        (("python", "-t", "x", "--dry"), "python -t x --dry"),
        (("python", "--", "-c"), "python -- -c"),
        (("--", "--weird", "-d"), "--weird -d"),
        (("--", "--", "x"), "-- x"),
        (("python", "--jsn", "--json"), "python --jsn --json"),
        (("echo", "a b", "$HOME", ""), "echo 'a b' '$$HOME' ''"),
    ],
)
def test_everything_from_COMMAND_on_is_the_commands(
    argv: Callable[..., list[str]], words: tuple[str, ...], command: str
) -> None:
    assert argv(*words)[-1].rstrip("\n") == command


def test_shape_options_and_their_aliases(here: Here, project: Any) -> None:
    project.template()
    for name in ("-p", "--processes", "--gpn", "--gpus-per-node"):
        for launcher in ("--ppn", "--processes-per-node"):
            words = ("--json", "run", "-d", "-t", "local", "-n", "3", name, "4", f"{launcher}=2", "true")
            document = here(*words).document()
            assert (document["nodes"], document["processes"], document["processes_per_node"]) == (3, 4, 2)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("TOKEN=abc==", "TOKEN", "abc=="),
        ("NCCL_IB_HCA==mlx5_0", "NCCL_IB_HCA", "=mlx5_0"),
        ("A=", "A", ""),
        ("OURS", "OURS", "from here"),
    ],
)
def test_E03_variables_are_split_at_the_first_equals_sign(
    here: Here, project: Any, monkeypatch: pytest.MonkeyPatch, given: str, name: str, value: str
) -> None:
    project.template()
    monkeypatch.setenv("OURS", "from here")
    document = here("--json", "run", "-d", "-t", "local", "--env", given, "true").document()
    written = Path(document["path"])
    assert written.stat().st_mode & 0o777 == 0o600
    from aj.shared.yaml import load

    assert load(written.read_bytes(), "x").value["jobs"][0]["submit_args"]["env"][name] == value
    if value:
        assert document["config"]["jobs"][0]["submit_args"]["env"][name].startswith("<hidden ")


@pytest.mark.parametrize("given", ["UNSET_HERE", "=x", "", "1A=2", "A-B=2", "AJ_ID=1"])
def test_E03_a_variable_that_says_nothing_is_refused(here: Here, project: Any, given: str) -> None:
    project.template()
    ran = here("run", "-d", "-t", "local", "--env", given, "true")
    assert ran.code == 2
    assert "--> --env" in ran.err
    assert not (project.home / "dryrun").exists()


def test_a_dry_run_writes_a_private_file_and_shows_it(here: Here, project: Any) -> None:
    project.template()
    ran = here("run", "-d", "-t", "local", "--env", "SECRET=hunter2222", "true")
    assert ran.code == 0
    (path,) = (project.home / "dryrun").iterdir()
    assert f"written to {path}" in ran.err
    assert "hunter2222" not in ran.out + ran.err
    assert "hunter2222" in path.read_text()
    assert "SECRET" in ran.err
    assert ran.out.startswith("target:\n")
    assert sorted(item.name for item in project.home.iterdir()) == ["dryrun", "template"]


@pytest.mark.parametrize(
    "words",
    [
        ("-d", "--queue", "-t", "local", "true"),
        ("-d", "--follow", "-t", "local", "true"),
        ("--queue", "--follow", "-t", "local", "true"),
        ("-d", "--plan", "x"),
        ("--plan", "x", "true"),
        ("--plan", "x", "-n", "2"),
        ("--plan", "x", "--env", "A=1"),
        ("--plan", "x", "--amlt"),
        ("--amlt", "--follow", "-t", "local", "true"),
    ],
)
def test_contradictions_are_usage_errors(here: Here, project: Any, words: tuple[str, ...]) -> None:
    project.template()
    ran = here("run", *words)
    assert ran.code == 2
    assert "UsageError" in here("--json", "run", *words).out


@pytest.mark.parametrize("words", [(), ("-t", "local"), ("--",), ("-t", "local", "-n", "1", "--")])
def test_a_missing_template_or_command_is_a_usage_error(here: Here, project: Any, words: tuple[str, ...]) -> None:
    project.template()
    for command in ("run", "plan", "render"):
        ran = here(command, *words)
        assert ran.code == 2
        assert ran.err.startswith("error: ")


@pytest.mark.parametrize("words", [("-t", "none", "true"), ("-t", "local", "-n", "1", "notes.txt")])
def test_a_run_that_fails_early_is_a_submission_result_too(here: Here, project: Any, words: tuple[str, ...]) -> None:
    project.template()
    (project.folder / "notes.txt").write_text("no program")
    ran = here("--json", "run", *words)
    document = ran.document()
    assert ran.code == 2
    assert (document["kind"], document["status"]) == ("submission_result", "failed")
    assert document["error"]["message"]


def test_AJ_NAME_names_the_job(here: Here, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.template()
    assert here("--json", "run", "-d", "-t", "local", "true").document()["name"].startswith("code_")
    monkeypatch.setenv("AJ_NAME", "pretrain")
    document = here("--json", "run", "-d", "-t", "local", "true").document()
    assert document["name"] == f"pretrain_{document['id']}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"kind": "saved_plan", "format": 99}',
        '{"kind": "saved_plan", "format": 1, "plan": {}, "spec": {}}',
    ],
)
def test_a_file_that_is_no_saved_plan_is_refused(here: Here, project: Any, text: str) -> None:
    path = project.folder / "x.plan"
    path.write_text(text)
    ran = here("run", "--plan", str(path))
    assert ran.code in (1, 2)
    assert str(path) in ran.err
    assert here("run", "--plan", "absent.plan").code == 2
