"""What Volcano itself says to the Jobs that aj makes, and what it makes of them: pods, names, ranks, life and death."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aj.shared.errors import SubmissionError
from fixtures.cases import Case, cases
from tests.azure.cloud import Azure
from tests.cluster.caller import Person, storage_of
from tests.cluster.kube import until
from tests.cluster.pod import Cluster
from tests.cluster.test_cluster_jobs import each_job, payload_of
from tests.cluster.test_cluster_submit import CLAIM, Team, at_limits, left
from tests.cluster.volcano import JOBS, Volcano

pytestmark = pytest.mark.timeout(300)  # the first test of a worker waits for its server


def payload(name: str, namespace: str = "default") -> Any:
    """The Job of a fixture, in another namespace."""
    made = payload_of(next(case for case in cases() if case.name == name))
    made["metadata"]["namespace"] = namespace
    return made


def admitted(task: Any) -> Any:
    """What is kept of a task: admission fills `maxRetry` in, and writes an empty value as none, which means the same."""
    kept = {**json.loads(json.dumps(task)), "maxRetry": 3}
    for item in kept["template"]["spec"]["containers"][0]["env"]:
        if not item["value"]:
            del item["value"]
    return kept


def size(job: Any) -> int:
    return sum(task["replicas"] for task in job["spec"]["tasks"])


@each_job
def test_admission_takes_every_fixture_and_changes_nothing_of_ours(volcano: Volcano, case: Case) -> None:
    sent = payload_of(case)
    kept = volcano.create(sent)
    assert kept["spec"] == {**sent["spec"], "tasks": [admitted(task) for task in sent["spec"]["tasks"]]}
    assert kept["metadata"]["labels"] == sent["metadata"]["labels"]
    assert kept["metadata"]["annotations"] == sent["metadata"]["annotations"]


def test_admission_fills_in_what_aj_writes_itself(volcano: Volcano) -> None:
    """The check above can fail."""
    sent = payload("volcano-four-nodes")
    spec = sent["spec"]
    for key in ("queue", "schedulerName", "maxRetry", "minAvailable"):
        del spec[key]
    for task in spec["tasks"]:
        del task["minAvailable"]
    spec["plugins"] = {"pytorch": []}
    kept = volcano.create(sent)["spec"]
    assert {key: kept[key] for key in ("queue", "schedulerName", "maxRetry", "minAvailable")} == {
        "queue": "default",
        "schedulerName": "volcano",
        "maxRetry": 3,
        "minAvailable": 4,
    }
    assert [task["minAvailable"] for task in kept["tasks"]] == [1, 3]
    assert set(kept["plugins"]) == {"pytorch", "svc"}


@each_job
def test_the_controller_makes_the_pods_that_aj_counts_on(volcano: Volcano, tmp_path: Path, case: Case) -> None:
    sent = payload_of(case)
    created = volcano.create(sent)
    job = created["metadata"]["name"]
    pods = volcano.pods(created, size(sent))
    hosts = volcano.kube.get("configmap", f"{job}-svc", "-n", sent["metadata"]["namespace"])["data"]
    ranks = {}
    for task in sent["spec"]["tasks"]:
        for index in range(task["replicas"]):
            name = f"{job}-{task['name']}-{index}"
            check_pod(pods[name], name, created, admitted(task))
            env = environment(pods[name], hosts)
            _, played = Cluster(job, sent, tmp_path, tmp_path).command(task["name"], index)
            assert volcanos(env) == volcanos(played)
            (base,) = re.findall(r"^AJ_NODE_RANK=VC_TASK_INDEX\+(\d+)$", env["AJ_EXPORTS"], re.MULTILINE)
            ranks[name] = int(base) + int(env["VC_TASK_INDEX"])
            assert env["AJ_TASK_NAME"] == task["name"]
            assert ("MASTER_ADDR=VC_MASTER_HOSTS" in env["AJ_EXPORTS"]) == (size(sent) > 1)
    assert ranks.keys() == pods.keys() and sorted(ranks.values()) == list(range(size(sent)))
    assert ranks[f"{job}-master-0"] == 0 and hosts["VC_MASTER_HOSTS"] == f"{job}-master-0.{job}"
    check_network(volcano, created, pods)
    group = volcano.group(created)["spec"]
    assert group["minMember"] == size(sent) and group["queue"] == sent["spec"]["queue"]
    assert group["minTaskMember"] == {task["name"]: task["replicas"] for task in sent["spec"]["tasks"]}
    assert group.get("priorityClassName") == sent["spec"].get("priorityClassName")


def check_pod(pod: Any, name: str, job: Any, task: Any) -> None:
    """The pod is the task's template with what the plugins add."""
    spec, template = pod["spec"], task["template"]["spec"]
    (container,), (own,) = spec["containers"], template["containers"]
    assert len(name) <= 63 and (spec["hostname"], spec["subdomain"]) == (name, job["metadata"]["name"])
    assert (spec["restartPolicy"], spec["schedulerName"], spec["enableServiceLinks"]) == ("Never", "volcano", False)
    assert {key: container[key] for key in ("command", "args", "image", "resources")} == {
        key: own[key] for key in ("command", "args", "image", "resources")
    }
    assert container["env"][: len(own["env"])] == own["env"]
    (added,) = container["volumeMounts"][len(own["volumeMounts"]) :]
    assert added == {"name": f"{job['metadata']['name']}-svc", "mountPath": "/etc/volcano"}
    assert pod["metadata"]["labels"].items() >= task["template"]["metadata"]["labels"].items()
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])


