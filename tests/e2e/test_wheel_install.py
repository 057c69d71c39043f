"""A wheel in a fresh virtual environment and an empty folder runs the main job: schemas and backends are inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

MAIN = Path(__file__).parents[2] / "docs" / "first-job" / "train.py"


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `pip wheel` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(project)]
    subprocess.run(command, check=True, cwd=folder)
    return next(folder.glob("aj-*.whl"))


def test_the_wheel_puts_nothing_beside_its_own_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"aj"}
    assert {"aj/backends/archive/bootstrap.sh", "aj/schemas/template.schema.json"} <= set(names)


@pytest.mark.timeout(300)
def test_a_fresh_environment_runs_the_main_job(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    subprocess.run([tmp_path / "venv" / "bin" / "python", "-m", "pip", "install", "-q", str(wheel)], check=True)
    project = tmp_path / "empty"
    project.mkdir()
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path / "person"),
        "AJ_RUNTIME_DIR": str(tmp_path / "run"),
        "AJ_CACHE_HOME": str(tmp_path / "cache"),
    } | {name: os.environ[name] for name in ("LANG", "UV_CACHE_DIR") if name in os.environ}
    aj = tmp_path / "venv" / "bin" / "aj"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([aj, *words], cwd=project, env=env, capture_output=True, text=True, timeout=120)

    try:
        assert run("init").returncode == 0
        (project / "train.py").write_bytes(MAIN.read_bytes())
        words = ["run", "-t", "local", "-n", "2", "-p", "1", "--ppn", "2", "train.py", "--lr", "1e-3", "a b", "$HOME"]
        done = run(*words)
        assert done.returncode == 0, done.stderr
        lines = sorted(line for line in done.stdout.splitlines() if "process" in line)
        assert len(lines) == 4
        assert all(f"process {rank} of 4" in line for rank, line in enumerate(lines))
        assert all(line.endswith("arguments ['--lr', '1e-3', 'a b', '$HOME']") for line in lines)
        again = json.loads(run("--json", *words[:-3], "b").stdout)
        assert (again["status"], again["archive"]["reused"], again["job_status"]) == ("submitted", True, "Completed")
    finally:
        run("daemon", "stop", "--force")
