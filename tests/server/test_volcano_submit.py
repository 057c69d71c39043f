"""What a Volcano submission does to a cluster, and what it leaves when something goes wrong: real kubectl, a double."""

from __future__ import annotations

import json
import re
import shlex
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from aj.server.submit.volcano.kubectl import Kubectl
from aj.shared.errors import AjError, ConfigError, OutcomeUnknownError, SubmissionError
from tests.azure.cloud import Azure
from tests.azure.fake_az import NOT_LOGGED_IN
from tests.cluster.caller import CODE, TEMPLATE, Person, Storage, a_kubectl, kubectls, storage_of
from tests.cluster.double import Double, Fault, serving
from tests.cluster.pod import GNU, Cluster, getent, tools

CLAIM = {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Double]:
    (tmp_path / "volume").mkdir()
    with serving(tmp_path / "volume") as double:
        double.put("persistentvolumeclaims", "team-code", "default", **CLAIM)
        yield double


@pytest.fixture
def person(cluster: Double, tmp_path: Path) -> Person:
    return Person(tmp_path, cluster.kubeconfig(tmp_path / "kubeconfig"), a_kubectl())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same looks after a lost answer, with shorter pauses."""
    monkeypatch.setattr("aj.server.submit.volcano.submit.LOOKS", (0.0, 0.1, 0.1))


def writes(cluster: Double) -> list[str]:
    """Creations, changes and deletions, as `POST jobs`."""
    found = [(method, path.rstrip("/").split("/")) for method, path, _ in cluster.requests if method != "GET"]
    return [f"{method} {parts[parts.index('namespaces') + 2]}" for method, parts in found if "namespaces" in parts]


def test_one_helper_that_goes_one_job_that_stays(person: Person, cluster: Double) -> None:
    result = person.run()
    assert result.azure_name and re.fullmatch(r"train-0badcafe-[a-z0-9]{5}", result.azure_name)
    assert (
        cluster.names("jobs") == [result.azure_name] and cluster.names("pods") == [] and cluster.names("secrets") == []
    )
    assert writes(cluster) == ["POST pods", "DELETE pods", "POST jobs"]
    job = cluster.objects["jobs", "default", result.azure_name]
    assert job["metadata"]["labels"]["aj/id"] == "0badcafe" and job["metadata"]["annotations"]["aj/context"] == "admin"
    uploads = [event for event in person.events if event.kind == "upload"]
    assert uploads and uploads[-1].completed == uploads[-1].total


def test_the_note_has_commands_that_work_as_they_are(person: Person, cluster: Double) -> None:
    """Watch, log and delete, with context, namespace and name filled in."""
    result = person.run()
    commands = dict(line.split(": ", 1) for line in (result.note or "").splitlines())
    assert set(commands) == {"watch", "pods", "why it waits", "log", "delete"}
    assert shlex.split(commands["log"])[-2:] == ["--follow", f"{result.azure_name}-master-0"]
    assert all("--context admin --namespace default" in each for each in commands.values())
    from aj.server.child import Child, run

    run(Child(tuple(shlex.split(commands["delete"])), person.caller.env, person.folder, 60))
    assert cluster.names("jobs") == []


def test_the_pods_run_what_was_uploaded(person: Person, cluster: Double, tmp_path: Path) -> None:
    """From the project to the process: code by tar and exec onto the volume, found and run by master and worker."""
    env = {"GIVEN": "$(GIVEN)$$"}
    person.write(TEMPLATE + "      command: ['echo \"$RANK of $WORLD_SIZE: $GIVEN\"']\n")
    name = str(person.run(env=env).azure_name)
    path = tools(tmp_path / "image", GNU)
    (path / "uv").write_text('#!/bin/sh\nshift; exec python3 "$@"\n')
    (path / "uv").chmod(0o755)
    getent(path, tmp_path / "dns")
    made = Cluster(name, cluster.objects["jobs", "default", name], tmp_path, path)
    made.answer(f"{name}-master-0.{name}")
    for task, rank in (("master", 0), ("worker", 1)):
        done = made.run(task)
        assert (done.returncode, done.stdout) == (0, f"{rank} of 2: $(GIVEN)$$\ntrained\n"), done.stderr


def test_the_same_code_is_sent_once(person: Person, cluster: Double) -> None:
    person.run()
    stored = [command[4] for command in cluster.execs]
    person.run(identity="0000beef")
    assert stored == ["check", "store"] and [command[4] for command in cluster.execs] == [*stored, "check"]
    assert "the code is there already" in person.told("note")
    (person.home.root.parent / "train.py").write_text("print('again')\n")
    person.run(identity="0000beee")
    assert [command[4] for command in cluster.execs][-2:] == ["check", "store"]
    assert len(list((cluster.volume / ".aj").iterdir())) == 3, "two archives and a bootstrap"


def test_a_damaged_file_on_the_volume_is_sent_again(person: Person, cluster: Double) -> None:
    person.run()
    code = next((cluster.volume / ".aj").glob("*/code.tar.gz"))
    good = code.read_bytes()
    code.write_bytes(good[:100])
    person.run(identity="0000beef")
    assert code.read_bytes() == good


@pytest.mark.parametrize("kubectl", kubectls(), ids=lambda path: path.name)
def test_every_kubectl_at_hand_submits(cluster: Double, tmp_path: Path, kubectl: Path) -> None:
    somebody = Person(tmp_path, cluster.kubeconfig(tmp_path / "kubeconfig"), kubectl)
    assert somebody.run().azure_name in cluster.names("jobs")


def test_the_callers_kubeconfig_decides(person: Person, cluster: Double) -> None:
    """A relative KUBECONFIG is taken from the caller's folder; the context's namespace is used where none is named."""
    (person.home.root.parent / "mine").write_text(person.kubeconfig.read_text())
    person.kubeconfig = Path("mine")
    cluster.put("persistentvolumeclaims", "team-code", "research", **CLAIM)
    person.write(TEMPLATE.replace("service: volcano", "service: volcano, context: team"))
    result = person.run()
    assert ("jobs", "research", str(result.azure_name)) in cluster.objects
    assert "--context team --namespace research" in (result.note or "")


def test_a_login_helper_sees_the_callers_environment(person: Person, cluster: Double) -> None:
    """Not the daemon's: HOME is the caller's, PATH is where the helper is found."""
    helper = person.folder / "bin" / "login-helper"
    credential = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "t"}}
    helper.write_text(f"#!/bin/sh\necho \"$HOME\" >> {person.folder}/asked\necho '{json.dumps(credential)}'\n")
    helper.chmod(0o755)
    config = json.loads(person.kubeconfig.read_text())
    command = {"apiVersion": credential["apiVersion"], "command": "login-helper", "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": command}
    person.kubeconfig.write_text(json.dumps(config))
    assert person.run().azure_name in cluster.names("jobs")
    asked = (person.folder / "asked").read_text().split()
    assert set(asked) == {str(person.folder)}


def test_a_plan_writes_nothing_to_the_cluster(person: Person, cluster: Double) -> None:
    plan = person.plan()
    assert [(step.name, step.verdict) for step in plan.steps if step.kind == "write"] == [
        ("upload-code", "unknown"),
        ("submit", "would"),
    ]
    assert writes(cluster) == []


Change = Callable[[Double], Any]


def _forbid(verb: str, resource: str) -> Change:
    return lambda cluster: cluster.forbidden.add((verb, resource))


def _queue(**status: str) -> Change:
    return lambda cluster: cluster.put("queues", "default", spec={}, status=status)


def _quota(**amounts: dict[str, str]) -> Change:
    return lambda cluster: cluster.put("resourcequotas", "team", "default", status=amounts)


REFUSALS: dict[str, tuple[Change, str, str]] = {
    "no_volcano": (
        lambda cluster: cluster.faults.append(Fault("GET", "^/apis/batch.volcano.sh/v1alpha1$", 404, 99)),
        "does not know Volcano's Jobs",
        "api-resources",
    ),
    "no_queue": (lambda cluster: cluster.objects.pop(("queues", "", "default")), "no queue `default`", "get queues"),
    "closed_queue": (_queue(state="Closed"), "is Closed, not Open", "get queues"),
    "parent_queue": (
        lambda cluster: cluster.put("queues", "child", spec={"parent": "default"}),
        "only holds others: `child`",
        "get queues",
    ),
    "no_claim": (
        lambda cluster: cluster.objects.pop(("persistentvolumeclaims", "default", "team-code")),
        "no PersistentVolumeClaim `team-code`",
        "get pvc",
    ),
    "lost_claim": (
        lambda cluster: cluster.put(
            "persistentvolumeclaims", "team-code", "default", spec={}, status={"phase": "Lost"}
        ),
        "is lost",
        "get pvc",
    ),
    "no_namespace": (
        lambda cluster: cluster.objects.pop(("namespaces", "", "default")),
        "no namespace `default`",
        "get namespaces",
    ),
    "may_not_create": (_forbid("create", "jobs"), "may not create jobs.batch.volcano.sh", "auth can-i create"),
    "may_not_exec": (_forbid("create", "pods/exec"), "may not create pods/exec", "auth can-i create pods/exec"),
    "quota": (
        _quota(hard={"requests.nvidia.com/gpu": "8"}, used={}),
        "needs 16 requests.nvidia.com/gpu, quota `team` of namespace `default` has 8",
        "describe quota",
    ),
}


@pytest.mark.parametrize("change,message,command", REFUSALS.values(), ids=REFUSALS)
def test_what_the_cluster_would_refuse_is_said_before_anything_is_written(
    person: Person, cluster: Double, change: Change, message: str, command: str
) -> None:
    """Each names the command that shows it."""
    change(cluster)
    with pytest.raises(SubmissionError) as caught:
        person.prepare()
    assert message in caught.value.message, caught.value.message
    assert command in (caught.value.hint or "") and "--context admin" in (caught.value.hint or "")
    assert writes(cluster) == []


def test_what_may_not_be_read_is_no_reason_to_refuse(person: Person, cluster: Double) -> None:
    for resource in ("queues", "namespaces", "persistentvolumeclaims", "resourcequotas"):
        cluster.forbidden |= {("get", resource), ("list", resource)}
    cluster.put("resourcequotas", "team", "default", status={"hard": {"pods": "1"}, "used": {}})
    assert person.run().azure_name
    assert "the queue `default` may not be read, so nobody knows whether it is open" in person.told("warning")


def test_a_full_quota_is_a_warning(person: Person, cluster: Double) -> None:
    cluster.put("resourcequotas", "team", "default", status={"hard": {"cpu": "200"}, "used": {"cpu": "100"}})
    person.prepare()
    assert any("needs 192 cpu" in each and "it will wait" in each for each in person.told("warning"))


def test_a_context_or_a_cluster_that_is_not_there(person: Person, cluster: Double) -> None:
    person.write(TEMPLATE.replace("service: volcano", "service: volcano, context: nowhere"))
    with pytest.raises(ConfigError, match="no context `nowhere`") as caught:
        person.prepare()
    assert "kubectl config get-contexts" in (caught.value.hint or "")
    person.write(TEMPLATE)
    person.kubeconfig.write_text(person.kubeconfig.read_text().replace(cluster.url, "http://127.0.0.1:1"))
    with pytest.raises(SubmissionError, match="context `admin` cannot be reached"):
        person.prepare()
    (person.folder / "bin" / "kubectl").unlink()
    with pytest.raises(AjError, match="cannot start `kubectl") as lacking:
        person.prepare()
    assert "on PATH" in (lacking.value.hint or "")


@pytest.mark.parametrize("code", [400, 403, 404, 409, 422, 500])
def test_a_refused_job_leaves_nothing(person: Person, cluster: Double, code: int) -> None:
    """Denied by the webhook (400), webhook down (500), forbidden, invalid: the server's own words are told."""
    cluster.faults.append(Fault("POST", "/jobs$", code))
    with pytest.raises(SubmissionError, match="the webhook denied the request") as caught:
        person.run()
    assert re.search("did not take `train-0badcafe`|`train-0badcafe` was not created", caught.value.message)
    assert cluster.names("jobs") == cluster.names("pods") == cluster.names("secrets") == []
    assert writes(cluster).count("POST jobs") == 1


