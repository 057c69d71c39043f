"""What a scan with digests costs, against a bare walk of the same tree and against reading it all."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from aj.build.select import Selection, select
from aj.build.statcache import StatCache
from aj.shared.model import nowhere
from aj.shared.paths import Home

ROUNDS = 7
WARM = 2.0
SETTLED_SECONDS = 2.5
"""After this a file's times are old enough to be trusted."""
IGNORE = [
    *("*.pyc", "*.log", "*.ckpt", "*.egg-info", "*~", ".DS_Store", ".pytest_cache", "/data/", "dist/", "wandb/"),
    *("/build/*.o", "docs/**/*.html", "!keep.log", "[Bb]in/x", "outputs", "*.tmp", "/.idea/", "*.sw[op]", "core.*"),
    *("checkpoints/", "*.npy", "*.tfevents.*", "**/cache/*.db", ".mypy_cache/", ".ruff_cache/", "/logs/", "mlruns"),
    *("*.safetensors", "node_modules/", "!important.npy"),
]


def run(folder: Path) -> list[str]:
    """Ratio lines for the source tree `folder`: nothing changed, one file changed, nothing known."""
    place = folder.with_name(folder.name + ".stat.cache")
    place.unlink(missing_ok=True)
    time.sleep(SETTLED_SECONDS)
    for _ in range(2):  # the second scan notes the folders' digests
        kept = StatCache(place)
        scan(folder, kept)
        kept.save()
    one = min(folder.rglob("*.py"))
    took = quickest(
        {
            "walk": lambda: walk(os.fsencode(folder)),
            "warm": lambda: scan(folder, StatCache(place)),
            "kept": lambda: scan(folder, kept),
            "changed": lambda: scan_changed(one, folder, place),
            "read": lambda: read(folder),
            "cold": lambda: scan(folder, StatCache()),
        }
    )
    place.unlink()
    walked, whole = took["walk"], took["read"]
    target = f"target ≤ {WARM:g}"
    return [
        line("nothing changed, cache from its file", took["warm"], "bare walk", walked, target),
        line("nothing changed, cache in memory", took["kept"], "bare walk", walked, target),
        line("one file changed, cache from its file", took["changed"], "bare walk", walked, target),
        line("nothing known", took["cold"], "reading and hashing it all in one thread", whole, "target ≤ 1.5"),
    ]


def line(what: str, seconds: float, reference: str, against: float, target: str) -> str:
    """One row."""
    times = f"{seconds * 1000:.0f} ms, {reference}: {against * 1000:.0f} ms"
    return f"scan, {what}: {times}, ratio {seconds / against:.2f} ({target})"


def scan(folder: Path, cache: StatCache) -> Selection:
    """All of the tree by thirty rules: AJ_HOME lies elsewhere."""
    return select(folder, Home(folder.with_name("home")), IGNORE, {}, cache, nowhere)


def scan_changed(one: Path, folder: Path, place: Path) -> None:
    """With other times of one file, whose folder has to be judged again."""
    os.utime(one)
    scan(folder, StatCache(place))


def walk(folder: bytes) -> int:
    """The least that a scan has to do: the number of items, each of them looked at."""
    items = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
            items += 1 + (walk(entry.path) if entry.is_dir(follow_symlinks=False) else 0)
    return items


def read(folder: Path) -> None:
    """The least that digests cost."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                hashlib.file_digest(file, "sha256")


def quickest(works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The least seconds of each, in rounds, so that a busy moment hits all alike."""
    took = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            took[name] = min(took[name], time.perf_counter() - began)
    return took
