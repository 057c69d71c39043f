"""`aj run --amlt`, end to end: a real daemon and a program that behaves like amlt."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

DOUBLE = Path(__file__).parent / "double" / "amlt_double.py"
TEMPLATE = """\
base: null
config:
  target: {service: local, name: itp-vc, gpus_per_node: 8}
  environment:
    image: pytorch/pytorch:2.5.1
    setup: ['echo "$HOME"']
    env: {WANDB_KEY: hush-hush-1}
  jobs:
    - sku: G8-A100
      instance_count: 1
      command: . ./setup.sh
      submit_args:
        env: {HF_TOKEN: hush$$hush}
  _extra: {team: {notes: mine}}
"""
LINK = "https://ml.azure.com/experiments/code/runs/calm_river_1?wsid=/subscriptions/s/workspaces/w"


@pytest.fixture
def amlt(project: Any, tmp_path: Path) -> Any:
    """A project whose PATH has the double, and nothing of this machine's but the programs that a job needs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "amlt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {DOUBLE} "$@"\n')
    program.chmod(0o755)
    log = tmp_path / "log"
    log.mkdir()
    project.env |= {"PATH": f"{programs}:{project.env['PATH']}", "AMLT_DOUBLE_LOG": str(log)}
    project.template("gpu", TEMPLATE)
    (project.folder / "train.py").write_text("print('trained')\n")
    project.log = log
    return project


def seen(amlt: Any) -> Any:
    return json.loads((amlt.log / "seen.json").read_text())


def gone(amlt: Any) -> bool:
    """Whether no process of the double is left."""
    for pid in (amlt.log / "pids").read_text().split():
        state = Path("/proc", pid, "stat")
        if state.exists() and ") Z " not in state.read_text():
            return False
    return True


def test_amlt_gets_the_resolved_job_and_its_link_comes_back(amlt: Any) -> None:
    ran = amlt.aj("--json", "run", "--amlt", "-t", "gpu", "-n", "4", "train.py", "--lr", "$1")
    document = ran.document()
    assert ran.code == 0, ran.err
    assert (document["status"], document["backend"], document["portal_url"]) == ("submitted", "amlt", LINK)
    assert (document["azure_name"], document["archive"]) == ("calm_river_1", None)
    assert "amlt status code" in document["note"]
    got = seen(amlt)
    job = got["document"]["jobs"][0]
    assert job["sku"] == "4xG8-A100"
    assert job["command"] == [". ./setup.sh", "uv run train.py --lr '$1'"]
    assert job["submit_args"]["env"]["HF_TOKEN"] == "hush$$hush"
    assert job["submit_args"]["env"]["AJ_NODES"] == "4"
    assert got["document"]["environment"]["setup"] == ['echo "$HOME"']
    assert got["document"]["target"] == {"service": "local", "name": "itp-vc"}
    assert "_extra" not in got["document"]
    assert (got["mode"], got["group"], got["cwd"]) == (0o600, True, str(amlt.folder))
    assert got["file"] == str(amlt.home / "submission" / f"{document['id']}.yaml")
    assert "train.py" in got["code"]
    assert ".azure_jobs/submission" in got["document"]["code"]["ignore"]
    assert got["experiment"] == "code"
    assert "Uploading code for code_train_" in ran.err and "image is old" in ran.err
    assert "\x1b" not in ran.err
    record = amlt.aj("--json", "list").document()["records"][0]
    assert (record["backend"], record["portal_url"], record["archive_sha256"]) == ("amlt", LINK, None)


def test_nothing_secret_is_shown_or_kept_in_clear(amlt: Any) -> None:
    ran = amlt.aj("--json", "run", "--amlt", "-t", "gpu", "train.py", env={"AMLT_DOUBLE": "fail"})
    document = ran.document()
    assert (ran.code, document["status"], document["error"]["type"]) == (1, "failed", "SubmissionError")
    message = document["error"]["message"]
    assert "failed with status 7" in message and "amlt run " in message
    assert "stdout: " in message and "stderr: " in message
    assert "bad token <hidden>" in message and "bad token <hidden>" in ran.err
    assert amlt.aj("--json", "list").document()["records"][0]["status"] == "failed"
    amlt.aj("daemon", "stop")
    kept = [path for path in amlt.home.rglob("*") if path.is_file() and path.suffix != ".yaml"]
    assert any(path.name == "payload.json" for path in kept)
    for path in kept:
        assert b"hush$" not in path.read_bytes() and b"hush-hush" not in path.read_bytes(), path


def test_secrets_of_several_lines_are_hidden_line_by_line(amlt: Any) -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----"
    ran = amlt.aj("run", "--amlt", "-t", "gpu", "--env", f"HF_TOKEN={key}", "train.py", env={"AMLT_DOUBLE": "fail"})
    assert ran.code == 1 and "MIIEvQ" not in ran.err and "bad token" in ran.err


