"""Azurite is installed once whoever asks, and no server of the tests outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.azure.azurite import Azurite, installed
from tests.azure.certificate import Certificate
from tests.azure.cloud import SUBSCRIPTION, Azure
from tests.azure.fake_az import PROJECT, FakeAz
from tests.azure.fixtures import start_simulator

NPM = """#!/bin/sh
echo call >> "$(dirname "$0")/calls"
while [ "$1" != --prefix ]; do shift; done
sleep 0.3
mkdir -p "$2/node_modules/azurite/dist/src/blob"
echo done > "$2/node_modules/azurite/dist/src/blob/main.js"
"""


def programs(folder: Path, **scripts: str) -> Path:
    """A folder for PATH with these scripts."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def test_four_processes_install_once(tmp_path: Path) -> None:
    path = programs(tmp_path / "bin", npm=NPM, node="#!/bin/sh\n")
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "AJ_TEST_CACHE": str(tmp_path / "cache")}
    code = "from tests.azure import azurite; print(azurite.installed())"
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env=env, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = {run.communicate()[0].strip() for run in runs}
    assert len(said) == 1
    assert Path(said.pop()).read_text() == "done\n"
    assert (path / "calls").read_text() == "call\n"


def test_without_npm_or_with_a_failing_one_the_test_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJ_TEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(programs(tmp_path / "none")))
    with pytest.raises(pytest.skip.Exception, match="node and npm"):
        installed()
    failing = programs(tmp_path / "failing", npm="#!/bin/sh\necho no network >&2; exit 1\n", node="#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{failing}:/usr/bin:/bin")
    with pytest.raises(pytest.skip.Exception, match="no network"):
        installed()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path, how: signal.Signals) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from tests.azure.child import Server;"
        "Server(['sleep', '300'], Path(sys.argv[1]), os.environ); print('started', flush=True); time.sleep(300)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    env = {**os.environ, "MARK": str(tmp_path)}
    with subprocess.Popen(command, cwd=PROJECT, env=env, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        while not servers(tmp_path):
            time.sleep(0.02)
        parent.send_signal(how)
    while servers(tmp_path):
        time.sleep(0.02)


def servers(mark: Path) -> list[str]:
    """The processes named `sleep` with our mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, env = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if command.startswith(b"sleep\0") and f"MARK={mark}".encode() in env.split(b"\0"):
            found.append(folder.name)
    return found


def test_a_simulator_that_stops_ends_its_jobs(
    tmp_path: Path, azurite: Azurite, certificate: Certificate, contracts: Path
) -> None:
    addresses, server = start_simulator(tmp_path, azurite, certificate, contracts)
    try:
        azure = Azure(addresses, azurite, FakeAz(tmp_path / "az"))
        azure.control("subscription", id=SUBSCRIPTION, name="x")
        place = azure.workspace("ws1")
        azure.compute(place, "c")
        job = {"jobType": "Command", "command": "exec sleep 300", "environmentVariables": {"MARK": str(tmp_path)}}
        job |= {"environmentId": azure.environment(place), "computeId": f"{place.id}/computes/c"}
        azure.request("PUT", f"{place.id}/jobs/j1", {"properties": job}).raise_for_status()
        while not servers(tmp_path):
            time.sleep(0.02)
        azure.close()
    finally:
        server.stop()
    assert servers(tmp_path) == []
