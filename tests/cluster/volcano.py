"""Volcano's own admission and controllers beside a real API server; what its scheduler would do, the tests do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.azure.certificate import Certificate, self_signed
from tests.cluster.kube import Kube, free_port, process, queue, until
from tests.cluster.prepare import CONTROLLERS, INSTALLATION, WEBHOOKS

JOBS = "jobs.batch.volcano.sh"
QUEUES = "queues.scheduling.volcano.sh"
PODGROUPS = "podgroups.scheduling.volcano.sh"


@dataclass(frozen=True)
class Admission:
    """The server of Volcano's webhooks."""

    argv: Sequence[str | Path]
    log: Path
    life: ExitStack

    def start(self) -> None:
        """Start it; it serves a moment later."""
        self.life.enter_context(process(self.argv, self.log))


@dataclass(frozen=True)
class Volcano:
    """An API server with Volcano in it."""

    kube: Kube
    admission: Admission

    def create(self, document: Any) -> Any:
        """Create an object for real, its namespace too where there is none; the object as it is kept."""
        namespace = document["metadata"]["namespace"]
        if self.kube.attempt("get", "namespace", namespace).returncode:
            self.kube.namespace(namespace)
        return json.loads(self.kube("create", "-f", "-", "-o", "json", stdin=json.dumps(document)))

    def refusal(self, document: Any) -> str:
        """The words with which an object is refused."""
        done = self.kube.attempt("create", "-f", "-", stdin=json.dumps(document))
        assert done.returncode, "it was taken"
        return done.stderr

    def job(self, created: Any, *phases: str) -> Any:
        """A Job, once it is in one of the phases."""
        words = (JOBS, created["metadata"]["name"], "-n", created["metadata"]["namespace"])
        return until(
            lambda: self.kube.get(*words), lambda job: job.get("status", {}).get("state", {}).get("phase") in phases
        )

    def pods(self, created: Any, count: int, attempt: int = 0) -> dict[str, Any]:
        """The Job's pods of an attempt by name, once there are so many; its gang is let in where that is awaited."""
        place = ("-n", created["metadata"]["namespace"])
        selector = f"volcano.sh/job-name={created['metadata']['name']}"

        def look() -> dict[str, Any]:
            self.let_in(created)
            found = self.kube.get("pods", *place, "--selector", selector)["items"]
            alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
            tried = [
                pod for pod in alive if pod["metadata"]["annotations"]["volcano.sh/job-retry-count"] == str(attempt)
            ]
            return {pod["metadata"]["name"]: pod for pod in tried}

        return until(look, lambda pods: len(pods) == count)

    def let_in(self, created: Any) -> None:
        """What a scheduler does that has room for a gang: its pods may be made."""
        for group in self._groups(created):
            if group.get("status", {}).get("phase", "Pending") == "Pending":
                place = ("-n", group["metadata"]["namespace"], "--type=merge")
                # Whose attempt has ended meanwhile is gone.
                self.kube.attempt(
                    "patch", PODGROUPS, group["metadata"]["name"], *place, "-p", '{"status": {"phase": "Inqueue"}}'
                )

    def set_phase(self, pods: Mapping[str, Any], phase: str, exit_code: int | None = None) -> None:
        """What a kubelet would tell of pods, and of the end of their container."""
        status: dict[str, Any] = {"phase": phase}
        if exit_code is not None:
            ended = {"name": "job", "image": "", "imageID": "", "ready": False, "restartCount": 0}
            status["containerStatuses"] = [{**ended, "state": {"terminated": {"exitCode": exit_code}}}]
        for name, pod in pods.items():
            place = ("-n", pod["metadata"]["namespace"], "--subresource=status", "--type=merge")
            self.kube("patch", "pod", name, *place, "-p", json.dumps({"status": status}))

    def bind(self, pods: Mapping[str, Any]) -> None:
        """Give pods to a node, so that nothing but a kubelet ends them."""
        for name, pod in pods.items():
            namespace = pod["metadata"]["namespace"]
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name, "namespace": namespace},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
            }
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
            self.kube("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))

    def end(self, pods: Mapping[str, Any], exit_code: int) -> None:
        """What a kubelet does with pods that are being deleted: SIGTERM makes them fail, then they are gone."""
        self.set_phase(pods, "Failed", exit_code)
        for name, pod in pods.items():
            self.kube("delete", "pod", name, "-n", pod["metadata"]["namespace"], "--grace-period=0", "--force")

    def group(self, created: Any) -> Any:
        """The Job's PodGroup."""
        return until(lambda: self._groups(created), bool)[0]

    def _groups(self, created: Any) -> list[Any]:
        found = self.kube.get(PODGROUPS, "-n", created["metadata"]["namespace"])["items"]
        uid = created["metadata"]["uid"]
        return [item for item in found if item["metadata"]["ownerReferences"][0]["uid"] == uid]

    def close(self, name: str) -> None:
        """Close a queue as Volcano's own command line does, by a Command."""
        found = self.kube.get(QUEUES, name)
        target = {key: found[key] for key in ("apiVersion", "kind")} | {
            "name": name,
            "uid": found["metadata"]["uid"],
            "controller": True,
        }
        command = {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"generateName": f"{name}-close-", "namespace": "default"},
            "target": target,
            "action": "CloseQueue",
        }
        self.kube("create", "-f", "-", stdin=json.dumps(command))
        until(lambda: self.kube.get(QUEUES, name)["status"]["state"], "Closed".__eq__)

    def open_queue(self, name: str, **spec: Any) -> None:
        """A new queue, open."""
        self.kube("create", "-f", "-", stdin=json.dumps(queue(name, **spec)))
        self.await_open(name)

    def await_open(self, name: str) -> None:
        """The controller opens new queues."""
        until(lambda: self.kube.get(QUEUES, name).get("status", {}).get("state"), "Open".__eq__)

    @contextmanager
    def without_admission(self) -> Iterator[None]:
        """While its server is down."""
        self.admission.life.close()
        try:
            yield
        finally:
            self.admission.start()
            self.await_admission()

    def await_admission(self) -> None:
        """Until the API server asks it, and it answers."""
        nothing = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "x"}, "spec": {}}
        document = json.dumps(nothing)
        until(
            lambda: self.kube.attempt("create", "-n", "default", "--dry-run=server", "-f", "-", stdin=document).stderr,
            lambda words: "No task specified" in words,
        )