def test_a_dry_run_writes_the_very_document_and_starts_nothing(amlt: Any) -> None:
    ran = amlt.aj("--json", "run", "--amlt", "-d", "-t", "gpu", "-n", "2", "train.py")
    document = ran.document()
    assert (ran.code, document["status"], document["backend"]) == (0, "dry_run", "amlt")
    assert document["config"]["jobs"][0]["sku"] == "2xG8-A100"
    assert document["config"]["code"]["local_dir"] == "$CONFIG_DIR/../.."
    assert not (amlt.log / "seen.json").exists()
    assert amlt.aj("--json", "daemon", "status").document()["running"] is False


def test_a_queued_one_waits_for_its_turn_and_is_submitted_as_it_was(amlt: Any) -> None:
    queued = amlt.aj("--json", "run", "--amlt", "--queue", "-t", "gpu", "train.py").document()
    assert (queued["status"], queued["backend"]) == ("queued", "amlt")
    done = amlt.aj("--json", "queue", "wait", queued["ticket"])
    assert (done.code, done.document()["state"]) == (0, "done")
    assert done.document()["result"]["portal_url"] == LINK
    assert amlt.aj("job", "show", queued["id"]).code == 1  # amlt's own tools manage it


def test_plan_tells_what_would_change_and_a_saved_one_is_submitted(amlt: Any) -> None:
    first = amlt.aj("plan", "--json", "--check", "--amlt", "-t", "gpu", "train.py")
    assert (first.code, first.document()["backend"], first.document()["archive"]) == (3, "amlt", None)
    assert [step["name"] for step in first.document()["steps"]] == ["template", "spec", "payload", "submit"]
    assert amlt.aj("run", "--amlt", "-t", "gpu", "train.py").code == 0
    same = amlt.aj("plan", "--json", "--check", "--amlt", "-t", "gpu", "train.py")
    assert (same.code, same.document()["would_change"]) == (0, False)
    other = amlt.aj("plan", "--json", "--amlt", "-t", "gpu", "-o", ".azure_jobs/x.plan", "train.py", "--lr", "2")
    assert other.document()["would_change"] is True
    assert "--lr 2" in other.document()["diffs"]["payload"]
    assert amlt.aj("run", "--plan", ".azure_jobs/x.plan").code == 0
    assert seen(amlt)["document"]["jobs"][0]["command"][-1] == "uv run train.py --lr 2"
    assert amlt.aj("plan", "--amlt", "-t", "gpu", "--offline", "train.py").code == 0


@pytest.mark.parametrize("how", ["hang", "stubborn"])
def test_what_takes_too_long_ends_with_its_whole_group_and_is_unknown(amlt: Any, how: str) -> None:
    amlt.env |= {"AMLT_DOUBLE": how, "AJ_AMLT_TIMEOUT": "2"}
    ran = amlt.aj("--json", "run", "--amlt", "-t", "gpu", "train.py")
    document = ran.document()
    assert (ran.code, document["status"], document["error"]["type"]) == (4, "unknown", "OutcomeUnknownError")
    assert "was ended after 2 s" in document["error"]["message"]
    assert "AJ_AMLT_TIMEOUT" in document["error"]["hint"] and "amlt status code" in document["error"]["hint"]
    end = time.monotonic() + 10
    while not gone(amlt) and time.monotonic() < end:
        time.sleep(0.05)
    assert gone(amlt)


@pytest.mark.parametrize("how", ["hang", "stubborn"])
def test_a_daemon_that_is_stopped_by_force_leaves_no_amlt_behind_and_the_outcome_is_unknown(
    amlt: Any, how: str
) -> None:
    amlt.env |= {"AMLT_DOUBLE": how}
    queued = amlt.aj("--json", "run", "--amlt", "--queue", "-t", "gpu", "train.py").document()
    end = time.monotonic() + 30
    while not ((amlt.log / "pids").exists() and (amlt.log / "pids").read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    assert amlt.aj("daemon", "stop", "--force").code == 0
    assert gone(amlt)
    entry = amlt.aj("--json", "queue", "show", queued["ticket"]).document()
    assert (entry["state"], entry["result"]["status"]) == ("unknown", "unknown")
    assert "was ended with the daemon" in entry["result"]["error"]["message"]
    assert "`amlt status code`" in entry["result"]["error"]["hint"]


def test_a_failure_after_the_job_was_named_is_unknown(amlt: Any) -> None:
    ran = amlt.aj("--json", "run", "--amlt", "-t", "gpu", "train.py", env={"AMLT_DOUBLE": "late-fail"})
    assert (ran.code, ran.document()["status"]) == (4, "unknown")
    assert LINK in ran.document()["error"]["message"]


def test_it_cannot_ask_anybody(amlt: Any) -> None:
    ran = amlt.aj("--json", "run", "--amlt", "-t", "gpu", "train.py", env={"AMLT_DOUBLE": "ask"})
    assert ran.code == 1
    assert "status 3" in ran.document()["error"]["message"] and "Proceed?" in ran.err


def test_a_flood_of_output_is_cut_and_the_link_still_found(amlt: Any) -> None:
    ran = amlt.aj("--json", "run", "--amlt", "-t", "gpu", "train.py", env={"AMLT_DOUBLE": "flood"})
    assert (ran.code, ran.document()["portal_url"]) == (0, LINK)
    assert "more lines of amlt are not shown" in ran.err
    assert len(ran.err) < 1_000_000


def test_without_amlt_it_says_what_to_install_before_anything_is_written(amlt: Any) -> None:
    (Path(amlt.env["PATH"].split(":")[0]) / "amlt").unlink()
    ran = amlt.aj("--json", "run", "--amlt", "-t", "gpu", "train.py")
    error = ran.document()["error"]
    assert (ran.code, ran.document()["status"]) == (2, "failed")
    assert "`amlt` is not on PATH" in error["message"] and "install it" in error["hint"]
    assert not (amlt.home / "submission").exists()
    assert amlt.aj("plan", "--offline", "--amlt", "-t", "gpu", "train.py").code == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("G8-A100", "2xG8", "asks for 2 nodes"),
        ("G8-A100", "G4", "asks for 4 GPUs"),
        ("G8-A100", "eight big ones", "is not a SKU"),
        ("sku: G8-A100", "name: x", "without a SKU"),
        ("image: pytorch/pytorch:2.5.1", "registry: nvcr.io", "amlt needs an image"),
    ],
)
def test_what_amlt_would_misunderstand_is_refused_at_its_line(amlt: Any, old: str, new: str, message: str) -> None:
    amlt.template("gpu", TEMPLATE.replace(old, new))
    for words in (("run", "--amlt"), ("run", "--amlt", "-d"), ("plan", "--amlt")):
        ran = amlt.aj(*words, "-t", "gpu", "-n", "4", "train.py")
        assert ran.code == 2, ran.err
        assert message in ran.err and "gpu.yaml:" in ran.err
    if "SKU" not in message:
        assert amlt.aj("run", "-d", "-t", "gpu", "-n", "4", "train.py").code == 0


