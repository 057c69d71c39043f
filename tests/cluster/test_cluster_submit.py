"""The same submission against a real API server: what it refuses, what it keeps, who owns what."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aj.build.render import SYMBOLIC_ARCHIVE, render_payload, symbolic_facts
from aj.shared.errors import SubmissionError
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Identity
from aj.shared.template.template import load_template
from aj.shared.yaml import dump
from tests.azure.cloud import Azure
from tests.cluster.caller import TEMPLATE, Person, Storage, kubectls, storage_of
from tests.cluster.kube import Kube

pytestmark = pytest.mark.timeout(300)  # the first test of a worker waits for its server
JOBS = "jobs.batch.volcano.sh"
CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "team-code"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


@dataclass
class Team:
    """A person and their namespace in the cluster."""

    person: Person
    namespace: str

    def write(self, template: str) -> None:
        self.person.write(template.replace("service: volcano", f"service: volcano, namespace: {self.namespace}"))


@pytest.fixture
def team(kube: Kube, tmp_path: Path, request: pytest.FixtureRequest) -> Team:
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[-50:].strip("-")
    made = Team(Person(tmp_path, kube.kubeconfig, kube.kubectl), kube.namespace(f"t-{name}"))
    kube("create", "-n", made.namespace, "-f", "-", stdin=json.dumps(CLAIM))
    made.write(TEMPLATE)
    return made


@pytest.fixture
def storage(team: Team, azure: Azure) -> Storage:
    made = storage_of(team.person, azure)
    team.write(made.template())
    return made


def left(kube: Kube, namespace: str, kind: str) -> list[str]:
    return [item["metadata"]["name"] for item in kube.get(kind, "-n", namespace)["items"]]


@pytest.mark.parametrize("kubectl", kubectls(), ids=lambda path: path.name)
def test_a_job_and_the_secret_that_it_owns(kube: Kube, team: Team, storage: Storage, kubectl: Path) -> None:
    (team.person.folder / "bin" / "kubectl").unlink()
    (team.person.folder / "bin" / "kubectl").symlink_to(kubectl)
    name = str(team.person.run().azure_name)
    assert re.fullmatch(r"train-0badcafe-[a-z0-9]{5}", name)
    job = kube.get(JOBS, name, "-n", team.namespace)
    secret = kube.get("secret", "train-0badcafe-credentials", "-n", team.namespace)
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", name, job["metadata"]["uid"])
    assert set(secret["data"]) == {"code.url", "bootstrap.url", "out.yaml"}
    assert (
        team.person.work.reconcile(team.person.prepare(), team.person.caller, team.person.events.append).azure_name
        == name
    )


def test_a_job_that_the_server_refuses_leaves_nothing(kube: Kube, team: Team, storage: Storage) -> None:
    frozen = team.person.prepare()
    broken = json.loads(json.dumps(frozen.payload))
    broken["spec"]["tasks"][0]["replicas"] = "two"
    with pytest.raises(SubmissionError, match="did not take `train-0badcafe`") as caught:
        team.person.submit(type(frozen)(**{**{f: getattr(frozen, f) for f in frozen.__slots__}, "payload": broken}))
    assert "replicas" in caught.value.message
    assert left(kube, team.namespace, JOBS) == left(kube, team.namespace, "secrets") == []


def test_a_helper_that_nobody_runs_is_removed(kube: Kube, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no node here, so the pod stays Pending."""
    monkeypatch.setattr("aj.server.submit.volcano.upload.READY_SECONDS", 1.0)
    frozen = team.person.prepare()
    with pytest.raises(
        SubmissionError, match="`aj-upload-0badcafe`, which writes the code, does not run: it is Pending"
    ):
        team.person.submit(frozen)
    assert left(kube, team.namespace, "pods") == left(kube, team.namespace, JOBS) == []


REFUSALS: dict[str, tuple[Callable[[Kube, Team], Any], str]] = {
    "queue": (
        lambda kube, team: team.person.write(TEMPLATE.replace("service:", "queue: nobody, service:")),
        "no queue `nobody`",
    ),
    "claim": (
        lambda kube, team: kube("delete", "pvc", "team-code", "-n", team.namespace, "--wait=false"),
        "no PersistentVolumeClaim `team-code`",
    ),
    "namespace": (
        lambda kube, team: team.person.write(TEMPLATE.replace("service:", "namespace: nowhere, service:")),
        "no namespace `nowhere`",
    ),
    "rights": (
        lambda kube, team: team.write(TEMPLATE.replace("gpus_per_node", "context: bob, gpus_per_node")),
        "may not create jobs.batch.volcano.sh",
    ),
    "quota": (
        lambda kube, team: kube(
            "create", "quota", "q", "--hard=requests.nvidia.com/gpu=8,pods=10", "-n", team.namespace
        ),
        "needs 16 requests.nvidia.com/gpu",
    ),
}


