"""One local job from first process to last: a tiny program that outlives the daemon and keeps the job's state."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

from aj.server.submit.process import descendants, start_of
from aj.shared.clock import monotonic, now_utc
from aj.shared.jsonio import Json, canonical, compact, write_file

STATE = "job.json"
"""The job's state, in its folder; it holds no values of environment variables."""
ARCHIVE, LOCK = "code.tar.gz", "lock"
"""What else is there until the job has ended."""
NODES = "nodes"
"""A link in the job's folder to where its nodes have theirs, while there is anything."""

GANG_GRACE = 3
"""Seconds that the other processes have for words of their own when the first has failed."""
RUNNER_GRACE = 8
"""Seconds that runners have beyond the job's own grace to end what they started."""
LEFTOVER_GRACE = 2
"""Seconds from TERM to KILL for what is left when every runner has ended."""

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_CANCEL = frozenset({signal.SIGTERM, signal.SIGINT})


@dataclass(frozen=True, slots=True)
class Order:
    """What to run. It comes by a pipe: its environment must be seen neither in a list of processes nor on the disk."""

    folder: str
    """The job's own folder, absolute."""
    nodes: str
    """Where each node has its folder: outside every project, so that the code finds no parent that a cluster lacks."""
    archive: str
    bootstrap: str
    bash: str
    env: Mapping[str, str]
    """What this machine gives to every process; the payload's wins."""
    payload: Json
    job: Mapping[str, Json]
    """What the state file says of the job beside its course."""
    grace_seconds: int
    """From TERM to KILL."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the job."""

    rank: int
    node: int
    local_rank: int
    pid: int
    start: str | None
    exit_code: int | None = None
    """128 + signal when a signal ended it; None while it runs."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and how the job ends: at `term_at` its processes are asked to, at `kill_at` made to (seconds, monotonic)."""

    status: Literal["Completed", "Failed", "Canceled"]
    reason: str | None = None
    exit_code: int | None = None
    term_at: float | None = None
    kill_at: float | None = None


def main() -> None:
    """Read the order from standard input, detach, run it; one line of JSON on standard output when the job runs."""
    order = Order(**json.load(sys.stdin.buffer))
    if os.fork():
        os._exit(0)
    report = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    supervise(order, report)


def supervise(order: Order, report: BinaryIO) -> None:
    """Run the job of `order` to its end, its state always in its folder; `report` gets one line and is closed."""
    wake = _wake_on_signals()
    _prctl(_SET_CHILD_SUBREAPER, 1)
    own = os.getpid()
    state = {**order.job, "status": "Running", "supervisor": {"pid": own, "start": start_of(own)}}
    _write_state(order, state, ())
    try:
        members = _start(order)
    except (OSError, ValueError) as error:
        _end_leftovers()
        _tell(report, {"error": str(error)})
        return
    _write_state(order, state, members)
    _tell(report, {"pid": own})
    members, ending = _watch(order, state, members, wake)
    _end_leftovers()
    course = {"status": ending.status, "reason": ending.reason, "exit_code": ending.exit_code, "ended_at": now_utc()}
    _write_state(order, {**state, **course}, members)
    _tidy(Path(order.folder), Path(order.nodes))