def test_a_throttled_creation_is_made_once(person: Person, cluster: Double) -> None:
    """429 with Retry-After is kubectl's own affair."""
    cluster.faults.append(Fault("POST", "/jobs$", 429))
    name = person.run().azure_name
    assert cluster.names("jobs") == [name]


def test_a_lost_answer_is_looked_up_never_sent_again(person: Person, cluster: Double) -> None:
    cluster.faults.append(Fault("POST", "/jobs$", "lose"))
    result = person.run()
    assert cluster.names("jobs") == [result.azure_name] and writes(cluster).count("POST jobs") == 1
    assert "adopted: the job was found after its answer was lost" in (result.note or "")


def test_a_large_job_is_found_too(person: Person, cluster: Double) -> None:
    """More than a child's output is usually kept of."""
    person.write(TEMPLATE.replace("env: {", "env: {BIG: " + "x" * 100_000 + ", "))
    cluster.faults.append(Fault("POST", "/jobs$", "lose"))
    name = person.run(env={"OTHER": "y" * 100_000}).azure_name
    assert cluster.names("jobs") == [name]


def test_a_dropped_creation_is_looked_for_and_surely_absent(person: Person, cluster: Double) -> None:
    cluster.faults.append(Fault("POST", "/jobs$", "drop"))
    with pytest.raises(SubmissionError, match="was not created"):
        person.run()
    assert cluster.names("jobs") == [] and writes(cluster).count("POST jobs") == 1


