"""The whole way of a Volcano job through `aj` and its daemon: what a person sees, and what a killed daemon leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aj.server.submit.volcano.kubectl import REQUEST_SECONDS
from aj.server.submit.volcano.submit import LOOKS
from tests.azure.cloud import Azure
from tests.cluster.caller import Person, a_kubectl, storage_of
from tests.cluster.double import Double, Fault, serving
from tests.cluster.kube import until

pytestmark = pytest.mark.timeout(300)
SURE = 150.0
"""Seconds in which a look that must be sure is over."""
ROOT = Path(__file__).resolve().parents[2]


class Aj:
    """`aj` as a process in a person's project."""

    def __init__(self, person: Person) -> None:
        own = {name: str(person.folder / name) for name in ("cache", "run")}
        path = f"{person.caller.env['PATH']}:{os.environ['PATH']}"
        places = {"AJ_CACHE_HOME": own["cache"], "AJ_RUNTIME_DIR": own["run"], "PYTHONPATH": str(ROOT), "PATH": path}
        self.env = {**person.caller.env, **places}
        self.cwd = person.home.root.parent

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "aj", *words]
        pipe: Any = subprocess.PIPE
        return subprocess.Popen(
            argv, cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def __call__(self, *words: str) -> Any:
        """The document that `aj --json WORDS` prints."""
        child = self.start("--json", *words)
        out, err = child.communicate(timeout=100)
        assert child.returncode == 0, f"{out}\n{err}"
        return json.loads(out)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Double]:
    with serving(tmp_path) as double:
        double.put("persistentvolumeclaims", "team-code", "default", spec={"accessModes": ["ReadWriteMany"]})
        yield double


@pytest.fixture
def aj(cluster: Double, tmp_path: Path, azure: Azure) -> Iterator[Aj]:
    (tmp_path / "person").mkdir()
    person = Person(tmp_path / "person", cluster.kubeconfig(tmp_path / "kubeconfig"), a_kubectl())
    storage_of(person, azure)
    made = Aj(person)
    yield made
    made.start("daemon", "stop", "--force").communicate(timeout=60)


def test_plan_and_run_by_blob_storage(aj: Aj, cluster: Double) -> None:
    plan = aj("plan", "-t", "train", "-n", "2", "train.py")
    assert {step["name"]: step["verdict"] for step in plan["steps"] if step["kind"] == "write"} == {
        "upload-code": "would",
        "submit": "would",
    }
    result = aj("run", "-t", "train", "-n", "2", "train.py")
    (name,) = cluster.names("jobs")
    assert (result["status"], result["azure_name"]) == ("submitted", name)
    assert f"kubectl --context admin --namespace default delete jobs.batch.volcano.sh {name}" in result["note"]
    (secret,) = cluster.names("secrets")
    owner = cluster.objects["secrets", "default", secret]["metadata"]["ownerReferences"][0]
    assert owner["name"] == name
    told = json.dumps([plan, result]) + "".join(
        path.read_text(errors="replace") for path in aj.cwd.rglob("*") if path.is_file() and path.suffix != ".db"
    )
    assert "skoid" not in told and "sig=" not in told
    database = b"".join(path.read_bytes() for path in aj.cwd.rglob("*") if path.is_file())
    assert b"skoid" not in database


def test_a_daemon_killed_between_secret_and_job_leaves_neither(aj: Aj, cluster: Double) -> None:
    """The server gets the request and drops it; the daemon is dead by then; the next one looks, and cleans up."""
    cluster.faults.append(Fault("POST", "/jobs$", "hang"))
    client = aj.start("--json", "run", "-t", "train", "-n", "2", "train.py")
    until(lambda: any(path.endswith("/jobs") for verb, path, _ in cluster.requests if verb == "POST"), bool, SURE)
    assert len(cluster.names("secrets")) == 1
    os.kill(aj("daemon", "status")["pid"], signal.SIGKILL)
    out, _ = client.communicate(timeout=100)
    assert (client.returncode, json.loads(out)["status"]) == (4, "unknown")
    until(lambda: aj("queue", "list")["entries"][0]["state"] == "failed", bool, SURE)
    assert sum(LOOKS) > REQUEST_SECONDS, "or its kubectl, which is alive, could still make the job"
    assert cluster.names("secrets") == cluster.names("jobs") == []


def test_a_daemon_killed_between_job_and_record_is_followed_by_one_that_adopts_it(aj: Aj, cluster: Double) -> None:
    aj.env |= {"AJ_DEBUG": "1", "AJ_DEBUG_STOP_AT": "executed"}
    daemon = aj("daemon", "start")["pid"]
    for name in ("AJ_DEBUG", "AJ_DEBUG_STOP_AT"):
        del aj.env[name]
    client = aj.start("--json", "run", "-t", "train", "-n", "2", "train.py")
    state = Path(f"/proc/{daemon}/stat")
    until(lambda: state.read_text().rpartition(") ")[2].startswith("T"), bool, SURE)
    os.kill(daemon, signal.SIGKILL)
    client.communicate(timeout=100)
    until(lambda: aj("queue", "list")["entries"][0]["state"] == "done", bool, SURE)
    (entry,) = aj("queue", "list")["entries"]
    assert cluster.names("jobs") == [entry["result"]["azure_name"]] and "adopted" in entry["result"]["note"]
    (secret,) = cluster.names("secrets")
    owner = cluster.objects["secrets", "default", secret]["metadata"]["ownerReferences"][0]
    assert owner["name"] == entry["result"]["azure_name"]
