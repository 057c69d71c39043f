"""What a node of the graph is: a frozen value, addressed by the digest of its key and of what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aj.shared.jsonio import Json
from aj.shared.model import Why

Kind = Literal["pure", "read", "write"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `run` gives the target's bytes; it is called only when the step is stale."""

    name: str
    kind: Kind
    reads: tuple[Path, ...]
    """Targets of earlier steps: a changed byte in one makes this step stale."""
    writes: Path
    """The target."""
    key: Mapping[str, Json]
    """Everything else that decides the target's bytes, small enough to read in a diff."""
    run: Callable[[], bytes]
    also: Callable[[bytes], bool] = lambda target: True
    """A further condition of freshness on the target's bytes, such as an archive being in the store."""


def key_changes(old: Mapping[str, Json], new: Mapping[str, Json]) -> list[Why]:
    """What differs between two keys: one reason for each entry, two levels deep."""
    found: list[Why] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if name == "format":
            found.append(Why("format_changed", f"{before} → {after}"))
        elif name == "sources" and isinstance(before, dict) and isinstance(after, dict):
            paths = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
            found.extend(Why("input_changed", path) for path in paths)
        elif isinstance(before, dict) and isinstance(after, dict):
            keys = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
            found.extend(Why("key_changed", f"{name}.{key}") for key in keys)
        else:
            found.append(Why("key_changed", name))
    return found