def test_a_creation_that_times_out_is_looked_for_and_surely_absent(
    person: Person, cluster: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aj.server.submit.volcano.kubectl.REQUEST_SECONDS", 2)
    cluster.faults.append(Fault("POST", "/jobs$", "hang"))
    with pytest.raises(SubmissionError, match="was not created"):
        person.run()
    assert cluster.names("jobs") == []


def test_an_outcome_that_nobody_knows(person: Person, cluster: Double) -> None:
    """The creation's answer and every look are lost: unknown, with the command to look."""
    cluster.faults += [Fault("POST", "/jobs$", "lose"), Fault("GET", "/namespaces/default/jobs$", 500, 99)]
    with pytest.raises(OutcomeUnknownError) as caught:
        person.run()
    assert "kubectl --context admin --namespace default get jobs.batch.volcano.sh --selector aj/id=0badcafe" in (
        caught.value.hint or ""
    )
    cluster.faults.clear()
    frozen = person.prepare()
    assert person.work.reconcile(frozen, person.caller, person.events.append).azure_name in cluster.names("jobs")


def test_a_helper_that_cannot_start_is_removed_and_says_why(person: Person, cluster: Double) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    cluster.pod_status = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    with pytest.raises(SubmissionError, match="ImagePullBackOff: Back-off pulling image") as caught:
        person.run()
    assert "helper_image" in (caught.value.hint or "")
    assert cluster.names("pods") == cluster.names("jobs") == []


def test_a_helper_that_is_never_scheduled_is_given_up(
    person: Person, cluster: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aj.server.submit.volcano.upload.READY_SECONDS", 0.5)
    why = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    cluster.pod_status = {"phase": "Pending", "conditions": [why]}
    with pytest.raises(SubmissionError, match="it is Pending: 0/3 nodes are available"):
        person.run()
    assert cluster.names("pods") == cluster.names("jobs") == []


def test_an_upload_that_is_cut_leaves_nothing(person: Person, cluster: Double) -> None:
    (person.home.root.parent / "data.bin").write_bytes(bytes(range(256)) * 4096 * 4)
    cluster.cut_exec = True
    with pytest.raises(SubmissionError, match="volume `team-code`"):
        person.run()
    assert cluster.names("pods") == cluster.names("jobs") == []
    deadline = time.monotonic() + 10
    while any((cluster.volume / ".aj").glob(".partial-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path.name for path in (cluster.volume / ".aj").rglob("*") if path.is_file()] == []
    cluster.cut_exec = False
    assert person.run(identity="0000beef").azure_name


def test_a_volume_that_cannot_be_written(person: Person, cluster: Double) -> None:
    (cluster.volume / ".aj").write_text("a file where the folder belongs")
    with pytest.raises(SubmissionError, match="cannot write to the volume"):
        person.run()
    assert cluster.names("pods") == cluster.names("jobs") == []


def test_a_helper_that_cannot_be_removed_is_named(person: Person, cluster: Double) -> None:
    cluster.faults.append(Fault("DELETE", "/pods/", 500, 99))
    assert person.run().azure_name
    assert "kubectl --context admin --namespace default delete pod aj-upload-0badcafe" in person.told("warning")[-1]


@pytest.fixture
def storage(person: Person, azure: Azure) -> Storage:
    """Azurite, where the person's template wants the code and has a container to mount."""
    return storage_of(person, azure)


def secret_of(cluster: Double) -> Any:
    (name,) = cluster.names("secrets")
    return cluster.objects["secrets", "default", name]


def signatures(secret: Any) -> set[str]:
    """What must be seen nowhere but in the Secret."""
    return set(re.findall(r"sig=([^&\"]+)", " ".join(secret["stringData"].values())))


def test_credentials_travel_in_a_secret_that_the_job_owns(person: Person, cluster: Double, storage: Storage) -> None:
    result = person.run()
    job = cluster.objects["jobs", "default", str(result.azure_name)]
    secret = secret_of(cluster)
    assert writes(cluster) == ["POST secrets", "POST jobs", "PATCH secrets"]
    assert (
        secret["metadata"]["name"] == "train-0badcafe-credentials"
        and secret["metadata"]["labels"]["aj/id"] == "0badcafe"
    )
    owner = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "name": result.azure_name,
        "uid": job["metadata"]["uid"],
    }
    assert secret["metadata"]["ownerReferences"] == [owner]
    assert set(secret["stringData"]) == {"code.url", "bootstrap.url", "out.yaml"}
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    assert {"name": "credentials", "secret": {"secretName": secret["metadata"]["name"], "defaultMode": 292}} in pod[
        "volumes"
    ]
    everything = str([job, result, person.events]) + "".join(
        path.read_text(errors="replace") for path in person.home.root.rglob("*") if path.is_file()
    )
    assert len(signatures(secret)) == 3
    assert not [each for each in signatures(secret) if each in everything or unquote(each) in everything]


def test_what_a_secret_opens_and_for_how_long(person: Person, cluster: Double, storage: Storage) -> None:
    """One file each, to be read, for the days that the template says; a whole container for as long as Azure allows."""
    import httpx

    person.run()
    texts = secret_of(cluster)["stringData"]
    mount = json.loads(texts["out.yaml"])["azstorage"]
    assert (mount["account-name"], mount["container"], mount["mode"]) == ("ajstoretwo", storage.out, "sas")
    now, day = datetime.now(UTC), timedelta(days=1)
    for text, longest in (
        (texts["code.url"], 2 * day),
        (texts["bootstrap.url"], 2 * day),
        ("?" + mount["sas"], 7 * day),
    ):
        given = dict(parse_qsl(urlsplit(text).query))
        start, end, key_end = (datetime.fromisoformat(given[name]) for name in ("st", "se", "ske"))
        assert timedelta(minutes=14) < now - start < timedelta(minutes=17), "clocks differ"
        assert end == key_end and longest - timedelta(minutes=17) < end - now <= longest
        assert end - start <= 7 * day, "or it ends with its key, silently"
        assert "skoid" in given, "signed by the caller's own delegation, not by a key of the account"
    with httpx.Client(verify=ssl.create_default_context(cafile=str(storage.azure.ca_file))) as anybody:
        assert anybody.get(texts["code.url"]).content == next(
            content for name, content in storage.blobs().items() if name.endswith("code.tar.gz")
        )
        refused = {403, 404}
        put = {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2023-11-03"}
        assert anybody.put(texts["code.url"], content=b"evil", headers=put).status_code in refused
        other = texts["code.url"].replace("code.tar.gz", "other.tar.gz")
        assert anybody.get(other).status_code in refused
        place, sas = f"{mount['endpoint']}/{mount['container']}", mount["sas"]
        # What blobfuse2 does for a file system: write, list, read, remove.
        assert anybody.put(f"{place}/a/b.txt?{sas}", content=b"log", headers=put).status_code == 201
        assert "a/b.txt" in anybody.get(f"{place}?restype=container&comp=list&{sas}").text
        assert anybody.get(f"{place}/a/b.txt?{sas}").content == b"log"
        assert anybody.delete(f"{place}/a/b.txt?{sas}").status_code == 202


@pytest.mark.parametrize("fetcher", ["curl", "wget", "python3"])
def test_the_pods_fetch_their_code_by_https(
    person: Person, cluster: Double, storage: Storage, tmp_path: Path, fetcher: str
) -> None:
    """From the project to the process by Blob storage: each address in the Secret is all that a pod has."""
    person.write(storage.template(TEMPLATE + CODE))
    name = str(person.run().azure_name)
    path = tools(tmp_path / "image", [tool for tool in GNU if tool not in {"curl", "wget", "python3"} - {fetcher}])
    (path / "uv").write_text(f'#!/bin/sh\nshift; exec {sys.executable} "$@"\n')
    (path / "uv").chmod(0o755)
    getent(path, tmp_path / "dns")
    made = Cluster(name, cluster.objects["jobs", "default", name], tmp_path, path)
    made.answer(f"{name}-master-0.{name}")
    ca = str(storage.azure.ca_file)
    (tmp_path / ".wgetrc").write_text(f"ca_certificate = {ca}\n")
    trust = {"CURL_CA_BUNDLE": ca, "SSL_CERT_FILE": ca, "WGETRC": str(tmp_path / ".wgetrc")}
    for task in ("master", "worker"):
        made.command(task)
        for file, text in secret_of(cluster)["stringData"].items():
            (tmp_path / f"{task}-0" / "aj" / "credentials" / file).write_text(text)
        done = made.run(task, 0, **trust)
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        assert not [each for each in signatures(secret_of(cluster)) if each in done.stderr]


def test_code_that_is_up_there_is_not_sent_again(person: Person, cluster: Double, storage: Storage) -> None:
    person.run()
    before = storage.blobs()
    assert len(before) == 2 and all(re.fullmatch(r"aj-code/[0-9a-f]{64}/(code.tar.gz|bootstrap.sh)", p) for p in before)
    with storage.azure.window() as seen:
        person.run(identity="0000beef")
    assert not [line for line in seen.lines() if line.startswith("PUT")] and storage.blobs() == before
    plan = person.plan()
    assert [(step.name, step.verdict) for step in plan.steps if step.kind == "write"] == [
        ("upload-code", "reuse"),
        ("submit", "would"),
    ]
    with storage.azure.window() as seen:
        (person.home.root.parent / "train.py").write_text("print('again')\n")
        person.run(identity="0000beee")
    assert len([line for line in seen.lines() if line.startswith("PUT") and line.endswith("201")]) == 1
    assert len(storage.blobs()) == 3


def test_a_plan_writes_nothing_to_blob_storage(person: Person, cluster: Double, storage: Storage) -> None:
    with storage.azure.window() as seen:
        plan = person.plan()
    assert [step.verdict for step in plan.steps if step.kind == "write"] == ["would", "would"]
    assert storage.blobs() == {} and writes(cluster) == []
    assert {line.split()[0] for line in seen.lines()} <= {"HEAD", "POST"}


BLOB_REFUSALS: dict[str, tuple[Callable[[Storage], Any], str, str]] = {
    "no_container": (
        lambda storage: storage.azure.blobs("ajstoreone").delete_container(storage.code),
        "the container `CODE` of `ajstoreone` does not exist",
        "az storage container create --account-name ajstoreone --name CODE",
    ),
    "no_mount": (
        lambda storage: storage.azure.blobs("ajstoretwo").delete_container(storage.out),
        "the container `OUT` of `ajstoretwo` does not exist",
        "--name OUT",
    ),
    "no_role": (
        lambda storage: storage.azure.control("account", name="ajstoretwo", data_role=False),
        "no data role on the container `OUT` of `ajstoretwo`",
        "Storage Blob Data Contributor",
    ),
    "no_delegation": (
        lambda storage: storage.azure.fault("refuse", "POST Blob /ajstoretwo/", "blob", code="role", times=9),
        "may not give others access to the storage account `ajstoretwo`",
        "Storage Blob Delegator",
    ),
    "firewall": (
        lambda storage: storage.azure.control("account", name="ajstoreone", firewall_open=False),
        "a network rule of the storage account `ajstoreone`",
        "firewall",
    ),
    "no_login": (lambda storage: storage.azure.az.behave(error=NOT_LOGGED_IN), "az login", "az login"),
}


@pytest.mark.parametrize("change,message,way", BLOB_REFUSALS.values(), ids=BLOB_REFUSALS)
def test_what_azure_would_refuse_is_said_before_anything_is_written(
    person: Person, cluster: Double, storage: Storage, change: Callable[[Storage], Any], message: str, way: str
) -> None:
    change(storage)
    with pytest.raises(AjError) as caught:
        person.prepare()
    told = f"{caught.value.message} {caught.value.hint}"
    assert storage.template(message) in caught.value.message and storage.template(way) in told, told
    assert writes(cluster) == []


def test_a_login_never_travels_in_clear(person: Person, cluster: Double, storage: Storage) -> None:
    config = {"cloud": {"arm": storage.azure.arm, "blob": "http://127.0.0.1:1/{account}"}}
    (person.home.root / "aj_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="must not travel in clear") as caught:
        person.prepare()
    assert "https://" in (caught.value.hint or "") and writes(cluster) == []


def test_a_refused_job_takes_its_secret_along(person: Person, cluster: Double, storage: Storage) -> None:
    cluster.faults.append(Fault("POST", "/jobs$", 400))
    with pytest.raises(SubmissionError) as caught:
        person.run()
    assert cluster.names("secrets") == [] and caught.value.hint is None


@pytest.mark.parametrize("do", ["drop", 500])
def test_a_job_that_surely_is_absent_takes_its_secret_along(
    person: Person, cluster: Double, storage: Storage, do: str | int
) -> None:
    cluster.faults.append(Fault("POST", "/jobs$", do, text="etcdserver: request timed out"))
    with pytest.raises(SubmissionError, match="was not created") as caught:
        person.run()
    assert cluster.names("secrets") == cluster.names("jobs") == [] and "submit it again" in (caught.value.hint or "")


def test_a_job_that_is_found_gets_its_secret(person: Person, cluster: Double, storage: Storage) -> None:
    cluster.faults.append(Fault("POST", "/jobs$", "lose"))
    result = person.run()
    (owner,) = secret_of(cluster)["metadata"]["ownerReferences"]
    assert owner["name"] == result.azure_name and "adopted" in (result.note or "")


def test_a_secret_stays_while_nobody_knows_and_goes_when_somebody_does(
    person: Person, cluster: Double, storage: Storage
) -> None:
    frozen = person.prepare()
    cluster.faults += [Fault("POST", "/jobs$", "drop"), Fault("GET", "/namespaces/default/jobs$", 500, 99)]
    with pytest.raises(OutcomeUnknownError) as caught:
        person.submit(frozen)
    assert cluster.names("secrets") == ["train-0badcafe-credentials"]
    assert "delete secret train-0badcafe-credentials" in (caught.value.hint or "")
    cluster.faults.clear()
    with pytest.raises(SubmissionError, match="was not created"):
        person.work.reconcile(frozen, person.caller, person.events.append)
    assert cluster.names("secrets") == []


class Died(BaseException):
    """The daemon, at this very place."""


@pytest.mark.parametrize("place", ["secret", "job"])
def test_a_daemon_that_died_on_the_way_leaves_no_secret_of_nobody(
    person: Person, cluster: Double, storage: Storage, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Between Secret and Job the Secret goes; between Job and its ownership the Job gets it."""
    frozen = person.prepare()
    target = (
        "aj.server.submit.volcano.kubectl.Kubectl.create"
        if place == "secret"
        else "aj.server.submit.volcano.storage.own"
    )
    create = Kubectl.create

    def dies(kubectl: Kubectl, document: Any, *more: Any) -> str:
        if place == "job" or document["kind"] == "Job":
            raise Died
        return create(kubectl, document, *more)

    with monkeypatch.context() as patch:
        patch.setattr(target, dies)
        with pytest.raises(Died):
            person.submit(frozen)
    assert "ownerReferences" not in secret_of(cluster)["metadata"]
    if place == "secret":
        with pytest.raises(SubmissionError, match="was not created"):
            person.work.reconcile(frozen, person.caller, person.events.append)
        assert cluster.names("secrets") == cluster.names("jobs") == []
    else:
        found = person.work.reconcile(frozen, person.caller, person.events.append)
        assert secret_of(cluster)["metadata"]["ownerReferences"][0]["name"] == found.azure_name


def test_a_secret_that_cannot_be_removed_is_named(person: Person, cluster: Double, storage: Storage) -> None:
    cluster.faults += [Fault("POST", "/jobs$", "drop"), Fault("DELETE", "/secrets/", 500, 99)]
    with pytest.raises(SubmissionError, match="was not created") as caught:
        person.run()
    assert "delete secret train-0badcafe-credentials" in (caught.value.hint or "")


def test_a_daemon_that_died_while_it_sent_the_code_leaves_no_helper(
    person: Person, cluster: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = person.prepare()

    def dies(*words: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr("aj.server.submit.volcano.upload.VolumeUploader._script", dies)
        patch.setattr("aj.server.submit.volcano.kubectl.Kubectl.remove", lambda *words: None)
        with pytest.raises(Died):
            person.submit(frozen)
    assert cluster.names("pods") == ["aj-upload-0badcafe"]
    with pytest.raises(SubmissionError, match="was not created"):
        person.work.reconcile(frozen, person.caller, person.events.append)
    assert cluster.names("pods") == []


def test_a_secret_left_from_before_is_in_nobodys_way(person: Person, cluster: Double, storage: Storage) -> None:
    """Its name has another AJ_ID; one of the very same name is neither overwritten nor removed, but told."""
    old = {"code.url": "old"}
    cluster.put("secrets", "train-0000beef-credentials", "default", stringData=old)
    assert person.run().azure_name
    with pytest.raises(SubmissionError, match="already exists") as caught:
        person.run(identity="0000beef")
    assert "delete secret train-0000beef-credentials" in (caught.value.hint or "")
    assert cluster.objects["secrets", "default", "train-0000beef-credentials"]["stringData"] == old
    assert writes(cluster).count("POST jobs") == 1


def test_a_secret_that_cannot_be_made_stops_all(person: Person, cluster: Double, storage: Storage) -> None:
    """Its text is in no error; one whose answer was lost is removed again."""
    for fault in (Fault("POST", "/secrets$", 500, text="cannot store {body}"), Fault("POST", "/secrets$", "lose")):
        cluster.faults[:] = [fault]
        with pytest.raises(
            SubmissionError, match="the Secret `train-0badcafe-credentials` could not be made"
        ) as caught:
            person.run()
        assert "sig=" not in caught.value.message and "skoid" not in caught.value.message
        assert cluster.names("secrets") == cluster.names("jobs") == []


def test_a_secret_without_owner_is_said(person: Person, cluster: Double, storage: Storage) -> None:
    cluster.faults.append(Fault("PATCH", "/secrets/", 500, 99))
    assert person.run().azure_name in cluster.names("jobs")
    assert "delete secret train-0badcafe-credentials" in person.told("warning")[-1]


def test_two_submissions_at_once_do_not_meet(person: Person, cluster: Double) -> None:
    frozen = [person.prepare(identity=f"0000000{number}") for number in range(3)]
    threads = [threading.Thread(target=person.submit, args=(each,)) for each in frozen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(name[:14] for name in cluster.names("jobs")) == [f"train-0000000{number}" for number in range(3)]
    assert cluster.names("pods") == []
