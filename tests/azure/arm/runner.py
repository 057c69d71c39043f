"""A job's life: its inputs come from Blob as files, its command runs once for each process, its logs stay."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.azure.arm.resources import find_environment
from tests.azure.arm.world import Job, Settings, Workspace, now

LOGS = "user_logs"
_DATASTORE_URI = re.compile(r"azureml://(?:subscriptions/.+/)?datastores/([^/]+)/paths/(.*)")


class PreparationError(Exception):
    """The job cannot start: an input is not there."""


Download = Callable[[str, str, str, Path], None]
"""Fetch account, container, blob to a path; PreparationError when it is not there."""


class Runner:
    """Starts jobs, each in a thread of its own, and ends them all at last."""

    def __init__(self, settings: Callable[[], Settings], download: Download) -> None:
        self._settings = settings
        self._download = download
        self._running: dict[Job, threading.Thread] = {}

    def start(self, workspace: Workspace, job: Job) -> None:
        thread = threading.Thread(target=self._live, args=(workspace, job), name=job.id, daemon=True)
        self._running = {one: alive for one, alive in self._running.items() if alive.is_alive()}
        self._running[job] = thread
        thread.start()

    def stop(self) -> None:
        """End every job and wait for it."""
        for job in list(self._running):
            job.cancel.set()
        for thread in list(self._running.values()):
            thread.join(10)

    def _live(self, workspace: Workspace, job: Job) -> None:
        try:
            for stage in ("Starting", "Provisioning", "Preparing"):
                self._pause(job)
                job.become(stage)
            nodes = self._prepare(workspace, job)
            job.become("Queued")
            self._pause(job)
            while self._settings().hold and not job.cancel.is_set():
                time.sleep(0.02)
            if job.cancel.is_set():
                self._end(job, "Canceled")
                return
            self._run(workspace, job, nodes)
        except PreparationError as error:
            job.error = str(error)
            self._end(job, "Failed")
        except Exception as error:
            job.error = f"the simulator failed: {error!r}"
            self._end(job, "Failed")
            raise

    def _pause(self, job: Job) -> None:
        job.cancel.wait(self._settings().stage_seconds)

    def _end(self, job: Job, status: str) -> None:
        job.ended_at = now()
        job.become(status)
        job.ended.set()

    def _prepare(self, workspace: Workspace, job: Job) -> list[Path]:
        """A folder for each node, with its inputs as files."""
        image = (find_environment(workspace, job.properties["environmentId"]) or {}).get("image") or ""
        if image.startswith(tuple(self._settings().unpullable)):
            raise PreparationError(f"failed to pull the image `{image}`: no such host or access denied")
        nodes = []
        for rank in range(shape(job.properties)[0]):
            node = job.folder / f"node{rank}"
            (node / "tmp").mkdir(parents=True)
            for name, given in (job.properties.get("inputs") or {}).items():
                if given["jobInputType"] == "uri_file":
                    self._fetch(workspace, given["uri"], node / "inputs" / name)
            for name in job.properties.get("outputs") or {}:
                (node / "outputs" / name).mkdir(parents=True)
            nodes.append(node)
        return nodes

    def _fetch(self, workspace: Workspace, uri: str, folder: Path) -> None:
        found = _DATASTORE_URI.fullmatch(uri)
        if found is None:
            raise PreparationError(f"the input `{uri}` is no path of a datastore")
        store = workspace.datastores.get(found[1].lower())
        if store is None:
            raise PreparationError(f"the workspace has no datastore `{found[1]}`")
        folder.mkdir(parents=True)
        target = folder / Path(found[2]).name
        self._download(store["properties"]["accountName"], store["properties"]["containerName"], found[2], target)
        target.chmod(0o444)

    def _run(self, workspace: Workspace, job: Job, nodes: list[Path]) -> None:
        logs = job.folder / LOGS
        logs.mkdir()
        port = _free_port()
        children: list[subprocess.Popen[bytes]] = []
        job.started_at = now()
        job.become("Running")
        per_node = shape(job.properties)[1]
        try:
            for rank in range(len(nodes) * per_node):
                node = nodes[rank // per_node]
                env = environment(workspace, job, node, rank, port)
                name = "std_log.txt" if "distribution" not in job.properties else f"std_log_process_{rank}.txt"
                children.append(_spawn(command(job.properties, node), env, node, logs / name))
            status = self._wait(job, children)
        finally:
            self._kill(children)
        if status in ("Completed", "Failed"):
            job.become("Finalizing")
            self._pause(job)
        self._end(job, status)

    def _wait(self, job: Job, children: list[subprocess.Popen[bytes]]) -> str:
        """The state the job ends in; one failed process ends all, as the launchers do."""
        limit = seconds((job.properties.get("limits") or {}).get("timeout"))
        end = time.monotonic() + limit
        while True:
            codes = [child.poll() for child in children]
            failed = next(((rank, code) for rank, code in enumerate(codes) if code), None)
            if job.cancel.is_set() or time.monotonic() > end:
                job.error = None if job.cancel.is_set() else f"the time limit of {limit:g} s is over"
                return "Canceled"
            if failed is not None:
                job.error = f"process {failed[0]} exited with {failed[1]}"
                return "Failed"
            if all(code == 0 for code in codes):
                return "Completed"
            time.sleep(0.02)

    def _kill(self, children: list[subprocess.Popen[bytes]]) -> None:
        _signal(children, signal.SIGTERM)
        end = time.monotonic() + self._settings().kill_after
        while any(child.poll() is None for child in children) and time.monotonic() < end:
            time.sleep(0.02)
        _signal(children, signal.SIGKILL)
        for child in children:
            child.wait()


def shape(properties: Mapping[str, Any]) -> tuple[int, int]:
    """Nodes and processes on each. Without a distribution the command runs once, on the first node."""
    distribution = properties.get("distribution")
    if not distribution:
        return 1, 1
    resources = properties.get("resources") or {}
    on_singularity = (resources.get("properties") or {}).get("AISuperComputer") or {}
    nodes = on_singularity.get("instanceCount") or resources.get("instanceCount") or 1
    return nodes, distribution.get("processCountPerInstance") or 1


def command(properties: Mapping[str, Any], node: Path) -> str:
    """The command with every `${{…}}` replaced by plain text, unquoted, as the service does."""

    def value(found: re.Match[str]) -> str:
        kind, name = found[1], found[2]
        if kind == "outputs":
            return str(node / "outputs" / name)
        given = properties["inputs"][name]
        return (
            str(given["value"]) if given["jobInputType"] == "literal" else str(_input_file(node, name) or given["uri"])
        )

    return re.sub(r"\$\{\{\s*(inputs|outputs)\.([^}\s]+)\s*\}\}", value, properties["command"])


def environment(workspace: Workspace, job: Job, node: Path, rank: int, port: int) -> dict[str, str]:
    """What a process of the job sees: nothing of ours but PATH."""
    nodes, per_node = shape(job.properties)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(node),
        "TMPDIR": str(node / "tmp"),
        "LANG": "C.UTF-8",
        "AZUREML_RUN_ID": job.id,
        "AZUREML_EXPERIMENT_NAME": job.properties.get("experimentName", "Default"),
        "AZUREML_ARM_SUBSCRIPTION": workspace.subscription,
        "AZUREML_ARM_RESOURCEGROUP": workspace.group,
        "AZUREML_ARM_WORKSPACE_NAME": workspace.name,
        "AZUREML_WORKSPACE_ID": workspace.guid,
        "AZUREML_CR_NODE_RANK": str(rank // per_node),
    }
    env |= _mounts(job, node)
    env |= _ranks(job.properties.get("distribution"), rank, nodes, per_node, port)
    env |= {name: value or "" for name, value in (job.properties.get("environmentVariables") or {}).items()}
    return env


def _mounts(job: Job, node: Path) -> dict[str, str]:
    env = {f"AZURE_ML_OUTPUT_{name}": str(node / "outputs" / name) for name in job.properties.get("outputs") or {}}
    for name in job.properties.get("inputs") or {}:
        place = _input_file(node, name)
        if place is not None:
            env[f"AZURE_ML_INPUT_{name}"] = str(place)
            if "/virtualclusters/" in job.properties["computeId"].lower():
                env[f"AZUREML_DATAREFERENCE_{name}"] = str(place)
    return env


def _ranks(distribution: Any, rank: int, nodes: int, per_node: int, port: int) -> dict[str, str]:
    kind = (distribution or {}).get("distributionType")
    if kind is None:
        return {}
    shared = {"AZ_BATCH_MASTER_NODE": f"127.0.0.1:{port}", "AZUREML_NODE_COUNT": str(nodes)}
    local = {
        "rank": str(rank),
        "local": str(rank % per_node),
        "node": str(rank // per_node),
        "size": str(nodes * per_node),
    }
    if kind == "Mpi":
        mpi = {"RANK": local["rank"], "LOCAL_RANK": local["local"], "SIZE": local["size"], "LOCAL_SIZE": str(per_node)}
        return shared | {f"OMPI_COMM_WORLD_{name}": value for name, value in mpi.items()}
    torch = {
        "RANK": local["rank"],
        "LOCAL_RANK": local["local"],
        "NODE_RANK": local["node"],
        "WORLD_SIZE": local["size"],
    }
    return shared | torch | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def seconds(duration: str | None) -> float:
    """An ISO 8601 duration of days, hours, minutes and seconds; None: no end."""
    if duration is None:
        return float("inf")
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", duration)
    if found is None:
        return float("inf")
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def _input_file(node: Path, name: str) -> Path | None:
    folder = node / "inputs" / name
    return next(iter(folder.iterdir()), None) if folder.is_dir() else None


def _spawn(line: str, env: Mapping[str, str], node: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=node,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _signal(children: list[subprocess.Popen[bytes]], what: signal.Signals) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, what)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
