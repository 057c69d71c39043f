"""What a warm daemon costs: a plan of 200 unchanged files, requests, a long queue, memory while it packs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aj.sdk import connect
from aj.sdk.client import Client
from aj.shared.caller import caller
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Identity, nowhere
from aj.shared.paths import Home
from aj.shared.template.template import load_template
from tests.bench.tree import source_tree

ROUNDS = 15


def run(folder: Path) -> list[str]:
    """Lines for the warm plan, the warm request, 500 concurrent ones, cold start and memory."""
    project = folder / "project"
    (project / ".azure_jobs" / "template").mkdir(parents=True)
    leaf = "base:\nconfig:\n  target: {service: local}\n  jobs: [{instance_count: 1}]\n"
    (project / ".azure_jobs" / "template" / "local.yaml").write_text(leaf)
    source_tree(project / "src", files=200, binaries=0)
    env = {**os.environ, "AJ_RUNTIME_DIR": str(folder / "run"), "AJ_CACHE_HOME": str(folder / "cache")}
    env.pop("AJ_HOME", None)
    client = connect(project / ".azure_jobs", env=env)
    try:
        idle = rss_mb(client)
        lines = [*plan_lines(client, project, env), *request_lines(client, project / ".azure_jobs", env)]
        lines.append(f"daemon at rest: {idle:.0f} MB before a build, {rss_mb(client):.0f} MB after (target ≤ 80 idle)")
        lines.append(queue_line(client, folder, env))
        lines.append(packing_line(client, folder, env))
    finally:
        client.shutdown(force=True)
    lines.append(cold_start_line(project, env))
    return lines


def plan_lines(client: Client, project: Path, env: dict[str, str]) -> list[str]:
    """`aj plan` of 200 unchanged files: the whole command, and the daemon's part of it."""
    words = ["plan", "-t", "local", "-p", "1", "echo", "hi"]
    reference = median_ms(lambda: subprocess.run([sys.executable, "-c", "import click"], check=True))
    command = median_ms(
        lambda: subprocess.run(
            [sys.executable, "-m", "aj", *words], cwd=project, env=env, check=True, capture_output=True
        )
    )
    home = Home(project / ".azure_jobs")
    call = Invocation(argv=("echo", "hi"), cwd=project, processes=1)
    spec = build_spec(load_template(home, "local"), call, Identity.symbolic("local")).spec
    world = caller(env, project)
    inside = median_ms(lambda: client.plan(spec, world, offline=False, emit=nowhere))
    return [
        f"aj plan, 200 files, nothing changed: {command:.0f} ms (target ≤ 250), of it {inside:.0f} ms in the daemon"
        f" (target ≤ 60), import click: {reference:.0f} ms, ratio {command / reference:.1f}"
    ]


def request_lines(client: Client, root: Path, env: dict[str, str]) -> list[str]:
    """One warm request, and 500 at once."""
    one = median_ms(client.info, rounds=200)

    def ask(_: int) -> bool:
        return bool(connect(root, env=env, start=False).jobs() is not None)

    with ThreadPoolExecutor(50) as pool:
        begin = time.perf_counter()
        answered = sum(pool.map(ask, range(500)))
        took = time.perf_counter() - begin
    return [
        f"a warm request: {one:.2f} ms median in the client (target ≤ 2)",
        f"500 status requests from 50 threads: {answered} answered in {took:.2f} s",
    ]


def queue_line(client: Client, folder: Path, env: dict[str, str]) -> str:
    """1,000 entries with results, listed."""
    import sqlite3

    from aj.server.queue import Entry, Queue
    from aj.shared.jsonio import compact

    root = folder / "queue" / ".azure_jobs"
    queue = Queue(root / "daemon" / "queue.db").open()
    for number in range(1000):
        job_id = f"{number:08x}"
        entry = Entry(f"q-{job_id}", job_id, f"train_{job_id}", "gpu", "local", "pending", "2026-01-31T08:00:00+00:00")
        queue.accept(entry, {"id": job_id})
    with sqlite3.connect(root / "daemon" / "queue.db") as database:
        result = compact({"status": "submitted", "note": "x" * 600}).decode()
        database.execute("UPDATE entries SET state='done', recorded=1, result=?", (result,))
    database.close()
    begin = time.perf_counter()
    listed = len(queue.entries())
    inside = (time.perf_counter() - begin) * 1000
    queue.close()
    other = connect(root, env=env)
    took = median_ms(other.queue)
    return f"{listed} queue entries listed: {took:.0f} ms in the client (target ≤ 50), of it {inside:.0f} ms in the database"


def packing_line(client: Client, folder: Path, env: dict[str, str]) -> str:
    """The daemon's peak memory over a plan that packs 244 MB."""
    project = folder / "large"
    (project / ".azure_jobs" / "template").mkdir(parents=True)
    leaf = "base:\nconfig:\n  target: {service: local}\n  jobs: [{instance_count: 1}]\n"
    (project / ".azure_jobs" / "template" / "local.yaml").write_text(leaf)
    source_tree(project / "src")
    subprocess.run(
        [sys.executable, "-m", "aj", "plan", "-t", "local", "-p", "1", "echo"],
        cwd=project,
        env=env,
        check=True,
        capture_output=True,
    )
    return f"daemon, after packing 20,000 files of 244 MB: peak {peak_mb(client):.0f} MB (target ≤ 200)"


def cold_start_line(project: Path, env: dict[str, str]) -> str:
    """From no daemon to its first answer."""
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        client = connect(project / ".azure_jobs", env=env)
        client.info()
        took.append(time.perf_counter() - begin)
        client.shutdown(force=True)
    return f"cold start of the daemon to its first answer: {statistics.median(took) * 1000:.0f} ms (target ≤ 400)"


def median_ms(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median wall time of a call."""
    took = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1000


def rss_mb(client: Client) -> float:
    """The daemon's resident memory."""
    return _status(client, "VmRSS")


def peak_mb(client: Client) -> float:
    """The daemon's largest resident memory so far."""
    return _status(client, "VmHWM")


def _status(client: Client, name: str) -> float:
    text = Path(f"/proc/{client.info()['pid']}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name + ":")) / 1024
