"""What was read of Azure, remembered on disk with its age."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aj.shared.clock import now_ns
from aj.shared.jsonio import Json, canonical, read_json, write_file
from aj.shared.model import Emit, Event, to_json
from aj.shared.paths import Home


@dataclass(frozen=True, slots=True)
class Known:
    """Facts, when they were read (nanoseconds), and what is not there yet: path → body of its PUT."""

    facts: dict[str, Json]
    read_ns: int
    missing: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Memory:
    """The facts of one kind of job in one project, on disk: workspace, compute, image, mounts and login decide."""

    path: Path

    def recall(self) -> Known | None:
        """What is known, whatever its age."""
        try:
            return Known(**read_json(self.path))
        except (OSError, ValueError, TypeError):
            return None

    def keep(self, known: Known) -> None:
        """Remember."""
        write_file(self.path, canonical(to_json(known)))

    def fresh(self, seconds: float, what: str, read: Callable[[], Known], emit: Emit) -> Known:
        """What is known, when it is not older than `seconds`, else what `read` gives; the age of `what` is told."""
        known = self.recall()
        age = (now_ns() - known.read_ns) / 1e9 if known else 0.0
        if known is None or not 0 <= age < seconds:
            emit(Event("note", f"reading {what}"))
            known = read()
            self.keep(known)
        elif age >= 60:
            emit(Event("note", f"{what}: read {age / 60:.0f} min ago"))
        return known

    def forget(self) -> None:
        """Read everything again next time."""
        self.path.unlink(missing_ok=True)


def source_of(home: Home, facts: Json) -> Memory | None:
    """The memory that a submission's facts, to which others were added, came from; None when it was forgotten."""
    for path in folder(home).glob("*.json"):
        known = Memory(path).recall()
        if known and all(facts.get(name) == fact for name, fact in known.facts.items()):
            return Memory(path)
    return None


def folder(home: Home) -> Path:
    """The remembered facts of a project."""
    return home.build / "azure"