def _start(order: Order) -> tuple[Member, ...]:
    """Start every process; when one cannot be started, none stays."""
    nodes, per_node = order.payload["nodes"], order.payload["processes_per_node"]
    common = {
        "WORLD_SIZE": str(nodes * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    started: list[Member] = []
    try:
        for rank in range(nodes * per_node):
            node, local_rank = divmod(rank, per_node)
            place = Path(order.nodes, f"node-{node}")
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "NODE_RANK": str(node)}
            ours = {"AJ_WORK_ROOT": str(place), "AJ_TERM_GRACE_SECONDS": str(order.grace_seconds)}
            env = {**order.env, **common, **ranks, **order.payload["env"], **ours}
            pid = _start_one(order, rank, place, env)
            started.append(Member(rank, node, local_rank, pid, start_of(pid)))
    except (OSError, ValueError):
        for member in started:
            _kill_group(member.pid, signal.SIGTERM)
        raise
    return tuple(started)


def _start_one(order: Order, rank: int, place: Path, env: Mapping[str, str]) -> int:
    fd = os.open(Path(order.folder, f"{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    own = os.getpid()

    def die_with_us() -> None:
        _prctl(_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != own:
            os._exit(1)

    try:
        child = subprocess.Popen(
            [order.bash, order.bootstrap, order.archive],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            cwd=place,
            env=env,
            umask=0o022,
            start_new_session=True,
            preexec_fn=die_with_us,
        )
    finally:
        os.close(fd)
    # Every child is reaped by `_reap`, orphans that fell to us included: Popen must not wait for it too.
    child.returncode = 0
    return child.pid


def _watch(
    order: Order, state: Mapping[str, Json], members: tuple[Member, ...], wake: int
) -> tuple[tuple[Member, ...], Ending]:
    """Until the last process has ended: the processes with their statuses, and how the job ended."""
    limit = order.payload.get("timeout_seconds")
    out_of_time = None if limit is None else monotonic() + limit
    ending: Ending | None = None
    while any(member.exit_code is None for member in members):
        heard = _wait(wake, [out_of_time] if ending is None else [ending.term_at, ending.kill_at])
        before, members = members, _reap(members)
        if members != before:
            _write_state(order, state, members)
        if ending is None and not heard.isdisjoint(_CANCEL):
            ending = _ending(order, "Canceled", "it was canceled")
        ending = ending or _judge(order, members, out_of_time)
        if ending is not None:
            ending = _escalate(ending, members)
    return members, ending or Ending("Completed", exit_code=0)


def _judge(order: Order, members: tuple[Member, ...], out_of_time: float | None) -> Ending | None:
    """Whether something has happened that ends the whole job."""
    failed = next((member for member in members if member.exit_code), None)
    if failed is not None:
        reason = f"rank {failed.rank} ended with status {failed.exit_code}"
        return _ending(order, "Failed", reason, exit_code=failed.exit_code, delay=GANG_GRACE)
    if out_of_time is not None and monotonic() >= out_of_time:
        return _ending(order, "Failed", f"it ran longer than {order.payload['timeout_seconds']} seconds")
    return None


def _ending(
    order: Order, status: Literal["Failed", "Canceled"], reason: str, *, exit_code: int | None = None, delay: int = 0
) -> Ending:
    term_at = monotonic() + delay
    return Ending(status, reason, exit_code, term_at, term_at + order.grace_seconds + RUNNER_GRACE)


def _escalate(ending: Ending, members: tuple[Member, ...]) -> Ending:
    """Do what is due, and note that it is done."""
    now = monotonic()
    running = [member.pid for member in members if member.exit_code is None]
    if ending.term_at is not None and now >= ending.term_at:
        # A runner passes it on; before there is one, its group is the bootstrap and the tools that it runs.
        for pid in running:
            _kill_group(pid, signal.SIGTERM)
        return replace(ending, term_at=None)
    if ending.kill_at is not None and now >= ending.kill_at:
        for pid in running:
            _kill_group(pid, signal.SIGKILL)
        _kill_all(descendants(os.getpid()), signal.SIGKILL)
        return replace(ending, kill_at=now + 1)
    return ending


def _wait(wake: int, moments: Iterable[float | None]) -> set[int]:
    """Until a signal comes or one of `moments` is there; the numbers of the signals that came."""
    due = [moment for moment in moments if moment is not None]
    ready, _, _ = select.select([wake], [], [], max(0.0, min(due) - monotonic()) if due else None)
    return set(os.read(wake, 4096)) if ready else set()


def _reap(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Take the status of every child that ended, orphans that fell to us included."""
    codes: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            codes[ended[0]] = 128 - code if code < 0 else code
    return tuple(
        replace(member, exit_code=codes[member.pid]) if member.exit_code is None and member.pid in codes else member
        for member in members
    )


def _end_leftovers() -> None:
    """End the processes of the job that left their group and lost their parents: they have fallen to us."""
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        _kill_all(descendants(os.getpid()), number)
        until = monotonic() + LEFTOVER_GRACE
        while descendants(os.getpid()):
            _reap(())
            if monotonic() >= until:
                break
            select.select([], [], [], 0.05)
        else:
            return


def _tidy(folder: Path, nodes: Path) -> None:
    """Remove the archive, the locks, and every unpacked file that the job did not touch: what stays is what it wrote.

    A ctime cannot be set back, so a copy of an old file with its old mtime counts as the job's.
    """
    for name in (ARCHIVE, LOCK):
        (folder / name).unlink(missing_ok=True)
    for node in nodes.glob("node-*/aj-*/*"):
        done = node / "code.done"
        unpacked = done.stat().st_ctime_ns if done.exists() else None
        for place, folders, files in os.walk(node, topdown=False):
            for path in (Path(place, name) for name in (*files, *folders)):
                with suppress(OSError):
                    if path.is_dir() and not path.is_symlink():
                        path.rmdir()
                    elif unpacked is None or path.parent == node or path.lstat().st_ctime_ns < unpacked:
                        path.unlink()
        for empty in (node, node.parent, node.parent.parent, nodes):
            with suppress(OSError):
                empty.rmdir()
    if not nodes.exists():
        (folder / NODES).unlink(missing_ok=True)


def _write_state(order: Order, state: Mapping[str, Json], members: tuple[Member, ...]) -> None:
    path = Path(order.folder, STATE)
    try:
        write_file(path, canonical({**state, "members": [asdict(member) for member in members]}))
    except OSError as error:
        # A full disk must not end a job that runs: the state is old until the next write.
        sys.stderr.write(f"cannot write `{path}`: {error}\n")


def _tell(report: BinaryIO, line: Json) -> None:
    # The daemon may have gone meanwhile: the job and its state go on without it.
    with suppress(BrokenPipeError), report:
        report.write(compact(line) + b"\n")


def _wake_on_signals() -> int:
    """A descriptor from which the numbers of the signals that we handle can be read."""
    wake, notify = os.pipe()
    os.set_blocking(notify, False)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    # A handler, not SIG_IGN: what is ignored here would stay ignored in every process of the job.
    for number in (signal.SIGCHLD, signal.SIGHUP, *_CANCEL):
        signal.signal(number, lambda *_: None)
    return wake


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def _kill_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _kill_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    """Linux's word between parents and children; elsewhere a killed supervisor leaves its processes behind."""
    if _LIBC is not None:
        _LIBC.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
