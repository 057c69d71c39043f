"""The bootstrap and the runner do their work on the simulator's nodes, as they would on a cluster's."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.azure.cloud import Azure

TRAIN = b"""
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR")
print("ranks", *(os.environ[name] for name in names), open("setup-ran").read().strip())
"""


def archive(project: Path) -> bytes:
    """A code archive with a script and the runner."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in (
            ("train.py", TRAIN),
            ("aj_runner.sh", (project / "backends/archive/aj_runner.sh").read_bytes()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("distribution", ["PyTorch", "Mpi"])
def test_two_nodes_of_two_processes_unpack_set_up_once_a_node_and_train(
    azure: Azure, project: Path, distribution: str
) -> None:
    place = azure.workspace("ws1")
    azure.compute(place, "gpu")
    environment = azure.environment(place)
    code = archive(project)
    digest = hashlib.sha256(code).hexdigest()
    store = azure.blobs(place.account).get_container_client(place.container)
    store.upload_blob(f"LocalUpload/{digest}/code.tar.gz", code)
    store.upload_blob("LocalUpload/abc/bootstrap.sh", (project / "backends/archive/bootstrap.sh").read_bytes())
    uri = "azureml://datastores/workspaceblobstore/paths/LocalUpload"
    body: dict[str, Any] = {
        "jobType": "Command",
        "command": "bash ${{inputs.aj_bootstrap}} ${{inputs.aj_code_archive}}",
        "environmentId": environment,
        "computeId": f"{place.id}/computes/gpu",
        "inputs": {
            "aj_bootstrap": {"jobInputType": "uri_file", "uri": f"{uri}/abc/bootstrap.sh"},
            "aj_code_archive": {"jobInputType": "uri_file", "uri": f"{uri}/{digest}/code.tar.gz"},
        },
        "environmentVariables": {
            "AJ_ID": "id1",
            "AJ_CODE_ARCHIVE_SHA256": digest,
            "AJ_NODES": "2",
            "AJ_PROCESSES_PER_NODE": "2",
            "AJ_SETUP": 'echo "setup" >> setup-ran',
            "AJ_COMMAND": "python train.py",
        },
        "distribution": {"distributionType": distribution, "processCountPerInstance": 2},
        "resources": {"instanceCount": 2},
    }
    azure.request("PUT", f"{place.id}/jobs/j1", {"properties": body}).raise_for_status()
    shown = azure.wait(place, "j1")
    logs = azure.logs(place, "j1")
    assert shown["status"] == "Completed", f"{shown} {logs}"
    for rank in range(4):
        text = logs[f"user_logs/std_log_process_{rank}.txt"]
        assert f"ranks {rank} 4 {rank % 2} {rank // 2} 127.0.0.1 setup\n" in text, text
