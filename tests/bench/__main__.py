"""`python -m tests.bench`: speed and memory as ratios against references measured in the same run.

One line a row: what, measured, reference, ratio, target. Nothing here fails: numbers are read by people.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tests.bench.bench_archive as bench_archive
import tests.bench.bench_blob as bench_blob
import tests.bench.bench_daemon as bench_daemon
import tests.bench.bench_match as bench_match
import tests.bench.bench_scan as bench_scan
import tests.bench.bench_startup as bench_startup
from tests.bench.tree import source_tree


def main() -> None:
    """Run every benchmark, or those named on the command line: startup, scan, archive, daemon, blob, match."""
    chosen = sys.argv[1:] or ["startup", "scan", "archive", "daemon", "blob", "match"]
    with tempfile.TemporaryDirectory(prefix="aj-bench-") as folder:
        root = Path(folder)
        if "startup" in chosen:
            show(bench_startup.run(root / "startup"))
        if {"scan", "archive"} & {*chosen}:
            tree = source_tree(root / "tree")
            if "scan" in chosen:
                show(bench_scan.run(tree))
            if "archive" in chosen:
                show(bench_archive.run(tree))
        if "daemon" in chosen:
            show(bench_daemon.run(root / "daemon"))
        if "match" in chosen:
            show(bench_match.run())
        if "blob" in chosen:
            show(bench_blob.run(root / "blob"))


def show(lines: list[str]) -> None:
    """Print as soon as they are known."""
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
