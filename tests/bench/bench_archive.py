"""How fast, how small and in how much memory code is packed, against `tar c | gzip -6` of the same tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from aj.build.archive import pack
from aj.build.select import Selection, select
from aj.build.statcache import StatCache
from aj.shared.model import nowhere
from aj.shared.paths import Home

ROUNDS = 2
FASTER = 3.0
LARGER = 1.05
MEMORY_MB = 200
SPARSE_BYTES = 5 << 30


def run(folder: Path) -> list[str]:
    """Ratio lines for the source tree `folder`: cold, one file changed, and the memory that a huge file takes."""
    # First, because a child's peak is never below what its parent had when it was forked.
    peak = sparse_peak_mb(folder.with_name("sparse"))
    out = folder.with_name(folder.name + ".tar.gz")
    cache = StatCache()
    selection = scan(folder, cache)
    one = min(folder.rglob("*.py"))
    works = {
        "reference": lambda: reference_archive(folder, out),
        "pack": lambda: write(selection, out),
        "cold": lambda: write(scan(folder, StatCache()), out),
        "changed": lambda: write_changed(one, folder, cache, out),
    }
    took, sizes = quickest(works, out)
    reference, packing, cold, changed = took.values()
    size, reference_size = sizes["pack"], sizes["reference"]
    out.unlink()
    return [
        f"archive, pack: {packing:.2f} s, tar c | gzip -6: {reference:.2f} s,"
        f" {reference / packing:.2f} x faster (target ≥ {FASTER:g})",
        f"archive, size: {size} bytes, tar c | gzip -6: {reference_size} bytes,"
        f" ratio {size / reference_size:.3f} (target ≤ {LARGER:g})",
        f"archive, cold with scan and digests: {cold:.2f} s, tar c | gzip -6: {reference:.2f} s,"
        f" {reference / cold:.2f} x faster (target ≥ {FASTER:g})",
        f"archive, one file changed: {changed:.2f} s, cold: {cold:.2f} s, ratio {changed / cold:.2f} (target ≤ 1)",
        f"archive, memory for a sparse file of {SPARSE_BYTES >> 30} GiB: {peak} MB (target ≤ {MEMORY_MB})",
    ]


def scan(folder: Path, cache: StatCache) -> Selection:
    """All of the tree: AJ_HOME lies elsewhere."""
    return select(folder, Home(folder.with_name("home")), (), {}, cache, nowhere)


def write(selection: Selection, out: Path) -> None:
    """The archive as a file."""
    with out.open("wb") as file:
        pack(selection, file, nowhere)


def write_changed(one: Path, folder: Path, cache: StatCache, out: Path) -> None:
    """The archive after a byte more in one file, which goes again at the end; `cache` knows all others."""
    size = one.stat().st_size
    with one.open("ab") as file:
        file.write(b"#")
    write(scan(folder, cache), out)
    os.truncate(one, size)


def reference_archive(folder: Path, out: Path) -> None:
    """`tar c | gzip -6`, the pipe that people write."""
    with out.open("wb") as file:
        tar = subprocess.Popen(["tar", "c", "-C", folder, "."], stdout=subprocess.PIPE)
        subprocess.run(["gzip", "-6"], stdin=tar.stdout, stdout=file, check=True)
        tar.communicate()


def quickest(works: Mapping[str, Callable[[], object]], out: Path) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds of each work's quickest round, in turns because others use this machine too; and what size it wrote."""
    took = dict.fromkeys(works, float("inf"))
    sizes = {}
    for name, work in [*works.items()] * ROUNDS:
        begin = time.perf_counter()
        work()
        took[name] = min(took[name], time.perf_counter() - begin)
        sizes[name] = out.stat().st_size
    return took, sizes


def sparse_peak_mb(folder: Path) -> int:
    """Peak resident memory, in MB, of a process that scans and packs a file of `SPARSE_BYTES` zeros."""
    folder.mkdir()
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(SPARSE_BYTES)
    script = (
        "import resource, sys; from pathlib import Path; from tests.bench.bench_archive import *\n"
        "write(scan(Path(sys.argv[1]), StatCache()), Path('/dev/null'))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", script, folder], env=env, capture_output=True, text=True, check=True)
    (folder / "weights.bin").unlink()
    folder.rmdir()
    kilobytes = int(ran.stdout) // (1024 if sys.platform == "darwin" else 1)
    return kilobytes // 1024
