"""The registry of executions: the daemon's half of each backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aj.build.effects import Effects, JobReceipt
from aj.shared.jsonio import Json
from aj.shared.model import Caller, JobSpec
from aj.shared.paths import Home
from aj.shared.registry import Registry


@dataclass(frozen=True, slots=True)
class LogChunk:
    """New output of one stream; `stream` is a rank or a log file's name."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class LogPage:
    """What was new since a cursor, the cursor after it, and whether nothing will follow."""

    chunks: tuple[LogChunk, ...]
    cursor: Mapping[str, int]
    """Stream → bytes read."""
    finished: bool
    streams: tuple[str, ...] = ()
    """All that there are, read or not."""
    note: str | None = None
    """Why there is nothing, where that needs a word."""


class Jobs(Protocol):
    """The remote life of one backend's jobs. `name` is a remote name, an AJ_ID or a unique start of one."""

    def list_jobs(self) -> Iterable[dict[str, Json]]:
        """Newest first, read as they are taken: id, name, azure_name, status, backend, created_at, ended_at, nodes."""
        ...

    def show(self, name: str) -> dict[str, Json]:
        """One of them with everything known; `NotFoundError` lists near names."""
        ...

    def logs(self, name: str, cursor: Mapping[str, int], stream: str | None = None) -> LogPage:
        """Output since `cursor` (`{}` for all of it), in bounded pages; of one stream or of all that the job wrote."""
        ...

    def cancel(self, name: str) -> str:
        """End it; the status after. A job that has ended stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class Execution:
    """What the daemon needs to know of a backend."""

    effects: Callable[[Home, Caller], Effects]
    jobs: Callable[[Home, Caller], Jobs] | None
    """None where jobs are managed by other tools after submission."""
    configured: Callable[[Home], bool] = lambda home: False
    """Whether a project has such jobs although it never submitted one."""
    settle: Callable[[Caller, JobSpec, Json, JobReceipt | None], str | None] = lambda *_: None
    """Write: what an interrupted submission made beside its job is given to the job that was found, or removed when
    there is surely none. What a person must still do, or None."""


_EXECUTIONS = Registry(
    Execution,
    {
        "amlt": "aj.server.submit.amlt:EXECUTION",
        "aml": "aj.server.submit.aml:EXECUTION",
        "local": "aj.server.submit.local:EXECUTION",
        "sing": "aj.server.submit.aml:SING",
        "volcano": "aj.server.submit.volcano.submit:EXECUTION",
    },
    "aj.executions",
    "no execution for service",
)
get_execution = _EXECUTIONS.get
"""The execution registered for a `JobSpec.backend`; `UnknownServiceError` lists the registered ones."""
services = _EXECUTIONS.names


def configured_services(home: Home) -> list[str]:
    """The services whose jobs a project can see by its configuration alone."""
    return [service for service in ("aml",) if get_execution(service).configured(home)]