@contextmanager
def running(assets: Path, work: Path, kube: Kube) -> Iterator[Volcano]:
    """Volcano with its own installation's webhooks, in an API server that has its Jobs; gone afterwards."""
    documents = [each for each in yaml.load_all((assets / INSTALLATION).read_bytes(), yaml.CSafeLoader) if each]
    certificate, port = self_signed(work), free_port()
    commands = next(each for each in documents if each["metadata"]["name"] == "commands.bus.volcano.sh")
    hooks = [_here(each, port) for each in documents if each["kind"].endswith("WebhookConfiguration")]
    # Above all queues; the scheduler makes it, which is not here.
    for items in ([commands, queue("root")], hooks):
        kube("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    kube.await_resources()
    cluster = f"--kubeconfig={kube.kubeconfig}"
    controllers = ("--leader-elect=false", "--controllers=job-controller,queue-controller")
    swift = ("--kube-api-qps=1000", "--kube-api-burst=1000")
    with ExitStack() as stack:
        stack.enter_context(process([assets / CONTROLLERS, cluster, *controllers, *swift], work / "controllers.log"))
        life = stack.enter_context(ExitStack())
        argv: list[str | Path] = [assets / WEBHOOKS, cluster, *_serving(certificate, port, hooks)]
        volcano = Volcano(kube, Admission(argv, work / "webhooks.log", life))
        volcano.admission.start()
        volcano.await_admission()
        for each in kube.get(QUEUES)["items"]:
            volcano.await_open(each["metadata"]["name"])
        yield volcano


def _here(configuration: Any, port: int) -> Any:
    """The same webhooks, where there is no Service in front of them."""
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{webhook['clientConfig']['service']['path']}"}
    return configuration


def _serving(certificate: Certificate, port: int, hooks: Sequence[Any]) -> list[str]:
    """The server itself writes its CA into the configurations."""
    paths = {each["webhooks"][0]["clientConfig"]["url"].partition(f":{port}")[2] for each in hooks}
    return [
        f"--webhook-url=https://127.0.0.1:{port}",
        "--listen-address=127.0.0.1",
        f"--port={port}",
        f"--tls-cert-file={certificate.certificate}",
        f"--tls-private-key-file={certificate.key}",
        f"--ca-cert-file={certificate.certificate}",
        f"--enabled-admission={','.join(sorted(paths))}",
    ]
