"""What the daemon makes submissions with: a value, so that another maker can take the place of the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aj.shared.model import Caller
from aj.shared.paths import Home, cache_home

if TYPE_CHECKING:
    from aj.server.submission import Submissions
    from aj.server.submit import Jobs


@dataclass(frozen=True, slots=True)
class Workshop:
    """What makes submissions and what knows jobs."""

    submissions: Callable[[Home, Caller], Submissions]
    """One project's; their methods block and may be called from any thread."""
    jobs: Callable[[Home, str, Caller], Jobs | None]
    """The remote life of a service's jobs, None where other tools manage them."""


def live() -> Workshop:
    """The real one; the build graph and the backends are imported when the first submission needs them."""
    return Workshop(_submissions, _jobs)


def _submissions(home: Home, caller: Caller) -> Submissions:
    from aj.build.store import Store
    from aj.server.submission import Submissions

    return Submissions(home, Store(cache_home(caller.env)))


def _jobs(home: Home, service: str, caller: Caller) -> Jobs | None:
    from aj.server.submit import get_execution

    jobs = get_execution(service).jobs
    return jobs(home, caller) if jobs else None
