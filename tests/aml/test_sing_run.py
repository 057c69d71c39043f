"""`aj run` to Singularity, end to end: discovery, choice, payload, a job that runs; and what the views show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.aml.project import Project
from tests.azure import singularity
from tests.azure.cloud import OTHER_SUBSCRIPTION, Azure, Place
from tests.azure.singularity import quota, virtual_cluster

UAI = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/team/providers/Microsoft.ManagedIdentity/userAssignedIdentities/trainer"
TEMPLATE = """\
base:
config:
  target: {service: sing, gpus_per_node: 8}
  environment: {image: pytorch/pytorch:2.5.1}
  jobs: [{sku: "80G8-A100", instance_count: 1}]
"""
NAMED = TEMPLATE.replace("{service: sing,", "{service: sing, name: vc-one,")


@pytest.fixture
def sing(project: Project, azure: Azure) -> Project:
    """The project with a template for Singularity; its Azure has three virtual clusters."""
    singularity.seed(azure)
    project.template("gpu", TEMPLATE)
    return project


def sent(azure: Azure, place: Place, result: dict[str, Any]) -> Any:
    return azure.control("job", workspace=place.id, id=result["azure_name"])["properties"]


def test_a_job_runs_where_there_is_room_and_its_output_comes_back(sing: Project, azure: Azure, place: Place) -> None:
    ran = sing.aj("--json", "run", "-t", "gpu", "-n", "2", "--ppn", "2", "python3", "train.py", "--lr", "1")
    result = ran.document()
    assert (result["status"], result["backend"], result["note"]) == ("submitted", "sing", "Premium in `vc-one`"), result
    assert "virtual cluster: `vc-one` (westus2) Premium, 16 of 64 free, ND96_A100_v4" in ran.err
    assert "no other virtual cluster can take it" in ran.err
    assert azure.wait(place, result["azure_name"])["status"] == "Completed"
    body = sent(azure, place, result)
    assert body["computeId"].endswith("/virtualclusters/vc-one") and "identity" not in body
    wanted = body["resources"]["properties"]["AISuperComputer"]
    assert (wanted["instanceType"], wanted["instanceCount"]) == ("Singularity.ND96_A100_v4", 2)
    assert (wanted["slaTier"], wanted["Priority"]) == ("Premium", "High")
    assert body["environmentVariables"]["JOB_EXECUTION_MODE"] == "Basic"
    logs = sing.aj("job", "logs", result["id"]).out
    assert sorted(line.partition(" | ")[2] for line in logs.splitlines() if "training" in line) == [
        f"training {rank} 4 {rank // 2} ['--lr', '1']" for rank in range(4)
    ]
    listed = sing.aj("--json", "job", "list").document()["jobs"]
    assert [(job["backend"], job["azure_name"]) for job in listed] == [("sing", result["azure_name"])]
    assert sing.aj("job", "status", result["id"]).out == "Completed\n"
    assert [said for said in azure.refusals() if "ResourceNotFound" not in said] == []


def test_the_best_and_the_next_are_told_and_a_lower_tier_is_a_warning(sing: Project, azure: Azure) -> None:
    full = virtual_cluster("vc-full", [quota("NDAMv4", 64, 60), quota("NDAMv4", 64, 0, "Premium")])
    low = virtual_cluster(
        "vc-low", [quota("NDAMv4", 64), quota("NDAMv4", 8, 8, "Premium"), quota("NDAMv4", 64, 0, "Basic")]
    )
    lower = virtual_cluster("vc-next", [quota("NDAMv4", 32), quota("NDAMv4", 64, 0, "Basic")], region="eastus")
    singularity.seed(azure, [full, low, lower])
    for words in (("plan", "--json"), ("--json", "run")):
        ran = sing.aj(*words, "-t", "gpu", "python3", "train.py")
        assert ran.code == 0, ran.out
        assert "virtual cluster: `vc-low` (westus2) Basic, 8 of 64 free" in ran.err
        assert "next best: `vc-next` (eastus) Basic, 8 of 32 free" in ran.err
        assert "Premium has no room for it: Basic is taken" in ran.err


def test_without_room_every_cluster_has_its_reason_and_nothing_is_written(sing: Project, azure: Azure) -> None:
    before = len([one for one in azure.control("traffic")["requests"] if one["method"] == "PUT"])
    ran = sing.aj("--json", "run", "-t", "gpu", "-n", "100", "python3", "train.py")
    error = ran.document()["error"]
    assert (ran.code, ran.document()["status"], error["type"]) == (1, "failed", "CapacityError")
    lines = error["message"].splitlines()
    assert lines[0] == "no virtual cluster can take 100 × `80G8-A100` in Premium or Standard or Basic"
    assert lines[1] == "  `vc-cpu` (singularity, westus2): no quota of yours for `ndamv4`"
    assert lines[2] == "  `vc-one` (singularity, westus2): your quota has 64 left, the job needs 800"
    assert lines[3] == "  `vc-two` (singularity, eastus): no quota of yours for `ndamv4`"
    assert len([one for one in azure.control("traffic")["requests"] if one["method"] == "PUT"]) == before


def test_an_explicit_cluster_is_matched_too(sing: Project, azure: Azure, place: Place) -> None:
    sing.template("gpu", NAMED)
    assert sent(azure, place, sing.submitted("python3", "train.py"))["computeId"].endswith("/vc-one")
    sing.template("gpu", NAMED.replace("vc-one", "vc-two"))
    assert "`vc-two` (singularity, eastus): no quota of yours" in sing.run("python3", "train.py")["error"]["message"]
    sing.template("gpu", NAMED.replace("vc-one", "vc-nine"))
    assert "no virtual cluster `vc-nine`" in sing.run("python3", "train.py")["error"]["message"]


def test_a_warm_submission_takes_two_round_trips(sing: Project, azure: Azure) -> None:
    azure.settings(latency_ms=100, page_size=1)
    with azure.window() as cold:
        sing.submitted("python3", "train.py")
    with azure.window() as warm:
        sing.submitted("python3", "train.py", "again")
    for name, seen in (("cold", cold), ("warm", warm)):
        print(f"{name}: {seen.sequential} sequential, wall {seen.seconds / 0.1:.1f}", *seen.lines(), sep="\n  ")
    assert warm.sequential <= 2 and len(warm.requests) == 3
    asked = [(one["method"], one["path"]) for one in cold.requests if "instanceTypeSeries" in one["path"]]
    assert len(asked) == len(set(asked)) == 2  # two regions, each once; the clusters came in three pages


def test_the_identity_is_checked_and_reaches_the_job(sing: Project, azure: Azure, place: Place) -> None:
    wanted = TEMPLATE.replace(
        "instance_count: 1}", f"instance_count: 1, submit_args: {{env: {{_AZUREML_SINGULARITY_JOB_UAI: {UAI}}}}}}}"
    )
    sing.template("gpu", wanted)
    refused = sing.run("python3", "train.py")["error"]
    assert (
        "`trainer` is not attached to the workspace `ws1`" in refused["message"] and refused["type"] == "ConflictError"
    )
    ids = azure.control("identity", workspace=place.id, arm_id=UAI.replace("resourceGroups", "resourcegroups"))
    result = sing.submitted(
        "python3", "-c", "import os; print(os.environ['AZURE_CLIENT_ID'], os.environ['DEFAULT_IDENTITY_CLIENT_ID'])"
    )
    assert azure.wait(place, result["azure_name"])["status"] == "Completed"
    assert f"{ids['clientId']} {ids['clientId']}" in sing.aj("job", "logs", result["id"]).out


def test_an_own_image_needs_no_other_and_an_unlisted_one_is_a_warning(
    sing: Project, azure: Azure, place: Place
) -> None:
    name = "acpt-torch2.7.1-py3.10-cuda12.6-ubuntu22.04"
    sing.template("gpu", TEMPLATE.replace("pytorch/pytorch:2.5.1", f"amlt-sing/{name}"))
    ran = sing.aj("--json", "run", "-t", "gpu", "python3", "train.py")
    assert sent(azure, place, ran.document())["resources"]["properties"]["AISuperComputer"]["imageVersion"] == name
    assert "lists no image" not in ran.err
    sing.template("gpu", TEMPLATE.replace("pytorch/pytorch:2.5.1", "amlt-sing/torch-0.1"))
    assert "Singularity lists no image `amlt-sing/torch-0.1`" in sing.aj("plan", "-t", "gpu", "python3", "train.py").err


def test_filters_and_regions_that_may_not_be_seen(sing: Project, azure: Azure) -> None:
    rich = [quota("NDAMv4", 640), quota("NDAMv4", 640, 0, "Premium")]
    other = virtual_cluster("vc-rich", rich, subscription=OTHER_SUBSCRIPTION, group="elsewhere")
    east = virtual_cluster("vc-east", rich, region="eastus")
    singularity.seed(azure, [*singularity.CLUSTERS, other, east])
    azure.control("deny", path="/locations/eastus/")
    plan = sing.aj("plan", "-t", "gpu", "python3", "train.py")
    assert "`vc-rich` (westus2)" in plan.err and "next best: `vc-one`" in plan.err
    assert "the instance types of eastus cannot be read" in plan.err
    sing.template("gpu", TEMPLATE.replace("{service: sing,", "{service: sing, resource_group: Singularity,"))
    assert "`vc-one` (westus2)" in sing.aj("plan", "-t", "gpu", "python3", "train.py").err
    sing.template(
        "gpu", TEMPLATE.replace("{service: sing,", f"{{service: sing, subscription_id: {OTHER_SUBSCRIPTION},")
    )
    assert "no other virtual cluster can take it" in sing.aj("plan", "-t", "gpu", "python3", "train.py").err


def test_a_refusal_forgets_the_quotas(sing: Project, azure: Azure) -> None:
    sing.submitted("python3", "train.py")
    azure.fault("refuse", "PUT Jobs_CreateOrUpdate", code="role")
    assert sing.run("python3", "train.py", "2")["status"] == "failed"
    poor = virtual_cluster("vc-poor", [quota("NDAMv4", 8), quota("NDAMv4", 8, 0, "Basic")])
    singularity.seed(azure, [poor])
    assert sing.submitted("python3", "train.py", "3")["note"] == "Basic in `vc-poor`"


def test_offline_says_what_it_cannot_know(sing: Project, azure: Azure) -> None:
    with azure.window() as seen:
        first = sing.aj("--json", "plan", "--offline", "-t", "gpu", "python3", "train.py")
    assert (first.code, seen.requests) == (0, [])
    said = " ".join(notice["message"] for notice in first.document()["warnings"])
    assert (
        "offline, cluster, environment, experiment, identity, machines, mounts, store, tier, workspace are placeholders"
        in said
    )
    sing.submitted("python3", "train.py")
    again = sing.aj("--json", "plan", "--offline", "-t", "gpu", "python3", "train.py")
    assert "as they were last read" in " ".join(notice["message"] for notice in again.document()["warnings"])
    assert again.document()["would_change"] is False


def test_the_sku_is_checked_before_anything_else(sing: Project) -> None:
    for written, said in (("80G8-A100 spot", "is not a SKU"), ("4xG8", "asks for 4 nodes"), ("G4", "asks for 4 GPUs")):
        sing.template("gpu", TEMPLATE.replace("80G8-A100", written))
        for words in (("run", "-t", "gpu"), ("run", "-d", "-t", "gpu"), ("render", "-t", "gpu"), ("plan", "-t", "gpu")):
            ran = sing.aj(*words, "python3", "train.py")
            assert ran.code == 2 and said in ran.err and "gpu.yaml:5:" in ran.err, ran.err


def test_quotas_machines_and_images_are_shown(sing: Project, azure: Azure) -> None:
    azure.settings(page_size=1)
    rows = sing.aj("--json", "quota", "list", "--sing").document()["clusters"]
    assert [
        (row["cluster"], row["series"], row["free"], row["premium"], row["standard"], row["basic"]) for row in rows
    ] == [
        ("vc-cpu", "ev3", 64, None, None, 64),
        ("vc-one", "ndamv4", 64, 112, 256, None),
        ("vc-two", "ndh100v5", 8, None, 32, None),
    ]
    short, full = sing.aj("quota", "list", "--sing"), sing.aj("quota", "list", "--sing", "--full")
    assert "vc-one" in short.out and "singularity" not in short.out and "singularity" in full.out
    nothing = virtual_cluster("vc-none", [quota("NDAMv4", 0), quota("NDAMv4", 9, 0, "Basic")])
    singularity.seed(azure, [nothing])
    assert sing.aj("--json", "quota", "list", "--sing").document()["clusters"] == []
    assert [row["cluster"] for row in sing.aj("--json", "quota", "list", "--sing", "--all").document()["clusters"]] == [
        "vc-none"
    ]
    skus = {row["name"]: row for row in sing.aj("--json", "sku", "list").document()["skus"]}
    assert skus["ND96_A100_v4"]["sku"] == "80G8-A100-IB-NvLink"
    assert skus["ND96_MI300X_v5"]["sku"] == "192G8-MI300X-IB-xGMI"
    assert (skus["E4_v3"]["cores"], skus["E4_v3"]["accelerator"]) == (4, None)
    images = sing.aj("--json", "image", "list").document()["images"]
    assert {"image": "amlt-sing/acpt-torch2.7.1-py3.10-cuda12.6-ubuntu22.04", "aliases": "latest"} in images
    assert sing.aj("quota", "list", "--all").code == 2 and sing.aj("quota", "list", "--aml", "--sing").code == 2
    assert json.loads(sing.aj("--json", "quota", "list").out)["computes"][0]["name"] == "gpus"
