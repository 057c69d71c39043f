"""What the daemon makes submissions with: a value, so that another maker can take the place of the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aj.shared.jsonio import Json
from aj.shared.model import ArchiveRecord, Caller, Emit, JobResult, JobSpec, Notice, Plan
from aj.shared.paths import Home, cache_home

if TYPE_CHECKING:
    from aj.server.submit import Jobs


class Frozen(Protocol):
    """A submission that no later edit can change."""

    @property
    def spec(self) -> JobSpec:
        """What is submitted."""
        ...

    @property
    def payload_sha256(self) -> str:
        """Of the payload with symbolic identity."""
        ...

    @property
    def archive(self) -> ArchiveRecord | None:
        """The packed code, in the store; None where another tool packs it."""
        ...

    @property
    def reused(self) -> bool:
        """Whether the store had it already."""
        ...

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What the caller should know."""
        ...


class Submissions(Protocol):
    """One project's submissions; every method blocks and may be called from any thread."""

    def prepare(self, spec: JobSpec, caller: Caller, emit: Emit, expect: str | None = None) -> Any:
        """The pure half, giving a `Frozen`; `expect` is the payload digest of a saved plan, refused when it moved."""
        ...

    def plan(self, spec: JobSpec, caller: Caller, emit: Emit) -> Plan:
        """What `prepare` and `execute` would do."""
        ...

    def plan_offline(self, spec: JobSpec, caller: Caller, emit: Emit) -> Plan:
        """The same without any network."""
        ...

    def execute(self, frozen: Any, caller: Caller, emit: Emit) -> JobResult:
        """The writes. `SubmissionError`: surely nothing runs; `OutcomeUnknownError`: that cannot be known."""
        ...

    def reconcile(self, frozen: Any, caller: Caller, emit: Emit) -> JobResult:
        """After an interruption: the job that is found by its own name, errors as `execute`; never a write."""
        ...


@dataclass(frozen=True, slots=True)
class Workshop:
    """The maker of submissions, and how its frozen ones are stored."""

    submissions: Callable[[Home, Caller], Submissions]
    jobs: Callable[[Home, str, Caller], Jobs | None]
    """The remote life of a service's jobs, None where other tools manage them."""
    configured: Callable[[Home], Sequence[str]]
    """Services whose jobs a project can see without having submitted one."""
    freeze: Callable[[Any], Json]
    thaw: Callable[[Json], Any]
    lease: Callable[[Caller, str], AbstractContextManager[Path]]
    """Keeps an archive of the caller's store from being collected."""


def live() -> Workshop:
    """The real one; the build graph and the backends are imported when the first submission needs them."""
    return Workshop(_submissions, _jobs, _configured, _freeze, _thaw, _lease)


def _submissions(home: Home, caller: Caller) -> Submissions:
    from aj.build.store import Store
    from aj.server.submission import Submissions as Live

    return Live(home, Store(cache_home(caller.env)))


def _jobs(home: Home, service: str, caller: Caller) -> Jobs | None:
    from aj.server.submit import get_execution

    jobs = get_execution(service).jobs
    return jobs(home, caller) if jobs else None


def _configured(home: Home) -> Sequence[str]:
    from aj.server.submit import configured_services

    return configured_services(home)


def _freeze(frozen: Any) -> Json:
    from aj.server.submission import frozen_to_json

    return frozen_to_json(frozen)


def _thaw(document: Json) -> Any:
    from aj.server.submission import frozen_from_json

    return frozen_from_json(document)


def _lease(caller: Caller, sha256: str) -> AbstractContextManager[Path]:
    from aj.build.store import Store

    return Store(cache_home(caller.env)).lease(sha256)
