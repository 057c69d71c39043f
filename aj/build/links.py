"""Where the symbolic links of a tree lead, as the unpacked tree will follow them: none may leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aj.build.beneath import spellings

_HOPS = 40
"""As many links as Linux follows on one way; more are a circle, which dangles and harms nobody."""


@dataclass(frozen=True, slots=True)
class Link:
    """One link: its target as it is packed, and where that leads (None: out of the tree)."""

    path: bytes
    target: bytes
    leads_to: bytes | None


def resolve(root: Path, targets: Mapping[bytes, bytes]) -> list[Link]:
    """The links by path. An absolute target below `root` becomes relative: the tree lies elsewhere in the job."""
    tops = spellings(root)
    relative = {path: _relative(path, target, tops) for path, target in targets.items()}
    return [Link(path, target, _follow(path, relative)) for path, target in sorted(relative.items())]


def _relative(path: bytes, target: bytes, tops: Sequence[bytes]) -> bytes:
    for top in tops:
        if target == top or target.startswith(top + b"/"):
            return b"../" * path.count(b"/") + (target[len(top) :].lstrip(b"/") or b".")
    return target


def _follow(path: bytes, targets: Mapping[bytes, bytes]) -> bytes | None:
    at = path.split(b"/")
    ahead: list[bytes] = []
    for _ in range(_HOPS):
        target = targets[b"/".join(at)]
        if target.startswith(b"/"):
            return None
        at.pop()
        ahead += target.split(b"/")[::-1]
        while ahead and b"/".join(at) not in targets:
            part = ahead.pop()
            if part == b".." and not at:
                return None
            if part == b"..":
                at.pop()
            elif part not in (b"", b"."):
                at.append(part)
        if b"/".join(at) not in targets:
            break
    return b"/".join(at)