@pytest.mark.parametrize("change,message", REFUSALS.values(), ids=REFUSALS)
def test_what_the_server_would_refuse_is_said_first(
    kube: Kube, team: Team, change: Callable[[Kube, Team], Any], message: str
) -> None:
    """The double says the same, in the tests beside."""
    change(kube, team)
    if message.startswith("no PersistentVolumeClaim"):
        # Nothing removes the claim's protection here.
        patch = '{"metadata":{"finalizers":null}}'
        kube.attempt("patch", "pvc", "team-code", "-n", team.namespace, "--type=merge", "-p", patch)
    if message.startswith("needs"):
        status = {"status": {"hard": {"requests.nvidia.com/gpu": "8"}, "used": {"requests.nvidia.com/gpu": "0"}}}
        kube(
            "patch",
            "quota",
            "q",
            "-n",
            team.namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            json.dumps(status),
        )
    with pytest.raises(SubmissionError) as caught:
        team.person.prepare()
    assert message in caught.value.message and "kubectl --context" in (caught.value.hint or "")
    assert left(kube, team.namespace, JOBS) == left(kube, team.namespace, "pods") == []


def at_limits(person: Person) -> list[Any]:
    """The Jobs of `LIMITS`, in the namespace `default`."""
    volume = {"AMLT_PERSISTENT_VOLUME_NAME": "v" * 253, "AMLT_PERSISTENT_VOLUME_MOUNT_DIR": "/v"}
    jobs = []
    for number, (target, container, env, task) in enumerate(LIMITS):
        own = {"cpus_per_node": 4, "memory": "8Gi", "gpus_per_node": 0, "rdma": False, "processes_per_node": 1}
        tasks = {"master": {**own, "replicas": 1}, **{name: {**own, **more} for name, more in task.items()}}
        job = {"submit_args": {"env": {**volume, **env}, "container_args": container}}
        config = {
            "target": {"service": "volcano", **target},
            "environment": {"image": "i:1"},
            "jobs": [job],
            "_extra": {"volcano": {"tasks": tasks}},
        }
        person.write(dump({"base": None, "config": config}))
        who = Identity(f"{number:08x}", "x" * 99, "2026-01-31T08:00:00+00:00")
        spec = build_spec(load_template(person.home, "train"), Invocation(("echo",), person.folder), who).spec
        made: Any = render_payload(spec, symbolic_facts("volcano"), SYMBOLIC_ARCHIVE)
        made["metadata"]["namespace"] = "default"
        jobs.append(made)
    return jobs


def test_what_aj_accepts_at_its_limits_the_server_accepts(kube: Kube, tmp_path: Path) -> None:
    """Jobs and, as Volcano's admission does it, their pods: names, labels, quantities, paths and texts at every limit."""
    items = []
    for made in at_limits(Person(tmp_path, kube.kubeconfig, kube.kubectl)):
        items.append(made)
        for each in made["spec"]["tasks"]:
            pod = {"apiVersion": "v1", "kind": "Pod", **json.loads(json.dumps(each["template"]))}
            name = f"{made['metadata']['generateName']}abcde-{each['name']}-{each['replicas'] - 1}"
            pod["metadata"] |= {"name": name, "namespace": "default"}
            pod["spec"] |= {"hostname": name, "subdomain": f"{made['metadata']['generateName']}abcde"}
            items.append(pod)
    document = {"apiVersion": "v1", "kind": "List", "items": items}
    done = kube.attempt("create", "--dry-run=server", "-o", "name", "-f", "-", stdin=json.dumps(document))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(items)


LIMITS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"labels": {"a" * 63: "b" * 63, f"{'d' * 63}.{'e' * 63}/{'f' * 63}": ""}}, {}, {}, {}),
    ({"queue": "q" * 63, "priority_class": "system-node-critical"}, {}, {}, {"a" * 44: {"replicas": 10}}),
    ({}, {"capabilities": ["cap_sys_admin", "NET_RAW"], "shm_size": "1Mi"}, {}, {"w": {"replicas": 1100}}),
    ({}, {"scratch_mount_path": "/" + "s" * 200, "scratch_size": "2.1Gi", "shm_size": "64g"}, {}, {}),
    ({}, {}, {"_": "", "A" * 300: "x" * 100_000, "U": "\U0001f600\u2028\x01\x7f", "D": "$" * 50_000}, {}),
    ({}, {}, {}, {"w": {"replicas": 1, "cpus_per_node": 0.001, "memory": "64Ti", "gpus_per_node": 1024, "rdma": True}}),
    ({}, {}, {}, {"w": {"replicas": 1, "node_selector": {"a.b/c_d.e": "F-1_2.3", "kubernetes.io/arch": ""}}}),
    ({}, {}, {"RANK": "7"}, {"a-b-c": {"replicas": 1, "env": {"RANK": "8"}, "command": ["\t\n$(X) `y`"]}}),
]
