"""What went over the wire: each request with its times, and how many of them had to wait for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Surface = Literal["arm", "blob"]


@dataclass(slots=True)
class Exchange:
    """One request. Times are seconds of the system's monotonic clock, which all processes of a machine share."""

    surface: Surface
    method: str
    path: str
    operation: str
    started: float
    query: Mapping[str, str] = field(default_factory=dict)
    ended: float | None = None
    status: int | None = None
    """None: no answer was sent."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sequential(spans: Iterable[tuple[float, float]]) -> int:
    """The most spans of which each begins after the one before it ended: round trips that cost wall time."""
    count, free = 0, float("-inf")
    for started, ended in sorted(spans, key=lambda span: span[1]):
        if started >= free:
            count, free = count + 1, ended
    return count
