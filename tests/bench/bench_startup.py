"""How long aj takes to say something, against `python -c 'import click'`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TARGET = 4.0
ROUNDS = 15
NEVER = ("azure", "kubernetes", "doit", "jinja2")


def run(folder: Path) -> list[str]:
    """Ratio lines for `aj --help` and `aj template show`, and which heavy packages they import."""
    home = folder / ".azure_jobs" / "template"
    home.mkdir(parents=True)
    (home / "gpu.yaml").write_text("base:\nconfig:\n  target: {service: local}\n  jobs: [{instance_count: 1}]\n")
    reference = median_ms([sys.executable, "-c", "import click"], folder)
    lines = []
    for words in (["--help"], ["template", "show", "gpu"]):
        command = [sys.executable, "-m", "aj", *words]
        took = median_ms(command, folder)
        heavy = imported(command, folder)
        lines.append(
            f"aj {' '.join(words)}: {took:.0f} ms, import click: {reference:.0f} ms, ratio {took / reference:.2f}"
            f" (target ≤ {TARGET:g}); imports of {', '.join(NEVER)}: {', '.join(heavy) or 'none'}"
        )
    return lines


def median_ms(command: list[str], folder: Path) -> float:
    """The median wall time of a command, its output thrown away."""
    took = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1000


def imported(command: list[str], folder: Path) -> list[str]:
    """Which of `NEVER` the command imports, by Python's own account."""
    done = subprocess.run(
        command,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
    )
    modules = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    return [name for name in NEVER if any(module == name or module.startswith(name + ".") for module in modules)]
