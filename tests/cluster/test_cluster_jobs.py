"""What a real API server says to the Jobs that aj makes: it takes every one, and their pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aj.build.render import SYMBOLIC_ARCHIVE, render_payload, symbolic_facts
from fixtures.cases import Case, cases, spec_of
from tests.cluster.kube import Kube

pytestmark = pytest.mark.timeout(300)  # the first test of a worker waits for its server
JOBS = "jobs.batch.volcano.sh"
each_job = pytest.mark.parametrize(
    "case", [case for case in cases() if spec_of(case).spec.service == "volcano"], ids=lambda case: case.name
)


def payload_of(case: Case) -> Any:
    spec = spec_of(case).spec
    return render_payload(spec, symbolic_facts("volcano"), SYMBOLIC_ARCHIVE)


def created(kube: Kube, document: Any, *words: str) -> str:
    namespace = document["metadata"]["namespace"]
    kube.attempt("create", "namespace", namespace)
    return kube("create", "-f", "-", "-o", "name", *words, stdin=json.dumps(document)).strip().rpartition("/")[2]


@each_job
def test_every_fixture_is_created_and_kept_as_it_was_sent(kube: Kube, case: Case) -> None:
    payload = payload_of(case)
    name = created(kube, payload)
    kept = kube.get(JOBS, name, "-n", payload["metadata"]["namespace"])
    assert (
        name.startswith(payload["metadata"]["generateName"])
        and len(name) == len(payload["metadata"]["generateName"]) + 5
    )
    assert kept["spec"] == payload["spec"]
    assert kept["metadata"]["labels"] == payload["metadata"]["labels"]


@each_job
def test_every_pod_of_a_fixture_is_valid_under_its_longest_name(kube: Kube, case: Case) -> None:
    """K02: as Volcano's admission does, each task's template is tried as a pod; here with all that its plugins add."""
    payload = payload_of(case)
    job = payload["metadata"]["generateName"] + "abcde"
    for task in payload["spec"]["tasks"]:
        pod = {"apiVersion": "v1", "kind": "Pod", **json.loads(json.dumps(task["template"]))}
        name = f"{job}-{task['name']}-{task['replicas'] - 1}"
        assert len(name) <= 63
        pod["metadata"] |= {"name": name, "namespace": payload["metadata"]["namespace"]}
        pod["spec"] |= {"hostname": name, "subdomain": job}
        hosts = {"name": "VC_MASTER_HOSTS", "value": f"{job}-master-0.{job}"}
        pod["spec"]["containers"][0]["env"] += [hosts, {"name": "VC_TASK_INDEX", "value": "0"}]
        assert created(kube, pod, "--dry-run=server") == name
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job, "namespace": payload["metadata"]["namespace"]},
    }
    assert created(kube, {**service, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}, "--dry-run=server") == job


def test_the_server_refuses_what_aj_would_never_send(kube: Kube) -> None:
    """The check above can fail: a number where a quantity is text, a field that does not exist, a volume twice."""
    payload = payload_of(next(case for case in cases() if case.name == "volcano-cpu"))
    pod = payload["spec"]["tasks"][0]["template"]["spec"]

    def refusal(**more: Any) -> str:
        changed = json.loads(json.dumps(payload))
        changed["spec"]["tasks"][0]["template"]["spec"] = {**pod, **more}
        return kube.attempt("create", "-f", "-", stdin=json.dumps(changed)).stderr

    assert "unknown field" in refusal(restartpolicy="Never")
    assert "Invalid value" in refusal(activeDeadlineSeconds="soon")
    assert "Duplicate value" in refusal(volumes=[pod["volumes"][1], pod["volumes"][1]])
