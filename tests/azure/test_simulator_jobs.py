"""The simulator runs what it accepts: inputs from Blob, ranks, logs, states, cancel, limits."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.azure import singularity
from tests.azure.cloud import Azure, Place

SCRIPT = b"""
echo "rank $RANK of $WORLD_SIZE node $NODE_RANK local $LOCAL_RANK master $MASTER_ADDR:$MASTER_PORT"
echo "mpi $OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_LOCAL_RANK/$OMPI_COMM_WORLD_SIZE batch $AZ_BATCH_MASTER_NODE"
echo "archive $(cat "$1") run $AZUREML_RUN_ID mine $MINE home ${HOME##*/} leaked ${PYTEST_CURRENT_TEST-nothing}"
"""
PYTORCH = {"distributionType": "PyTorch", "processCountPerInstance": 2}


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
    """Submit; the answer."""
    answer = azure.request("PUT", f"{place.id}/jobs/{name}", body(place, **changed))
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_two_nodes_of_two_processes_run_with_the_variables_of_pytorch(azure: Azure, place: Place) -> None:
    put(azure, place, "j1", distribution=PYTORCH, resources={"instanceCount": 2})
    shown = azure.wait(place, "j1")
    logs = azure.logs(place, "j1")
    assert shown["status"] == "Completed", json.dumps([shown, logs], indent=1)
    assert sorted(logs) == [f"user_logs/std_log_process_{rank}.txt" for rank in range(4)]
    for rank in range(4):
        text = logs[f"user_logs/std_log_process_{rank}.txt"]
        assert f"rank {rank} of 4 node {rank // 2} local {rank % 2} master 127.0.0.1:" in text
        assert f"archive BYTES run j1 mine yes home node{rank // 2} leaked nothing" in text
    assert " ".join(shown["history"]) == (
        "NotStarted Starting Provisioning Preparing Queued Running Finalizing Completed"
    )


def test_mpi_sets_the_variables_of_openmpi_and_none_of_pytorch(azure: Azure, place: Place) -> None:
    mpi = {"distributionType": "Mpi", "processCountPerInstance": 1}
    put(azure, place, "j1", distribution=mpi, resources={"instanceCount": 2})
    azure.wait(place, "j1")
    logs = azure.logs(place, "j1")
    for rank in range(2):
        text = logs[f"user_logs/std_log_process_{rank}.txt"]
        assert text.startswith("rank  of  node  local  master :\n")
        assert f"mpi {rank}/0/2 batch 127.0.0.1:" in text


def test_a_job_that_fails_says_which_process_did(azure: Azure, place: Place) -> None:
    put(azure, place, "j1", command="echo out; echo err >&2; exit $((RANK * 3))", distribution=PYTORCH)
    shown = azure.wait(place, "j1")
    assert (shown["status"], shown["error"]) == ("Failed", "process 1 exited with 3")
    assert azure.logs(place, "j1")["user_logs/std_log_process_1.txt"] == "out\nerr\n"
    assert azure.request("GET", f"{place.id}/jobs/j1").json()["properties"]["status"] == "Failed"
    assert "process 1" in azure.request("GET", f"/history/v1.0{place.id}/runs/j1").json()["error"]["error"]["message"]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("azureml://datastores/workspaceblobstore/paths/code/gone.sh", "404"),
        ("azureml://datastores/other/paths/code/run.sh", "no datastore `other`"),
        ("https://example.org/x", "no path of a datastore"),
    ],
)
def test_an_input_that_is_not_there_fails_the_job_before_it_runs(
    azure: Azure, place: Place, uri: str, reason: str
) -> None:
    put(azure, place, "j1", command="bash ${{inputs.x}}", inputs={"x": {"jobInputType": "uri_file", "uri": uri}})
    shown = azure.wait(place, "j1")
    assert shown["status"] == "Failed"
    assert reason in shown["error"]
    assert "Running" not in shown["history"]
    assert azure.logs(place, "j1") == {}


def test_an_image_that_cannot_be_pulled_fails_the_job_before_it_runs(azure: Azure, place: Place) -> None:
    azure.settings(unpullable=["ubuntu:"])
    put(azure, place, "j1")
    shown = azure.wait(place, "j1")
    assert shown["status"] == "Failed"
    assert "failed to pull the image `ubuntu:24.04`" in shown["error"]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_cancel_answers_202_and_ends_the_whole_tree(azure: Azure, place: Place) -> None:
    azure.settings(kill_after=0.3)
    put(azure, place, "j1", command='trap "" TERM; sleep 300 & echo "$$ $!"; wait; wait')
    azure.wait(place, "j1", "Running")
    pids: list[int] = []
    while len(pids) < 2:
        pids = [int(word) for word in azure.logs(place, "j1").get("user_logs/std_log.txt", "").split()]
    answer = azure.request("POST", f"{place.id}/jobs/j1/cancel")
    assert answer.status_code == 202
    assert azure.request("GET", f"{place.id}/jobs/j1").json()["properties"]["status"] == "CancelRequested"
    assert azure.request("GET", answer.headers["location"]).status_code == 202
    assert azure.wait(place, "j1")["status"] == "Canceled"
    assert azure.request("GET", answer.headers["location"]).status_code == 200
    assert not any(alive(pid) for pid in pids)
    assert azure.request("POST", f"{place.id}/jobs/j1/cancel").status_code == 200


def test_a_job_that_is_held_can_be_canceled_before_it_has_logs(azure: Azure, place: Place) -> None:
    azure.settings(hold=True)
    put(azure, place, "j1")
    azure.wait(place, "j1", "Queued")
    assert azure.logs(place, "j1") == {}
    azure.request("POST", f"{place.id}/jobs/j1/cancel")
    shown = azure.wait(place, "j1")
    assert shown["status"] == "Canceled"
    assert "Running" not in shown["history"]


def test_the_time_limit_cancels(azure: Azure, place: Place) -> None:
    put(azure, place, "j1", command="sleep 300", limits={"jobLimitsType": "Command", "timeout": "PT1S"})
    shown = azure.wait(place, "j1")
    assert (shown["status"], shown["error"]) == ("Canceled", "the time limit of 1 s is over")


def test_reset_ends_what_runs(azure: Azure, place: Place) -> None:
    put(azure, place, "j1", command="echo $$; exec sleep 300")
    azure.wait(place, "j1", "Running")
    text = ""
    while not text:
        text = azure.logs(place, "j1").get("user_logs/std_log.txt", "")
    azure.control("reset")
    assert not alive(int(text))
    assert azure.control("job_ids") == []


def test_logs_come_in_ranges_by_signed_urls_that_take_no_token(azure: Azure, place: Place) -> None:
    put(azure, place, "j1", command="printf 0123456789")
    azure.wait(place, "j1")
    page = azure.request(
        "GET", f"/artifact/v2.0{place.id}/artifacts/prefix/contentinfo/ExperimentRun/dcid.j1/user_logs/"
    )
    [row] = page.json()["value"]
    assert row["path"] == "user_logs/std_log.txt"
    url = row["contentUri"]
    with httpx.Client(verify=ssl.create_default_context(cafile=str(azure.ca_file))) as client:
        part = client.get(url, headers={"x-ms-range": "bytes=4-6"})
        assert (part.status_code, part.text, part.headers["content-range"]) == (206, "456", "bytes 4-6/10")
        assert client.get(url, headers={"Range": "bytes=8-"}).text == "89"
        beyond = client.get(url, headers={"Range": "bytes=10-"})
        assert (beyond.status_code, beyond.headers["x-ms-error-code"]) == (416, "InvalidRange")
        assert client.get(url, headers={"Authorization": "Bearer x"}).status_code == 403
        assert client.get(url.replace("sig=", "sig=0")).status_code == 403
        azure.control("write_log", workspace=place.id, id="j1", name="user_logs/std_log.txt", text="more")
        assert client.get(url, headers={"Range": "bytes=10-"}).text == "more"


def test_the_output_folder_is_there_and_named_in_the_command_and_the_environment(azure: Azure, place: Place) -> None:
    outputs = {"model": {"jobOutputType": "uri_folder", "mode": "ReadWriteMount"}}
    put(azure, place, "j1", outputs=outputs, command='cd ${{outputs.model}}; [ "$PWD" = "$AZURE_ML_OUTPUT_model" ]')
    assert azure.wait(place, "j1")["status"] == "Completed"


def test_a_job_on_a_virtual_cluster_runs_with_the_archive_in_its_environment(azure: Azure, place: Place) -> None:
    cluster = singularity.seed(azure)[0]
    wanted = {
        "instanceType": "Singularity.ND96_A100_v4",
        "instanceCount": 2,
        "slaTier": "Premium",
        "VirtualClusterArmId": cluster,
    }
    given = {
        "computeId": cluster,
        "resources": {"instanceCount": 2, "properties": {"AISuperComputer": wanted}},
        "distribution": {"distributionType": "PyTorch", "processCountPerInstance": 1},
        "command": 'cat "$AZUREML_DATAREFERENCE_archive"',
    }
    put(azure, place, "j1", **given)
    assert azure.wait(place, "j1")["status"] == "Completed"
    assert list(azure.logs(place, "j1").values()) == ["BYTES", "BYTES"]
    for bad in ({"instanceType": "Singularity.Nothing"}, {"slaTier": "Gold"}, {"VirtualClusterArmId": "/x"}):
        resources = {"properties": {"AISuperComputer": {**wanted, **bad}}}
        answer = azure.request("PUT", f"{place.id}/jobs/j2", body(place, **{**given, "resources": resources}))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "UserError")
