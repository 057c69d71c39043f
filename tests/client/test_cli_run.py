"""`aj run` and what follows it, end to end: a real daemon, real processes, real output."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

TRAIN = """\
import json, os, sys
print(json.dumps([os.environ["RANK"], os.environ["WORLD_SIZE"], sys.argv[1:]]), flush=True)
sys.exit(int(os.environ.get("FAIL", "0")) if os.environ["RANK"] == "1" else 0)
"""
SLEEP = """\
import os, pathlib, time
pathlib.Path(os.environ["PIDS"], str(os.getpid())).touch()
print("started", flush=True)
time.sleep(300)
"""


@pytest.fixture
def ready(project: Any) -> Any:
    project.template()
    (project.folder / "train.py").write_text(TRAIN)
    return project


def _files(folder: Path) -> dict[str, bytes]:
    build = folder / ".azure_jobs" / "build"
    files = (path for path in folder.rglob("*") if path.is_file() and build not in path.parents)
    return {str(path): path.read_bytes() for path in files if path.suffix not in (".db-shm", ".db-wal")}


def test_four_processes_get_the_exact_words_and_their_rank_stands_in_front(ready: Any) -> None:
    words = ("--lr", "1e-3", "a b", "$HOME")
    ran = ready.aj("run", "-t", "local", "-n", "2", "-p", "1", "--ppn", "2", "python", "train.py", *words)
    assert ran.code == 0, ran.err
    lines = [line.split(" | ", 1) for line in ran.out.splitlines()]
    said = {rank: json.loads(text) for rank, text in lines if text.startswith("[")}
    assert said == {str(rank): [str(rank), "4", list(words)] for rank in range(4)}
    assert "submitted  code_" in ran.err
    assert "completed" in ran.err


def test_a_failing_job_exits_1_with_the_tail_of_its_log(ready: Any) -> None:
    ran = ready.aj("run", "-t", "local", "--ppn", "2", "--env", "FAIL=3", "python", "train.py")
    assert ran.code == 1
    assert "the last lines of process 1:\n" in ran.err
    assert "error: job `code_" in ran.err
    assert "rank 1 ended with status 3" in ran.err
    document_ran = ready.aj("--json", "run", "-t", "local", "bash", "-c", "echo to the log; exit 5")
    document = document_ran.document()
    assert document_ran.code == 1
    assert (document["status"], document["job_status"]) == ("submitted", "Failed")
    assert "to the log" in document["note"]
    assert "to the log" in document_ran.err
    record = ready.aj("--json", "list", "-n", "1").document()["records"][0]
    assert (record["id"], record["template"], record["backend"]) == (document["id"], "local", "local")


def test_the_archive_is_reused_and_plan_names_the_file_that_changed(ready: Any) -> None:
    first = ready.aj("--json", "run", "-t", "local", "python", "train.py").document()
    second = ready.aj("--json", "run", "-t", "local", "python", "train.py", "--lr", "2").document()
    assert first["error"] is second["error"] is None
    assert first["archive"]["reused"] is False
    assert second["archive"] == {**first["archive"], "reused": True}
    assert first["payload_sha256"] != second["payload_sha256"]

    same = ready.aj("plan", "--json", "--check", "-t", "local", "python", "train.py", "--lr", "2")
    document = same.document()
    assert (same.code, document["would_change"], document["baseline"]) == (0, False, second["id"])
    assert {step["verdict"] for step in document["steps"] if step["kind"] != "write"} == {"same"}

    (ready.folder / "train.py").write_text(TRAIN + "# edited\n")
    before = _files(ready.folder)
    changed = ready.aj("plan", "--json", "--check", "-t", "local", "python", "train.py", "--lr", "2")
    document = changed.document()
    assert (changed.code, document["would_change"]) == (3, True)
    assert [change["path"] for change in document["archive"]["changed"]] == ["train.py"]
    assert document["archive"]["added"] == document["archive"]["removed"] == []
    assert _files(ready.folder) == before
    text = ready.aj("plan", "-t", "local", "--offline", "python", "train.py", "--lr", "2")
    assert "  ~ train.py" in text.out
    assert text.out.splitlines()[-1].startswith("Changes: ")


def test_a_script_or_a_credential_that_must_not_travel_stops_run_and_plan(ready: Any) -> None:
    (ready.folder / ".amltignore").write_text("train.*\n")
    (ready.folder / "train.py").write_text("print('here')")
    for command in ("run", "plan"):
        ran = ready.aj(command, "-t", "local", "train.py")
        assert ran.code == 2
        assert "`train.py` would not travel with the job: .amltignore:1: train.*" in ran.err
        assert "`!/train.py`" in ran.err
    (ready.folder / ".amltignore").write_text("")
    (ready.folder / "deploy.pem").write_text("x")
    assert ready.aj("config", "credential-files", "error").code == 0
    for command in ("run", "plan"):
        ran = ready.aj(command, "-t", "local", "true")
        assert ran.code == 2
        assert "would travel with the code: `deploy.pem`" in ran.err


def test_check_exits_1_on_any_error(ready: Any) -> None:
    assert ready.aj("plan", "--check", "-t", "none", "python").code == 1
    assert ready.aj("plan", "-t", "none", "python").code == 2


def test_a_saved_plan_is_submitted_exactly_or_refused(ready: Any) -> None:
    words = ("plan", "-t", "local", "-o", "job.plan", "--env", "TOKEN=hunter2222", "bash", "-c", "echo got $TOKEN")
    refused = ready.aj(*words)
    assert refused.code == 2
    assert "`job.plan` would travel with the code" in refused.err
    (ready.folder / ".codeignore").write_text("*.plan\n")
    planned = ready.aj("--json", *words).document()
    saved = ready.folder / "job.plan"
    assert saved.stat().st_mode & 0o777 == 0o600
    first = ready.aj("--json", "run", "--plan", "job.plan")
    assert first.document()["payload_sha256"] == planned["payload_sha256"]
    assert "got hunter2222" in first.err
    second = ready.aj("--json", "run", "--plan", "job.plan", "--no-follow").document()
    assert second["id"] != first.document()["id"]

    (ready.folder / "train.py").write_text("# moved\n")
    refused = ready.aj("--json", "run", "--plan", "job.plan")
    assert refused.code == 2
    assert (refused.document()["status"], "moved" in refused.document()["error"]["message"]) == ("failed", True)
    (ready.folder / "train.py").write_text(TRAIN)
    assert ready.aj("run", "--plan", "job.plan").code == 0
    ready.template("local", "# a comment\n" + (ready.home / "template" / "local.yaml").read_text())
    refused = ready.aj("run", "--plan", "job.plan")
    assert refused.code == 2
    assert "template/local.yaml" in refused.err


def test_queue_job_and_list_tell_the_same_story(ready: Any) -> None:
    queued = ready.aj("--json", "run", "--queue", "-t", "local", "bash", "-c", "echo from the queue").document()
    assert (queued["status"], queued["job_status"]) == ("queued", None)
    done = ready.aj("--json", "queue", "wait", queued["ticket"])
    assert (done.code, done.document()["state"]) == (0, "done")
    name = done.document()["result"]["azure_name"]
    logs = ready.aj("--json", "job", "logs", "-f", queued["id"]).document()
    assert (logs["azure_name"], logs["status"]) == (name, "Completed")
    assert "from the queue\n" in logs["content"]
    assert "from the queue\n" in ready.aj("job", "logs", name).out
    assert ready.aj("job", "status", queued["id"][:5]).out == "Completed\n"
    for words in (
        ("job", "list"),
        ("job", "show", name),
        ("job", "status", name),
        ("queue", "list"),
        ("queue", "show", queued["id"]),
    ):
        ran = ready.aj("--json", *words)
        assert ran.code == 0, ran.out
        ran.document()
        assert name in ready.aj(*words).out or words[1] == "status"
    assert ready.aj("--json", "list").document()["records"][0]["azure_name"] == name
    assert queued["id"] in ready.aj("list").out
    assert ready.aj("queue", "cancel", queued["ticket"]).code == 1
    for words in (("queue", "show", "nothing"), ("job", "show", "nothing"), ("job", "cancel", "nothing")):
        ran = ready.aj("--json", *words)
        assert (ran.code, ran.document()["error"]["type"]) == (2, "NotFoundError")


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not any(path.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.05)


def _wait_until_followed(stream: Any) -> None:
    """The job's own word came through: the client follows, it is not still sending."""
    for line in stream:
        if b"started" in line:
            return
    raise AssertionError("the client ended before it followed the job")


