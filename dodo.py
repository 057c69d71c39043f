"""The chores of this repository, and the build graph of every fixture as doit tasks.

`doit list` names the chores, `doit list --all` the graph too; `doit info graph:<case>:payload` explains a step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixtures.cases import graph_tasks

ROOT = Path(__file__).parent
BIN = Path(sys.executable).parent
(ROOT / "build").mkdir(exist_ok=True)
DOIT_CONFIG = {"default_tasks": ["lint", "types", "test"], "dep_file": str(ROOT / "build" / "doit.db"), "verbosity": 2}


def _chore(*commands: str, doc: str) -> dict[str, Any]:
    return {"actions": list(commands), "doc": doc, "uptodate": [False], "verbosity": 2}


def _tool(name: str) -> str:
    return str(BIN / name)


def task_lint() -> dict[str, Any]:
    """Style, layers and shell scripts."""
    scripts = " ".join(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "backends").rglob("*.sh")))
    return _chore(
        f"{_tool('ruff')} check .",
        f"{_tool('ruff')} format --check .",
        f"{_tool('lint-imports')} --no-logo",
        f"{_tool('shellcheck')} .ci/run {scripts}",
        doc="ruff, import contracts, shellcheck",
    )


def task_types() -> dict[str, Any]:
    """mypy, strict."""
    return _chore(f"{_tool('mypy')}", doc="mypy --strict over aj, dodo.py and tests")


def task_test() -> dict[str, Any]:
    """Every test, on all processors."""
    return _chore(f"{sys.executable} -m pytest -q -n auto --dist worksteal", doc="all tests")


def task_snapshots() -> dict[str, Any]:
    """Rewrite the golden files and check them; review them with `git diff fixtures`."""
    golden = f"{sys.executable} -m pytest -q tests/e2e/test_fixtures_golden.py"
    # The plugin fails each test whose files it rewrote, so the second run is the verdict.
    rewrite = f"{golden} --snapshot-update --allow-snapshot-deletion > /dev/null || true"
    return _chore(rewrite, golden, doc="golden files")


def task_bench() -> dict[str, Any]:
    """Ratios against references measured in the same run."""
    return _chore(f"{sys.executable} -m tests.bench", doc="speed and memory as ratios")


def task_docs() -> dict[str, Any]:
    """docs/commands.md from the help texts."""
    return _chore(f"{sys.executable} docs/generate.py", doc="docs/commands.md from the help texts")


def task_graph() -> Iterator[dict[str, Any]]:
    """`graph:<case>:<step>`: the graph that `aj run` executes, for every fixture."""
    yield from graph_tasks()
