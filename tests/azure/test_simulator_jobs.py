"""The simulator runs what it accepts: inputs from Blob, ranks, logs, states, cancel, limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.azure.cloud import Azure, Place

SCRIPT = b"""
echo "rank $RANK of $WORLD_SIZE node $NODE_RANK local $LOCAL_RANK master $MASTER_ADDR:$MASTER_PORT"
echo "archive $(cat "$1") run $AZUREML_RUN_ID mine $MINE home ${HOME##*/}"
"""


@pytest.fixture
def place(azure: Azure) -> Place:
    """A workspace with a cluster, an environment, a script and an archive in its default store."""
    made = azure.workspace("ws1")
    azure.compute(made, "gpu")
    azure.environment(made)
    store = azure.blobs(made.account)
    store.get_blob_client(made.container, "code/run.sh").upload_blob(SCRIPT)
    store.get_blob_client(made.container, "code/code.tar.gz").upload_blob(b"BYTES")
    return made


def body(place: Place, **changed: Any) -> dict[str, Any]:
    """A job of one process that runs SCRIPT on the archive."""
    inputs = {
        name: {"jobInputType": "uri_file", "uri": f"azureml://datastores/workspaceblobstore/paths/code/{blob}"}
        for name, blob in (("script", "run.sh"), ("archive", "code.tar.gz"))
    }
    properties = {
        "jobType": "Command",
        "command": "bash ${{inputs.script}} ${{inputs.archive}}",
        "environmentId": f"{place.id}/environments/env/versions/1",
        "computeId": f"{place.id}/computes/gpu",
        "environmentVariables": {"MINE": "yes"},
        "inputs": inputs,
    }
    return {"properties": {**properties, **changed}}


def put(azure: Azure, place: Place, name: str, **changed: Any) -> dict[str, Any]:
    answer = azure.request("PUT", f"{place.id}/jobs/{name}", body(place, **changed))
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_two_nodes_of_two_processes_run_with_the_variables_of_pytorch(azure: Azure, place: Place) -> None:
    put(
        azure,
        place,
        "j1",
        distribution={"distributionType": "PyTorch", "processCountPerInstance": 2},
        resources={"instanceCount": 2},
    )
    shown = azure.wait(place, "j1")
    logs = azure.logs(place, "j1")
    assert shown["status"] == "Completed", json.dumps([shown, logs], indent=1)
    assert sorted(logs) == [f"user_logs/std_log_process_{rank}.txt" for rank in range(4)]
    for rank in range(4):
        text = logs[f"user_logs/std_log_process_{rank}.txt"]
        assert f"rank {rank} of 4 node {rank // 2} local {rank % 2} master 127.0.0.1:" in text
        assert f"archive BYTES run j1 mine yes home node{rank // 2}" in text
    assert shown["history"] == [
        "NotStarted", "Starting", "Provisioning", "Preparing", "Queued", "Running", "Finalizing", "Completed",
    ]  # fmt: skip