def _gone(pids: Path) -> bool:
    for path in pids.iterdir():
        stat = Path("/proc", path.name, "stat")
        if stat.exists() and ") Z " not in stat.read_text():
            return False
    return True


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_ctrl_c_cancels_a_followed_local_job_and_ends_every_child(
    ready: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    (ready.folder / "sleep.py").write_text(SLEEP)
    pids = tmp_path / "pids"
    pids.mkdir()
    child = ready.start(
        *words, "run", "-t", "local", "--ppn", "2", "--env", f"PIDS={pids}", "python", "sleep.py",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    _wait_until_followed(child.stderr if words else child.stdout)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert b"Traceback" not in err
    assert _gone(pids)
    if words:
        document = json.loads(out)
        assert (document["kind"], document["job_status"]) == ("submission_result", "Canceled")
        assert document["error"]["type"] == "InterruptedByUser"
    assert ready.aj("--json", "job", "list").document()["jobs"][0]["status"] == "Canceled"


def test_a_second_ctrl_c_leaves_at_once(ready: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    stubborn = "trap '' TERM INT; touch \"$PIDS/$$\"; echo started; while true; do sleep 1; done"
    child = ready.start(
        "run", "-t", "local", "--env", f"PIDS={pids}", "bash", "-c", stubborn,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    _wait_until_followed(child.stdout)
    os.killpg(child.pid, signal.SIGINT)
    for line in child.stderr:
        if b"Ctrl-C again leaves at once" in line:
            break
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=10)
    assert child.returncode == 130
    assert err == b"error: interrupted\n"
    for stubborn_one in pids.iterdir():
        os.kill(int(stubborn_one.name), signal.SIGKILL)


def test_ctrl_c_before_the_job_is_sent_tells_what_goes_on(ready: Any) -> None:
    lock = ready.home / "build" / "lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        child = ready.start(
            "--json",
            "run",
            "-t",
            "local",
            "echo",
            "later",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        for line in child.stderr:
            if b"another build of this project is running" in line:
                break
        os.killpg(child.pid, signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    document = json.loads(out)
    assert (child.returncode, document["status"]) == (130, "unknown")
    assert f"`aj queue show {document['id']}`" in document["error"]["hint"]
    assert ready.aj("queue", "wait", document["id"]).code == 0
    assert ready.aj("job", "logs", "-f", document["id"]).out == "later\n"


def test_no_follow_returns_at_once_and_cancel_ends_the_job(ready: Any, tmp_path: Path) -> None:
    (ready.folder / "sleep.py").write_text(SLEEP)
    pids = tmp_path / "pids"
    pids.mkdir()
    ran = ready.aj("run", "-t", "local", "--no-follow", "--env", f"PIDS={pids}", "python", "sleep.py")
    assert ran.code == 0
    name = ran.out.split()[1]
    assert f"aj job logs -f {name}" in ran.out
    _wait_for(pids)
    follower = ready.start("job", "logs", "-f", name, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)
    assert follower.stdout.readline() == b"started\n"
    os.killpg(follower.pid, signal.SIGINT)
    _, err = follower.communicate(timeout=60)
    assert follower.returncode == 130
    assert f"`aj job cancel {name}` ends it" in err.decode()
    assert ready.aj("job", "status", name).out == "Running\n"
    assert ready.aj("--json", "job", "cancel", name).document()["status"] == "Canceled"
    assert _gone(pids)


def test_the_daemon_is_shown_started_and_stopped(ready: Any) -> None:
    assert ready.aj("--json", "daemon", "status").document()["running"] is False
    assert ready.aj("--json", "daemon", "stop").document()["status"] == "not running"
    started = ready.aj("--json", "daemon", "start").document()
    assert started["running"] is True
    assert str(started["pid"]) in ready.aj("daemon", "status").out
    assert ready.aj("--json", "daemon", "restart").document()["status"] == "running"
    assert ready.aj("--json", "daemon", "status").document()["pid"] != started["pid"]
    assert ready.aj("daemon", "stop").out == "daemon: stopped\n"
    assert ready.aj("--json", "daemon", "status").document()["running"] is False


def test_init_then_run_needs_nothing_else(project: Any) -> None:
    assert project.aj("init").code == 0
    ran = project.aj("run", "-t", "local", "echo", "it runs")
    assert (ran.code, ran.out) == (0, "it runs\n"), ran.err