def check_network(volcano: Volcano, job: Any, pods: dict[str, Any]) -> None:
    """Names before readiness for the Job's pods, and a way in for them only."""
    name, place = job["metadata"]["name"], ("-n", job["metadata"]["namespace"])
    service = volcano.kube.get("service", name, *place)
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    policy = volcano.kube.get("networkpolicy", name, *place)
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": chosen}}]}]
    for pod in pods.values():
        assert pod["metadata"]["labels"].items() >= {**chosen, **service["spec"]["selector"]}.items()
    for each in (service, policy, volcano.group(job)):
        assert [owner["uid"] for owner in each["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]


def environment(pod: Any, hosts: dict[str, str]) -> dict[str, str]:
    """The container's variables as a kubelet would set them, but for dollars."""
    found = {}
    for item in pod["spec"]["containers"][0]["env"]:
        found[item["name"]] = (
            hosts[item["valueFrom"]["configMapKeyRef"]["key"]] if "valueFrom" in item else item.get("value", "")
        )
    return found


def volcanos(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(("VC_", "VK_"))}


def test_what_aj_accepts_at_its_limits_volcano_makes(volcano: Volcano, tmp_path: Path) -> None:
    """Every pod of every Job at a limit, but for a thousand and more: there the list of their names is made."""
    longest = 0
    for number, sent in enumerate(at_limits(Person(tmp_path, volcano.kube.kubeconfig, volcano.kube.kubectl))):
        sent["metadata"]["namespace"] = f"limit-{number}"
        created = volcano.create(sent)
        if size(sent) < 100:
            longest = max(longest, *map(len, volcano.pods(created, size(sent))))
        else:
            place = ("-n", sent["metadata"]["namespace"])
            volcano.group(created)
            hosts = volcano.kube.get("configmap", f"{created['metadata']['name']}-svc", *place)["data"]
            assert hosts["VC_W_NUM"] == str(size(sent) - 1)
            assert 100_000 < len(hosts["VC_W_HOSTS"]) < 131_072
    assert longest == 63


def never_made(volcano: Volcano, sent: Any) -> str:
    """Why the controller cannot make the pods of a Job that admission has taken."""
    created = volcano.create(sent)
    words = ("events", "-n", sent["metadata"]["namespace"], "--field-selector", "reason=FailedCreate")

    def look() -> list[str]:
        volcano.let_in(created)
        return [event["message"] for event in volcano.kube.get(*words)["items"]]

    told = until(look, bool)[0]
    # It would be tried again and again.
    volcano.kube("delete", JOBS, "--all", "-n", sent["metadata"]["namespace"])
    return told


def test_one_character_more_than_aj_allows_and_pods_are_missing(volcano: Volcano) -> None:
    """Admission looks at the task's place in the Job, not at its last replica."""
    sent = payload("volcano-long-names", "too-long")
    longest = sent["spec"]["tasks"][1]
    room = 63 - len(f"abcde-{longest['name']}-{longest['replicas'] - 1}")
    sent["metadata"]["generateName"] = "j" * room + "-"
    assert "must be no more than 63" in never_made(volcano, sent)


def test_the_folder_that_volcano_mounts_itself(volcano: Volcano) -> None:
    """Why aj takes it from nobody: admission sees no fault, and there is never a pod."""
    sent = payload("volcano-four-nodes", "own-folder")
    for task in sent["spec"]["tasks"]:
        task["template"]["spec"]["containers"][0]["volumeMounts"][-1]["mountPath"] = "/etc/volcano"
    assert "must be unique" in never_made(volcano, sent)


def gang(volcano: Volcano, name: str, namespace: str) -> tuple[Any, dict[str, Any]]:
    """A Job of a fixture, all of its pods running."""
    created = volcano.create(payload(name, namespace))
    pods = volcano.pods(created, size(created))
    volcano.set_phase(pods, "Running")
    volcano.job(created, "Running")
    return created, pods


KINDS = {"one-kind": "volcano-four-nodes", "declared": "volcano-tasks"}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_a_failed_pod_ends_the_job_and_its_log_stays(volcano: Volcano, kind: str) -> None:
    created, pods = gang(volcano, KINDS[kind], f"failed-{kind}")
    failed = max(pods)
    volcano.set_phase({failed: pods[failed]}, "Failed", 1)
    assert volcano.job(created, "Terminated")["status"].get("retryCount", 0) == 0
    assert left(volcano.kube, f"failed-{kind}", "pods") == [failed]


def test_a_job_of_one_kind_is_done_when_all_pods_are(volcano: Volcano) -> None:
    created, pods = gang(volcano, "volcano-four-nodes", "done")
    last = max(pods)
    volcano.set_phase({name: pod for name, pod in pods.items() if name != last}, "Succeeded")
    until(lambda: volcano.job(created, "Running")["status"].get("succeeded"), (3).__eq__)
    volcano.set_phase({last: pods[last]}, "Succeeded")
    volcano.job(created, "Completed")
    assert set(left(volcano.kube, "done", "pods")) == set(pods)


def test_a_job_of_declared_tasks_is_done_when_its_master_is(volcano: Volcano) -> None:
    created, pods = gang(volcano, "volcano-tasks", "led")
    master = f"{created['metadata']['name']}-master-0"
    volcano.set_phase({master: pods[master]}, "Succeeded")
    volcano.job(created, "Completed")
    assert left(volcano.kube, "led", "pods") == [master]


@each_kind
def test_an_evicted_pod_restarts_all_three_attempts_in_all(volcano: Volcano, kind: str) -> None:
    created, pods = gang(volcano, KINDS[kind], f"evicted-{kind}")
    seen: set[str] = set()
    for attempt in range(3):
        pods = volcano.pods(created, size(created), attempt)
        ids = {pod["metadata"]["uid"] for pod in pods.values()}
        assert not ids & seen
        seen |= ids
        volcano.kube("delete", "pod", max(pods), "-n", f"evicted-{kind}")
    assert volcano.job(created, "Failed")["status"]["retryCount"] == 3
    assert left(volcano.kube, f"evicted-{kind}", "pods") == []


def drained(volcano: Volcano, name: str, namespace: str, exit_code: int) -> tuple[Any, dict[str, Any]]:
    """A gang of which one pod was deleted in a drain or a preemption; the kubelet tells of SIGTERM before it is gone."""
    created = volcano.create(payload(name, namespace))
    pods = volcano.pods(created, size(created))
    volcano.bind(pods)
    volcano.set_phase(pods, "Running")
    volcano.job(created, "Running")
    gone = max(pods)
    volcano.kube("delete", "pod", gone, "-n", namespace, "--wait=false")
    volcano.end({gone: pods.pop(gone)}, exit_code)
    return created, pods


@each_kind
def test_a_pod_that_fails_by_sigterm_on_its_way_out_restarts_all(volcano: Volcano, kind: str) -> None:
    created, others = drained(volcano, KINDS[kind], f"drained-{kind}", 143)
    volcano.job(created, "Restarting")
    volcano.end(others, 143)
    assert len(volcano.pods(created, size(created), 1)) == size(created)
    assert volcano.job(created, "Pending")["status"]["retryCount"] == 1


@pytest.mark.parametrize(
    "name,exit_code", [("volcano-four-nodes", 1), ("volcano-cpu", 143)], ids=["failure", "deadline"]
)
def test_a_pod_whose_end_may_be_its_own_ends_the_job(volcano: Volcano, name: str, exit_code: int) -> None:
    """A pod that ends with 143 in a job without a deadline was told to end; any other may have failed by itself."""
    created, others = drained(volcano, name, f"ended-{name}", exit_code)
    volcano.job(created, "Terminating", "Terminated")
    volcano.end(others, 143)
    assert volcano.job(created, "Terminated")["status"].get("retryCount", 0) == 0


def test_an_attempt_after_the_first_finds_its_master(volcano: Volcano) -> None:
    """A restart takes the Service and the list of hosts away; both are back with the new pods."""
    created, pods = gang(volcano, "volcano-four-nodes", "again")
    volcano.kube("delete", "pod", min(pods), "-n", "again")
    pods = volcano.pods(created, size(created), 1)
    check_network(volcano, created, pods)
    job = created["metadata"]["name"]
    hosts = volcano.kube.get("configmap", f"{job}-svc", "-n", "again")["data"]
    assert all(environment(pod, hosts)["VC_MASTER_HOSTS"] == f"{job}-master-0.{job}" for pod in pods.values())


def _first(spec: Any) -> Any:
    return spec["tasks"][0]


def _container(spec: Any) -> Any:
    return _first(spec)["template"]["spec"]["containers"][0]


def _policy(**policy: Any) -> Callable[[Any], None]:
    return lambda spec: spec["policies"].append(policy)


def _resources(requests: dict[str, str], limits: dict[str, str]) -> Callable[[Any], None]:
    return lambda spec: _container(spec).update(resources={"requests": requests, "limits": limits})


HOSTILE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no task": (lambda spec: spec.update(tasks=[]), "should have at least 1 items"),
    "a task twice": (lambda spec: spec["tasks"].append(_first(spec)), "duplicated task name master"),
    "a task's name": (lambda spec: _first(spec).update(name="Master"), "should match '^[a-z0-9]"),
    "more than there are": (
        lambda spec: _first(spec).update(minAvailable=2),
        "'minAvailable' is greater than 'replicas'",
    ),
    "more than all": (
        lambda spec: spec.update(minAvailable=9),
        "job 'minAvailable' should not be greater than total replicas",
    ),
    "plugin": (lambda spec: spec["plugins"].update(magic=[]), "unable to find job plugin: magic"),
    "event and exit code": (
        _policy(event="PodFailed", exitCode=1, action="AbortJob"),
        "must not specify event and exitCode",
    ),
    "neither": (_policy(action="AbortJob"), "either event and exitCode should be specified"),
    "event twice": (_policy(event="PodFailed", action="AbortJob"), "duplicate event PodFailed"),
    "any event beside others": (
        _policy(event="*", action="AbortJob"),
        "if there's * here, no other policy should be here",
    ),
    "internal event": (_policy(event="OutOfSync", action="AbortJob"), "invalid policy event"),
    "action": (_policy(event="Unknown", action="Explode"), "invalid policy action"),
    "no image": (lambda spec: _container(spec).update(image=""), "image: Required value"),
    "a variable's name": (lambda spec: _container(spec)["env"].append({"name": "a=b"}), "Invalid value"),
    "mount without volume": (
        lambda spec: _container(spec)["volumeMounts"].append({"name": "no", "mountPath": "/no"}),
        "Not found",
    ),
    "half a GPU": (_resources({"nvidia.com/gpu": "0.5"}, {"nvidia.com/gpu": "0.5"}), "must be an integer"),
    "GPUs lent": (
        _resources({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}),
        "must be equal to nvidia.com/gpu limit",
    ),
    "queue": (lambda spec: spec.update(queue="nobody"), "unable to find job queue"),
    "the queue above all": (lambda spec: spec.update(queue="root"), "can not submit job to root queue"),
    "queue of queues": (lambda spec: spec.update(queue="holder"), "can only submit job to leaf queue"),
    "closed queue": (lambda spec: spec.update(queue="closed"), "can only submit job to queue with state `Open`"),
    "a circle": (
        lambda spec: _first(spec).update(dependsOn={"name": ["master"]}),
        "doesn't form a directed acyclic graph",
    ),
}


@pytest.fixture(scope="session")
def queues(volcano: Volcano) -> Volcano:
    """A queue with another below it, and a closed one."""
    volcano.open_queue("holder")
    volcano.open_queue("held", parent="holder")
    volcano.open_queue("closed")
    volcano.close("closed")
    return volcano


@pytest.mark.parametrize("change,words", HOSTILE.values(), ids=HOSTILE)
def test_what_admission_refuses(queues: Volcano, change: Callable[[Any], Any], words: str) -> None:
    """None of this can be meant by a template; what is refused here is what aj must never send."""
    sent = payload("volcano-one-gpu")
    change(sent["spec"])
    assert words in queues.refusal(sent)


@pytest.fixture
def team(queues: Volcano, tmp_path: Path, azure: Azure, request: pytest.FixtureRequest) -> Team:
    """Their code goes by Blob storage: no pod runs here that could write it to a volume."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[-50:].strip("-")
    kube = queues.kube
    made = Team(Person(tmp_path, kube.kubeconfig, kube.kubectl), kube.namespace(f"v-{name}"))
    kube("create", "-n", made.namespace, "-f", "-", stdin=json.dumps(CLAIM))
    storage = storage_of(made.person, azure)
    made.write(storage.template())
    return made


def test_a_queue_that_closed_meanwhile(queues: Volcano, team: Team) -> None:
    """The first look found it open; Volcano's own words say what came after, and the Secret goes again."""
    queues.open_queue("closing")
    into(team, "closing")
    frozen = team.person.prepare()
    queues.close("closing")
    with pytest.raises(SubmissionError, match="did not take `train-0badcafe`") as caught:
        team.person.submit(frozen)
    assert 'admission webhook "validatejob.volcano.sh" denied the request' in caught.value.message
    assert "queue `closing` status is `Closed`" in caught.value.message
    assert nothing_left(queues, team)


@pytest.mark.parametrize("queue,words", [("closed", "is Closed, not Open"), ("holder", "only holds others: `held`")])
def test_what_admission_would_say_of_a_queue_is_said_first(queues: Volcano, team: Team, queue: str, words: str) -> None:
    into(team, queue)
    with pytest.raises(SubmissionError) as caught:
        team.person.prepare()
    assert words in caught.value.message
    assert nothing_left(queues, team)


@pytest.mark.parametrize("change,words", [HOSTILE["plugin"], HOSTILE["a task twice"]], ids=["plugin", "task"])
def test_a_denied_job_is_told_in_volcanos_words(
    queues: Volcano, team: Team, change: Callable[[Any], Any], words: str
) -> None:
    frozen = team.person.prepare()
    broken = json.loads(json.dumps(frozen.payload))
    change(broken["spec"])
    with pytest.raises(SubmissionError, match="did not take `train-0badcafe`") as caught:
        team.person.submit(replace(frozen, payload=broken))
    assert words in caught.value.message
    assert nothing_left(queues, team)


def test_admission_that_is_down(queues: Volcano, team: Team) -> None:
    """The server answers 500 and has stored nothing, so nobody is left in doubt; the next try makes one job."""
    frozen = team.person.prepare()
    with queues.without_admission(), pytest.raises(SubmissionError, match="did not take `train-0badcafe`") as caught:
        team.person.submit(frozen)
    assert 'failed calling webhook "mutatejob.volcano.sh"' in caught.value.message
    assert nothing_left(queues, team)
    assert [str(team.person.submit(frozen).azure_name)] == left(queues.kube, team.namespace, JOBS)


def into(team: Team, queue: str) -> None:
    template = team.person.home.templates / "train.yaml"
    template.write_text(template.read_text().replace("service:", f"queue: {queue}, service:"))


def nothing_left(volcano: Volcano, team: Team) -> bool:
    return all(left(volcano.kube, team.namespace, kind) == [] for kind in (JOBS, "secrets", "pods"))
