"""What can be known of a cluster before anything is written to it: whether a job would be taken at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, cast

from aj.server.submit.volcano.kubectl import JOBS, REQUEST_SECONDS, Kubectl
from aj.shared.errors import ChildError, ConfigError, SubmissionError
from aj.shared.jsonio import Json
from aj.shared.model import Caller, Emit, Event, JobSpec, to_json
from aj.shared.opts import quantity
from aj.shared.opts.volcano import VolcanoOpts

TIMEOUTS = (10, 30)
"""Seconds to connect, and to read an answer."""
READERS = 8
"""Questions that are asked at once."""
_GROUP, _VERSION = "batch.volcano.sh", "v1alpha1"
_QUEUES = ("scheduling.volcano.sh", "v1beta1", "queues")


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Read access to one cluster."""

    client: Any
    kubectl: Kubectl
    spec: JobSpec

    @property
    def options(self) -> VolcanoOpts:
        return cast(VolcanoOpts, self.spec.backend_spec)

    @property
    def namespace(self) -> str:
        return self.kubectl.namespace or "default"

    def get(self, read: Callable[..., Any], *words: Json) -> Any:
        """The answer as a plain value; None for what is not there, `...` for what may not be read."""
        from kubernetes.client import ApiException

        try:
            return self.client.sanitize_for_serialization(read(*words, _request_timeout=TIMEOUTS))
        except ApiException as error:
            if error.status in (403, 404):
                return None if error.status == 404 else ...
            hint = "log in again" if error.status == 401 else f"look at `{self.kubectl.shown('cluster-info')}`"
            message = f"the cluster answered {error.status}: {error.reason}"
            raise SubmissionError(message, hint=hint, status_code=error.status) from error


def preflight(spec: JobSpec, caller: Caller, emit: Emit) -> dict[str, Json]:
    """Facts: the cluster, and what the code's upload needs.

    `ConfigError` and `SubmissionError` name the command that shows why the job would not be taken.
    """
    from urllib3.exceptions import HTTPError

    options = cast(VolcanoOpts, spec.backend_spec)
    config = _kubeconfig(Kubectl(caller, options.context, None))
    context = str(config["current-context"])
    own = config["contexts"][0]["context"].get("namespace") or "default"
    kubectl = Kubectl(caller, context, options.namespace or own)
    if any(user["user"].get("exec") for user in config.get("users") or ()):
        # A log-in helper may wait for a person: kubectl is ended after a while, the client would wait for ever.
        kubectl.run("get", "--raw", "/version", f"--request-timeout={REQUEST_SECONDS}s")
    cluster = _Cluster(_client(config, caller), kubectl, spec)
    try:
        # Side by side, but the first of them that refuses is the one that is told.
        with ThreadPoolExecutor(READERS, thread_name_prefix="preflight") as pool:
            for warnings in pool.map(lambda check: list(check(cluster)), _checks(options, spec)):
                for warning in warnings:
                    emit(Event("warning", warning))
    except HTTPError as error:
        hint = f"look at `{kubectl.shown('cluster-info')}`"
        raise SubmissionError(f"the cluster of context `{context}` cannot be reached: {error}", hint=hint) from error
    volume = {"claim": options.volume, "image": options.code.helper_image or options.tasks[0].image}
    return {"context": context, "namespace": cluster.namespace, "code": to_json(options.code), "volume": volume}


def _kubeconfig(kubectl: Kubectl) -> dict[str, Any]:
    """The context's part of the kubeconfig by kubectl's own rules, files read in."""
    try:
        output = kubectl.run("config", "view", "--raw", "--minify", "--flatten", "-o", "json")
    except ChildError as error:
        if error.hint:
            raise
        what = f"context `{kubectl.context}`" if kubectl.context else "current context"
        hint = "look at `kubectl config get-contexts`, and at KUBECONFIG"
        raise ConfigError(f"there is no {what}: {error.message}", where="target.context", hint=hint) from error
    return cast(dict[str, Any], json.loads(output.stdout))


def _client(config: dict[str, Any], caller: Caller) -> Any:
    """Log-in helpers and proxies see the caller's environment, never ours."""
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, new_client_from_config_dict

    for user in config.get("users") or ():
        if helper := user["user"].get("exec"):
            given = {item["name"]: item["value"] for item in helper.get("env") or ()}
            helper["env"] = [{"name": key, "value": value} for key, value in {**caller.env, **given}.items()]
    settings = Configuration()
    settings.retries = False
    settings.proxy = caller.env.get("HTTPS_PROXY") or caller.env.get("https_proxy")
    settings.no_proxy = caller.env.get("NO_PROXY") or caller.env.get("no_proxy")
    try:
        return new_client_from_config_dict(  # type: ignore[no-untyped-call]
            config, persist_config=False, client_configuration=settings
        )
    except ConfigException as error:
        hint = "look at `kubectl config view`"
        raise ConfigError(f"cannot log in to the cluster: {error}", where="KUBECONFIG", hint=hint) from error


def _volcano(cluster: _Cluster) -> Iterator[str]:
    from kubernetes.client import CustomObjectsApi

    found = cluster.get(CustomObjectsApi(cluster.client).get_api_resources, _GROUP, _VERSION)
    if found is None or not any(item["name"] == "jobs" for item in found["resources"]):
        hint = f"look at `{cluster.kubectl.shown('api-resources', '--api-group', _GROUP)}`"
        raise SubmissionError(f"the cluster does not know Volcano's Jobs, {_GROUP}/{_VERSION}", hint=hint)
    yield from ()