def test_the_experiment_and_the_code_folder_are_the_projects(amlt: Any) -> None:
    amlt.template(
        "gpu", TEMPLATE.replace("config:\n", "config:\n  code: {local_dir: $CONFIG_DIR/../.., ignore: [data/]}\n")
    )
    amlt.home.joinpath("aj_config.json").write_text('{"experiment": "vision"}')
    assert amlt.aj("run", "--amlt", "-t", "gpu", "train.py").code == 0
    got = seen(amlt)
    assert got["experiment"] == "vision"
    assert Path(got["document"]["code"]["local_dir"]).resolve() == amlt.folder.resolve()
    assert got["document"]["code"]["ignore"] == ["data/"]
    amlt.home.joinpath("aj_config.json").write_text('{"experiment": "no name"}')
    refused = amlt.aj("run", "--amlt", "-t", "gpu", "train.py")
    assert refused.code == 2 and "aj_config.json/experiment" in refused.err


def test_a_wrong_timeout_is_named(amlt: Any) -> None:
    amlt.env["AJ_AMLT_TIMEOUT"] = "soon"
    ran = amlt.aj("run", "--amlt", "-t", "gpu", "train.py")
    assert ran.code == 2
    assert "AJ_AMLT_TIMEOUT `soon`" in ran.err


def test_who_wrote_for_amlt_is_told(amlt: Any) -> None:
    amlt.template("gpu", TEMPLATE.replace(". ./setup.sh", "'echo $$HOME $$SUDO'"))
    ran = amlt.aj("run", "--amlt", "-t", "gpu", "train.py")
    assert ran.code == 0
    assert "`jobs[0].command` has `$$` before a variable" in ran.err
    assert seen(amlt)["document"]["jobs"][0]["command"][0] == "echo $$HOME $$SUDO"


def test_init_amlt_checks_the_program_and_writes_a_template(amlt: Any) -> None:
    ran = amlt.aj("--json", "init", "amlt")
    document = ran.document()
    assert (ran.code, document["status"]) == (0, "written")
    assert "amlt, version 11.4.3" in ran.err
    assert (amlt.home / "template" / "amlt.yaml").is_file()
    assert amlt.aj("template", "validate", "amlt").code == 0
    assert amlt.aj("run", "--amlt", "-t", "amlt", "train.py").code == 0
    assert seen(amlt)["document"]["jobs"][0]["sku"] == "G1"
    again = amlt.aj("--json", "init", "amlt").document()
    assert (again["status"], again["written"]) == ("same", [])
    (Path(amlt.env["PATH"].split(":")[0]) / "amlt").unlink()
    missing = amlt.aj("--json", "init", "amlt")
    assert missing.code == 1
    assert "install it" in missing.document()["error"]["hint"]


def test_the_double_is_as_strict_as_amlt(amlt: Any, tmp_path: Path) -> None:
    """A variable that nobody set is an error there: what it gets from aj has none."""
    file = tmp_path / "x.yaml"
    file.write_text("code: {local_dir: /}\njobs: [{name: $NOT_SET_ANYWHERE}]\n")
    assert os.spawnve(os.P_WAIT, sys.executable, [sys.executable, str(DOUBLE), "run", str(file), "e", "-y"], amlt.env)
