"""Faults on order: which requests they hit, how often, and what happens to those."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["lose_before", "lose_after", "lose_during", "throttle", "refuse", "slow", "barrier"]


@dataclass(slots=True)
class Fault:
    """What to do to matching requests. `match` is a regular expression searched in `METHOD Operation /path?query`."""

    kind: Kind
    match: str
    surface: Literal["arm", "blob"] = "arm"
    times: int = 1
    """How many requests it hits; the others pass."""
    skip: int = 0
    """How many matching requests pass before."""
    retry_after: float = 0
    """throttle: seconds in Retry-After; refuse: sent when above 0."""
    status: int = 503
    code: str = "ServerBusy"
    message: str = "The server is busy."
    seconds: float = 0
    """slow: how long the request waits before it is served."""
    bytes: int = 0
    """lose_during: how much of the body is read before the connection breaks."""
    parties: int = 2
    """barrier: how many requests wait for each other."""
    hits: int = 0
    _barrier: asyncio.Barrier | None = field(default=None, repr=False)

    async def meet(self) -> None:
        """Wait until as many matching requests as `parties` are here; ten seconds at most, then go on."""
        if self._barrier is None:
            self._barrier = asyncio.Barrier(self.parties)
        try:
            async with asyncio.timeout(10):
                await self._barrier.wait()
        except (TimeoutError, asyncio.BrokenBarrierError):
            pass


class Faults:
    """The ordered faults that are still to come."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def order(self, wanted: dict[str, Any]) -> None:
        """Add one; unknown keys and kinds raise, so that a test cannot order nothing."""
        fault = Fault(**wanted)
        if fault.kind not in Kind.__args__:  # type: ignore[attr-defined]
            raise ValueError(f"no fault `{fault.kind}`")
        try:
            re.compile(fault.match)
        except re.error as error:
            raise ValueError(f"`{fault.match}` is no regular expression: {error}") from error
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def waiting(self) -> list[str]:
        """The faults that have not hit as often as they were ordered for."""
        return [
            f"{fault.kind} {fault.match}: {fault.hits} of {fault.times}"
            for fault in self._faults
            if fault.times > fault.hits
        ]

    def next(self, surface: str, line: str) -> Fault | None:
        """The fault that this request takes, if any."""
        for fault in self._faults:
            if fault.surface != surface or fault.hits >= fault.times or re.search(fault.match, line) is None:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.hits += 1
            return fault
        return None
