"""`aj cache`: what lies in the cache, what goes, and what never does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aj.build.store import Store
from aj.client.show import size
from aj.sdk import connect
from aj.shared.jsonio import locked

DAY = 24 * 3600


def submit(project: Any, content: str, *options: str) -> dict[str, Any]:
    """Runs the project's code as it is when its one file has this content."""
    project.template()
    (project.folder / "train.py").write_text(content)
    ran = project.aj("--json", "run", "-t", "local", *options, "true")
    assert ran.code == 0, ran.err
    document: dict[str, Any] = ran.document()
    return document


def days_old(project: Any, sha256: str, days: float) -> None:
    seen = Path(project.env["AJ_CACHE_HOME"], "archives", f"{sha256}.seen")
    then = seen.stat().st_mtime - days * DAY
    os.utime(seen, (then, then))


def test_an_empty_cache(project: Any) -> None:
    ran = project.aj("cache", "show")
    folder = f"{project.env['AJ_CACHE_HOME']}/archives"
    assert (ran.code, ran.out, ran.err) == (
        0,
        f"0 archives, 0 B of at most 21.5 GB, in {folder}\n",
        "the cache is empty\n",
    )
    ran = project.aj("cache", "gc", "--max-size", "0")
    assert (ran.code, ran.out) == (0, "freed 0 B (0 archives), 0 B (0 archives) left\n")


def test_show_then_a_dry_run_then_by_age_then_all(project: Any) -> None:
    old, new = (submit(project, text)["archive"] for text in ("print(1)\n", "print(22)\n"))
    days_old(project, old["sha256"], 8)

    shown = project.aj("--json", "cache", "show").document()
    assert [row["sha256"] for row in shown["archives"]] == [old["sha256"], new["sha256"]]
    assert [row["size"] for row in shown["archives"]] == [old["size"], new["size"]]
    assert (shown["bytes"], shown["limit"]) == (old["size"] + new["size"], 20 << 30)
    assert [row["in_use"] for row in shown["archives"]] == [False, False]
    lines = project.aj("cache", "show").out.splitlines()
    assert lines[0].split() == ["ARCHIVE", "SIZE", "USED", "AT", "IN", "USE"]
    assert [line.split()[0] for line in lines[1:3]] == [old["sha256"][:12], new["sha256"][:12]]
    assert lines[3].startswith(f"2 archives, {size(old['size'] + new['size'])} of at most 21.5 GB, in /")

    dry = project.aj("cache", "gc", "--max-size", str(new["size"]), "--dry-run")
    assert dry.out.splitlines()[1].startswith(old["sha256"][:12])
    said = f"would free {size(old['size'])} (1 archive), {size(new['size'])} (1 archive) would stay"
    assert dry.out.splitlines()[-1] == said
    assert project.aj("--json", "cache", "gc", "-d", "--max-size", "1MB").document()["removed"] == []
    assert project.aj("--json", "cache", "gc").document()["removed"] == []

    aged = project.aj("--json", "cache", "gc", "--unused", "7").document()
    assert [row["sha256"] for row in aged["removed"]] == [old["sha256"]]
    assert (aged["freed"], aged["left"], aged["left_archives"]) == (old["size"], new["size"], 1)
    ran = project.aj("cache", "gc", "--max-size", "0")
    assert ran.out == f"freed {size(new['size'])} (1 archive), 0 B (0 archives) left\n"
    assert project.aj("--json", "cache", "show").document()["archives"] == []
    assert submit(project, "print(1)\n")["archive"] == {**old, "reused": False}


def test_another_cache_is_not_touched(project: Any, tmp_path: Path) -> None:
    submit(project, "print(1)\n")
    other = {"AJ_CACHE_HOME": str(tmp_path / "other")}
    assert project.aj("--json", "cache", "gc", "--max-size", "0", env=other).document()["removed"] == []
    assert len(project.aj("--json", "cache", "show").document()["archives"]) == 1


@pytest.mark.parametrize("wrong", ["", "-1", "x", "1.5.2", "5 GiB", "٣", "1e3", "9" * 10])
def test_what_is_no_size_is_refused(here: Callable[..., Any], wrong: str) -> None:
    ran = here("cache", "gc", "--max-size", wrong)
    assert ran.code == 2
    assert "is not a size such as `500MB` or `1.5GB`" in ran.err


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("812B", 812), ("2kB", 2000), ("1.5 GB", 1_500_000_000), ("3T", 3 * 10**12)]
)
def test_sizes_are_read_as_they_are_shown(text: str, count: int) -> None:
    import click

    from aj.client.options import byte_count

    assert byte_count(click.Context(click.Command("gc")), click.Option(["--max-size"]), text) == count


def test_the_cache_is_cleaned_all_the_time_while_jobs_are_packed_and_run(project: Any) -> None:
    project.template()
    (project.folder / "weights").write_bytes(os.urandom(24 << 20))
    client = connect(project.home, env=project.env)
    stop, cleaned = threading.Event(), []

    def clean() -> None:
        while not stop.is_set():
            cleaned.append(client.cache_gc(max_bytes=0))

    thread = threading.Thread(target=clean)
    thread.start()
    try:
        for number in range(4):
            assert submit(project, f"print({number})\n")["job_status"] == "Completed"
            assert submit(project, f"print({number})\n", "--queue", "--no-follow")["status"] == "queued"
    finally:
        stop.set()
        thread.join()
    entries = [client.wait(entry["ticket"], 60) for entry in client.queue()]
    assert [entry["state"] for entry in entries] == ["done"] * 8
    assert sum(document["freed"] for document in cleaned) > 24 << 20


def test_ctrl_c_stops_waiting_and_the_daemon_goes_on(project: Any) -> None:
    submit(project, "print(1)\n")
    with locked(Path(project.env["AJ_CACHE_HOME"], "archives", "lock")):
        child = project.start("cache", "gc", "--max-size", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(3)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
        assert (child.returncode, out) == (130, b"")
        assert err.decode() == (
            "error: no longer waiting; the daemon goes on cleaning\n  help: `aj cache show` tells what is left\n"
        )
    deadline = time.monotonic() + 30
    while list(Path(project.env["AJ_CACHE_HOME"], "archives").glob("*.tar.gz")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_in_use_stays_and_is_told(project: Any) -> None:
    archive = submit(project, "print(1)\n")["archive"]
    with Store(Path(project.env["AJ_CACHE_HOME"])).lease(archive["sha256"]):
        assert project.aj("cache", "show").out.splitlines()[1].split()[-1] == "yes"
        ran = project.aj("cache", "gc", "--max-size", "0")
    assert ran.out == f"freed 0 B (0 archives), {size(archive['size'])} (1 archive) left\n"
    assert ran.err == "what is packed, sent or queued stays: `aj cache show` tells which\n"


def test_its_commands_and_options_complete(project: Any) -> None:
    for words, found in (
        ("aj cac", "plain,cache\n"),
        ("aj cache g", "plain,gc\n"),
        ("aj cache gc --u", "plain,--unused\n"),
    ):
        env = {"_AJ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert project.aj(env=env).out == found
