"""The life of local jobs after their start, read from their folders and from who is alive."""

from __future__ import annotations

import codecs
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from aj.server.submit import LogChunk, LogPage
from aj.server.submit.process import descendants, send, start_of
from aj.server.submit.supervisor import RUNNER_GRACE, STATE
from aj.shared.clock import monotonic
from aj.shared.errors import NotFoundError, StoreError
from aj.shared.jsonio import Json, read_json
from aj.shared.paths import Home

PAGE_BYTES = 256 * 1024
"""The most that one call of `logs` reads, over all streams."""

KILLED = "its supervisor ended without a word: it was killed, or this machine restarted"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SUMMARY = (
    "id", "name", "azure_name", "status", "backend", "template", "created_at", "ended_at", "nodes", "processes",
    "processes_per_node", "reason", "exit_code",
)  # fmt: skip


def job_folder(home: Home, name: str) -> Path:
    """Where the job `name` lives; `NotFoundError` for what can be no job's name, such as a path."""
    if not _NAME.fullmatch(name):
        raise NotFoundError(f"`{name}` cannot be the name of a local job", hint="see `aj job list`")
    return home.logs / name


def read_state(folder: Path) -> dict[str, Json]:
    """The job's state as it is now; a job that lost its supervisor has failed. `StoreError` when it cannot be read."""
    state = _stored(folder)
    supervisor = state["supervisor"]
    if state["status"] == "Running" and start_of(supervisor["pid"]) != supervisor["start"]:
        # It may have ended between our two looks.
        state = _stored(folder)
        if state["status"] == "Running":
            state |= {"status": "Failed", "reason": KILLED}
    return state


@dataclass(frozen=True, slots=True)
class LocalJobs:
    """The jobs below `AJ_HOME/logs`. Each method takes a name, an AJ_ID or a unique start of one."""

    home: Home

    def list_jobs(self) -> list[dict[str, Json]]:
        """Newest first, without what only `show` tells."""
        states = sorted(self._states(), key=lambda state: int(state["created_ns"]), reverse=True)
        return [{key: state.get(key) for key in _SUMMARY} for state in states]

    def show(self, name: str) -> dict[str, Json]:
        """Everything known: also its folder, its supervisor and each process with its exit code."""
        folder = job_folder(self.home, self.resolve(name))
        return {**read_state(folder), "folder": str(folder)}

    def logs(self, name: str, cursor: Mapping[str, int], stream: str | None = None) -> LogPage:
        """What each process, or the one of rank `stream`, wrote since `cursor`; no character is ever cut in two."""
        folder = job_folder(self.home, self.resolve(name))
        # The state first: what was written before the end is then surely in the files.
        state = read_state(folder)
        ended = state["status"] != "Running"
        known = [str(member["rank"]) for member in state["members"]]
        if stream is not None and stream not in known:
            raise NotFoundError(f"`{name}` has no rank `{stream}`", hint=f"it has {', '.join(known)}")
        streams = known if stream is None else [stream]
        starts = {each: max(0, cursor.get(each, 0)) for each in streams}
        new = {each: max(0, _size(folder, each) - start) for each, start in starts.items()}
        share = max(4096, PAGE_BYTES // max(1, sum(1 for size in new.values() if size)))
        chunks, after = [], {}
        for each, start in starts.items():
            text, after[each] = _read(folder, each, start, min(share, new[each]), final=ended and new[each] <= share)
            if text:
                chunks.append(LogChunk(each, text))
        finished = ended and all(after[each] >= _size(folder, each) for each in streams)
        return LogPage(tuple(chunks), after, finished, tuple(known))

    def cancel(self, name: str) -> str:
        """End every process of the job and wait until that is done; the status after. An ended job stays as it is."""
        folder = job_folder(self.home, self.resolve(name))
        state = read_state(folder)
        supervisor, patience = state["supervisor"], state["grace_seconds"] + RUNNER_GRACE
        if state["status"] == "Running" and send(supervisor["pid"], supervisor["start"], signal.SIGTERM):
            until = monotonic() + patience + RUNNER_GRACE
            while read_state(folder)["status"] == "Running" and monotonic() < until:
                time.sleep(0.05)
            if read_state(folder)["status"] == "Running":
                send(supervisor["pid"], supervisor["start"], signal.SIGKILL)
        _end_members(state, patience)
        return str(read_state(folder)["status"])

    def resolve(self, ref: str) -> str:
        """The job's name for its name, its AJ_ID or a unique start of that; `NotFoundError` lists near ones."""
        if _NAME.fullmatch(ref) and (self.home.logs / ref / STATE).is_file():
            return ref
        names = {str(state["name"]): str(state["id"]) for state in self._states()}
        matches = [name for name, id in names.items() if ref and id.startswith(ref)]
        if len(matches) != 1:
            _not_found(ref, matches, [*names, *names.values()])
        return matches[0]

    def _states(self) -> Iterator[dict[str, Json]]:
        for path in self.home.logs.glob(f"*/{STATE}"):
            try:
                yield read_state(path.parent)
            except StoreError:
                # One damaged folder must not hide the others; `show` says what is wrong with it.
                continue


def _stored(folder: Path) -> dict[str, Json]:
    try:
        state = read_json(folder / STATE)
        # Everything that is read from it below, so that a damaged file is met here and nowhere else.
        state["supervisor"]["pid"], state["supervisor"]["start"], [member["rank"] for member in state["members"]]
        state["id"], state["name"], state["status"], int(state["created_ns"]), int(state["grace_seconds"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"the state of a local job cannot be read: {error}",
            where=str(folder / STATE),
            hint="remove the job's folder",
        ) from error
    assert isinstance(state, dict)
    return state


def _end_members(state: Mapping[str, Json], patience: float) -> None:
    """End what a dead supervisor left behind; does nothing when it left nothing."""
    alive = [member for member in state["members"] if send(member["pid"], member["start"], signal.SIGTERM)]
    below = [(pid, start_of(pid)) for member in alive for pid in descendants(member["pid"])]
    until = monotonic() + patience
    while alive and monotonic() < until:
        time.sleep(0.05)
        alive = [member for member in alive if start_of(member["pid"]) == member["start"]]
    for pid, start in [*((member["pid"], member["start"]) for member in alive), *(below if alive else [])]:
        if start is not None:
            send(pid, start, signal.SIGKILL)


def _size(folder: Path, stream: str) -> int:
    try:
        return (folder / f"{stream}.log").stat().st_size
    except OSError:
        return 0


def _read(folder: Path, stream: str, start: int, length: int, *, final: bool) -> tuple[str, int]:
    """The text of `length` bytes from `start`, and where to go on: before a character cut off there, unless `final`."""
    if not length:
        return "", start
    with (folder / f"{stream}.log").open("rb") as log:
        log.seek(start)
        content = log.read(length)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content, final)
    return text, start + len(content) - len(decoder.getstate()[0])


def _not_found(ref: str, matches: list[str], known: list[str]) -> NoReturn:
    from difflib import get_close_matches

    if matches:
        raise NotFoundError(
            f"`{ref}` is the start of several jobs", hint=f"one of {', '.join(f'`{name}`' for name in sorted(matches))}"
        )
    near = ", ".join(f"`{name}`" for name in get_close_matches(ref, known, n=3))
    raise NotFoundError(f"no local job `{ref}`", hint=f"did you mean {near}?" if near else "see `aj job list`")
