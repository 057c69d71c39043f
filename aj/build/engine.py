"""How the graph is brought up to date: the only module that knows doit."""

from __future__ import annotations

import sqlite3  # noqa: TID253 - doit keeps its memo in it
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doit.control import TaskControl  # noqa: TID253 - this is the module that knows it
from doit.dependency import DatabaseException, Dependency, FileChangedChecker, SqliteDB  # noqa: TID253
from doit.runner import Runner  # noqa: TID253
from doit.task import dict_to_task  # noqa: TID253

from aj.build.step import Step, key_changes
from aj.shared.clock import now_ns
from aj.shared.errors import StoreError
from aj.shared.jsonio import Json, sha256, write_if_changed
from aj.shared.model import Emit, Event, Why


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step after the run: its target's bytes, and why it ran, empty when it was fresh."""

    step: Step
    target: bytes
    ran: tuple[Why, ...]


def bring_up_to_date(steps: Sequence[Step], memo: Path, emit: Emit) -> dict[str, Outcome]:
    """Run what is stale, in the order of reads and writes; the error of a step comes out as it was raised.

    `memo` is doit's database. It only saves time: a damaged one is set aside with a warning and rebuilt.
    The caller holds the lock of the folder that the targets lie in.
    """
    memo.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        run = _Run(steps, memo, emit)
    except sqlite3.OperationalError as error:
        raise StoreError(f"the build memo cannot be used: {error}", where=str(memo)) from error
    except (DatabaseException, sqlite3.DatabaseError, ValueError):
        aside = memo.with_name(f"{memo.name}.broken-{now_ns()}")
        memo.rename(aside)
        emit(Event("warning", f"the build memo was damaged; it is set aside as `{aside}` and rebuilt"))
        run = _Run(steps, memo, emit)
    if run.raised:
        raise run.raised[0]
    return {step.name: Outcome(step, step.writes.read_bytes(), run.why(step)) for step in steps}


def as_task(step: Step, name: str) -> dict[str, Any]:
    """The step as a doit task definition, for `doit list` and `doit info`."""

    def build() -> None:
        write_if_changed(step.writes, step.run())

    return _task(step, name, build, [])


class Sha256Checker(FileChangedChecker):  # type: ignore[misc]
    """Targets are small: their content is compared, never their mtime."""

    def check_modified(self, file_path: str, file_stat: Any, state: str) -> bool:
        """Whether the bytes differ from those that were read last time."""
        del file_stat
        return sha256(Path(file_path).read_bytes()) != state

    def get_state(self, dep: str, current_state: str | None) -> str:
        """The digest that is remembered."""
        del current_state
        return sha256(Path(dep).read_bytes())


class _Run:
    """One pass of doit's runner; also the reporter that doit tells what it does."""

    def __init__(self, steps: Sequence[Step], memo: Path, emit: Emit) -> None:
        self.raised: list[Exception] = []
        self._stale: dict[str, list[Why]] = {step.name: [] for step in steps}
        self._executed: set[str] = set()
        self._emit = emit
        definitions = [_task(step, step.name, self._guard(step), self._stale[step.name]) for step in steps]
        control = TaskControl([dict_to_task(definition) for definition in definitions])
        control.process(None)
        memo.touch(mode=0o600)
        runner = Runner(Dependency(SqliteDB, str(memo), checker_cls=Sha256Checker), self)
        runner.run_all(control.task_dispatcher())

    def why(self, step: Step) -> tuple[Why, ...]:
        """The reasons that made the step run; a changed target of an earlier step is doit's own finding."""
        if step.name not in self._executed:
            return ()
        reads = ", ".join(path.stem for path in step.reads)
        return tuple(self._stale[step.name]) or (Why("input_changed", reads),)

    def _guard(self, step: Step) -> Callable[[], bool]:
        def build() -> bool:
            try:
                write_if_changed(step.writes, step.run())
            except Exception as error:  # noqa: BLE001 - doit would keep only its text
                self.raised.append(error)
                return False
            return True

        return build

    def execute_task(self, task: Any) -> None:
        self._executed.add(task.name)
        self._emit(Event("step", task.name))

    def add_failure(self, task: Any, fail: Any) -> None:
        if not self.raised:
            self.raised.append(StoreError(f"step `{task.name}` failed: {fail.get_msg()}"))

    def runtime_error(self, message: str) -> None:
        self.raised.append(StoreError(f"the build graph is broken: {message}"))

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: None


def _task(step: Step, name: str, build: Callable[[], bool | None], stale: list[Why]) -> dict[str, Any]:
    def fresh(task: Any, values: Mapping[str, Json]) -> bool:
        task.value_savers.append(lambda: {"key": step.key, "target": sha256(step.writes.read_bytes())})
        stale[:] = _reasons(step, values)
        return not stale and step.kind == "pure"

    return {
        "name": name,
        "actions": [build],
        "file_dep": [str(path) for path in step.reads],
        "targets": [str(step.writes)],
        "uptodate": [fresh],
        "io": {"capture": False},
        "verbosity": 0,
        "doc": f"{step.kind} step `{step.name}`",
    }


def _reasons(step: Step, values: Mapping[str, Json]) -> list[Why]:
    """Why the step is stale as far as key and target tell; `values` is what its last success remembered."""
    if not values:
        return [Why("first_run", step.name)]
    why = key_changes(values["key"], step.key)
    try:
        target = step.writes.read_bytes()
    except OSError:
        return [*why, Why("target_missing", step.writes.name)]
    # A step that runs anyway is not asked about its old target: an archive that nobody needs would be kept.
    if values["target"] != sha256(target) or not (why or step.also(target)):
        why.append(Why("target_missing", step.writes.name))
    return why