def _namespace(cluster: _Cluster) -> Iterator[str]:
    from kubernetes.client import CoreV1Api

    found = cluster.get(CoreV1Api(cluster.client).read_namespace, cluster.namespace)
    if found is None:
        hint = f"look at `{cluster.kubectl.shown('get', 'namespaces')}`"
        raise SubmissionError(f"there is no namespace `{cluster.namespace}`", where="target.namespace", hint=hint)
    if found is not ... and (found.get("status") or {}).get("phase") == "Terminating":
        raise SubmissionError(f"the namespace `{cluster.namespace}` is being deleted", where="target.namespace")
    yield from ()


def _queue(cluster: _Cluster) -> Iterator[str]:
    from kubernetes.client import CustomObjectsApi

    queues, name = CustomObjectsApi(cluster.client), cluster.options.queue
    found = cluster.get(queues.get_cluster_custom_object, *_QUEUES, name)
    hint = f"look at `{cluster.kubectl.shown('get', 'queues.scheduling.volcano.sh')}`"
    if found is None:
        raise SubmissionError(f"there is no queue `{name}`", where="target.queue", hint=hint)
    if found is ...:
        yield f"the queue `{name}` may not be read, so nobody knows whether it is open"
        return
    state = (found.get("status") or {}).get("state") or "Open"
    if state != "Open":
        raise SubmissionError(f"the queue `{name}` is {state}, not Open", where="target.queue", hint=hint)
    every = cluster.get(queues.list_cluster_custom_object, *_QUEUES)
    children = [] if every in (None, ...) else [item for item in every["items"] if item["spec"].get("parent") == name]
    if children:
        below = ", ".join(f"`{item['metadata']['name']}`" for item in children)
        raise SubmissionError(f"the queue `{name}` only holds others: {below}", where="target.queue", hint=hint)


def _volume(cluster: _Cluster) -> Iterator[str]:
    from kubernetes.client import CoreV1Api

    name = cluster.options.volume
    if name is None:
        return
    read = CoreV1Api(cluster.client).read_namespaced_persistent_volume_claim
    found = cluster.get(read, name, cluster.namespace)
    hint = f"look at `{cluster.kubectl.shown('get', 'pvc')}`"
    if found is None:
        message = f"there is no PersistentVolumeClaim `{name}` in namespace `{cluster.namespace}`"
        raise SubmissionError(message, where="AMLT_PERSISTENT_VOLUME_NAME", hint=hint)
    if found is ...:
        return
    if (found.get("status") or {}).get("phase") == "Lost":
        raise SubmissionError(f"the volume of `{name}` is lost", where="AMLT_PERSISTENT_VOLUME_NAME", hint=hint)
    if cluster.spec.shape.nodes > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(found["spec"]["accessModes"]):
        yield f"the volume `{name}` cannot be mounted by several nodes: {', '.join(found['spec']['accessModes'])}"


def _checks(options: VolcanoOpts, spec: JobSpec) -> list[Callable[[_Cluster], Iterator[str]]]:
    needed = [("create", _GROUP, "jobs", ""), ("list", _GROUP, "jobs", "")]
    if options.code.strategy == "kubectl-exec":
        needed += [(verb, "", "pods", "") for verb in ("create", "get", "delete")] + [("create", "", "pods", "exec")]
    if spec.storage or options.code.strategy == "blob":
        needed += [(verb, "", "secrets", "") for verb in ("create", "patch", "delete")] + [("get", _GROUP, "jobs", "")]
    return [_volcano, _namespace, _queue, _volume, *(partial(_permission, needs=each) for each in needed), _quota]


def _permission(cluster: _Cluster, needs: tuple[str, str, str, str]) -> Iterator[str]:
    from kubernetes.client import AuthorizationV1Api

    verb, group, resource, part = needs
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": cluster.namespace}
    body = {"spec": {"resourceAttributes": {**attributes, **({"subresource": part} if part else {})}}}
    answer = cluster.get(AuthorizationV1Api(cluster.client).create_self_subject_access_review, body)
    if answer not in (None, ...) and not (answer.get("status") or {}).get("allowed"):
        what = JOBS if group else "/".join(filter(None, (resource, part)))
        hint = f"look at `{cluster.kubectl.shown('auth', 'can-i', verb, what)}`, and ask for the role"
        raise SubmissionError(f"you may not {verb} {what} in namespace `{cluster.namespace}`", hint=hint)
    yield from ()


def _quota(cluster: _Cluster) -> Iterator[str]:
    from kubernetes.client import CoreV1Api

    found = cluster.get(CoreV1Api(cluster.client).list_namespaced_resource_quota, cluster.namespace)
    for quota in [] if found in (None, ...) else found["items"]:
        hard, used = (quota.get("status", {}).get(key) or {} for key in ("hard", "used"))
        for name, amount in _needs(cluster.options).items():
            for key in {name, f"requests.{name}", f"limits.{name}"} & set(hard):
                need, limit = amount, quantity.parse(hard[key]) or 0
                where = f"quota `{quota['metadata']['name']}` of namespace `{cluster.namespace}`"
                hint = f"look at `{cluster.kubectl.shown('describe', 'quota')}`"
                if need > limit:
                    raise SubmissionError(f"the job needs {amount:f} {key}, {where} has {hard[key]} in all", hint=hint)
                if need > limit - (quantity.parse(used.get(key, "0")) or 0):
                    yield f"the job needs {amount:f} {key}, {where} has less left: it will wait"


def _needs(options: VolcanoOpts) -> Mapping[str, Decimal]:
    """What all pods ask for together."""
    total = {"pods": Decimal(sum(task.replicas for task in options.tasks))}
    for task in options.tasks:
        for name, amount in (("cpu", task.cpus), ("memory", task.memory), ("nvidia.com/gpu", str(task.gpus))):
            total[name] = total.get(name, Decimal()) + (quantity.parse(amount or "0") or 0) * task.replicas
    return total
