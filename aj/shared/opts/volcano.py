"""The description of `volcano`: what a template means as one gang-scheduled Job, and whether all of it fits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

from aj.shared.errors import TemplateError
from aj.shared.job.environment import STRING_LIMIT
from aj.shared.job.naming import fit_name
from aj.shared.model import JobSpec, Options
from aj.shared.opts.volcano_tasks import (
    DECLARED,
    MOST_WORKERS,
    Place,
    Task,
    declared_shape,
    declared_tasks,
    task_from_json,
    uniform_task,
    uniform_tasks,
    with_commands,
)
from aj.shared.schema import violations
from aj.shared.spec import Description
from aj.shared.template.template import Template

VOLUME_NAME = "AMLT_PERSISTENT_VOLUME_NAME"
VOLUME_FOLDER = "AMLT_PERSISTENT_VOLUME_MOUNT_DIR"
OWN_FOLDER = "/aj"
"""Where a pod has aj's own volumes: `work`, `credentials`."""
HOSTS_FOLDER = "/etc/volcano"
"""Where Volcano mounts the names of a job's pods into each of them."""
_ENV = ("jobs", 0, "submit_args", "env")
_SUFFIX = 6
"""Characters that the server puts behind the stem, the dash included."""
_STEM_LIMIT = 59 - _SUFFIX
_POD_LIMIT = 61 - _SUFFIX
_OBJECT_LIMIT = 1_400_000
"""Bytes of a Job that a server surely takes."""
_SCRIPT_ALLOWANCE = 16_000
"""Bytes of a task beside its environment."""
_MISSPELT_HOSTS = re.compile(r"VC_[A-Za-z0-9_]*-[A-Za-z0-9_-]*_(?:HOSTS|NUM)")


@dataclass(frozen=True, slots=True)
class CodeUpload:
    """How the code gets into the pods: `kubectl-exec` onto a volume that they share, or `blob`."""

    strategy: str = "kubectl-exec"
    helper_image: str | None = None
    """Of the pod that writes to the volume; the master's where there is none."""
    storage_account: str | None = None
    container: str | None = None
    upload_dir: str = "aj-code"
    sas_expiry_days: int = 7
    """A job may wait in its queue for days: the longest that Azure grants."""
    pod_download_retries: int = 5


@dataclass(frozen=True, slots=True)
class VolcanoOpts:
    """A Job beside what every backend knows of it."""

    namespace: str | None
    """None for the context's own."""
    queue: str
    context: str | None
    """None for the kubeconfig's current one."""
    priority_class: str | None
    labels: Mapping[str, str]
    tasks: tuple[Task, ...]
    declared: bool
    """Whether the template declares the tasks; else they are `master` and `worker` of one kind."""
    code: CodeUpload
    volume: str | None
    """The PersistentVolumeClaim that every pod mounts at `volume_folder`."""
    volume_folder: str | None
    name_limit: int
    """Characters of the job's name, so that those of its pods fit."""


def build_spec_backend(template: Template) -> VolcanoOpts:
    """The options, but for what the shape and the command add; `TemplateError` at the first field that is wrong."""
    for violation in violations(template.raw, "volcano-template"):
        parts = [part.replace("~1", "/").replace("~0", "~") for part in violation.pointer.split("/")[1:]]
        raise TemplateError(violation.message, where=template.where(*parts), hint=violation.hint)
    tasks = declared_tasks(template)
    written = template.get("_extra", "code_upload", default={})
    own = {key: value for key, value in written.items() if key != "blob"}
    return VolcanoOpts(
        namespace=template.get("target", "namespace"),
        queue=template.get("target", "queue", default="default"),
        context=template.get("target", "context"),
        priority_class=template.get("target", "priority_class"),
        labels=template.get("target", "labels", default={}),
        tasks=tasks or (uniform_task(template),),
        declared=bool(tasks),
        code=CodeUpload(**own, **(written.get("blob", {}) if own.get("strategy") == "blob" else {})),
        volume=None,
        volume_folder=None,
        name_limit=_name_limit(template, tasks),
    )


def load_spec_backend(document: Mapping[str, Any]) -> VolcanoOpts:
    """The inverse of the JSON of `VolcanoOpts`."""
    tasks = tuple(task_from_json(task) for task in document["tasks"])
    return VolcanoOpts(**{**document, "tasks": tasks, "code": CodeUpload(**document["code"])})


def normalize_job_name(name: str) -> str:
    """The stem of a Job's name: a DNS-1035 label that leaves room for the server's suffix and a service's name."""
    return fit_name(name, allowed="a-z0-9-", first="a-z", limit=_STEM_LIMIT)


def shorten(name: str, options: Options) -> str:
    """The same within what the names of the job's pods leave, the id kept."""
    return fit_name(name, allowed="a-z0-9-", first="a-z", limit=cast(VolcanoOpts, options).name_limit)


def complete(spec: JobSpec, template: Template) -> JobSpec:
    """The job with its tasks as they will be; `TemplateError` where something that follows from them does not fit."""
    options = cast(VolcanoOpts, spec.backend_spec)
    tasks = options.tasks if options.declared else uniform_tasks(template, spec, options.tasks[0])
    tasks = tuple(with_commands(template, spec, tasks))
    volume, folder = _volume(spec, template, options.code)
    options = replace(options, tasks=tasks, volume=volume, volume_folder=folder)
    spec = replace(spec, backend_spec=options)
    _check_mounts(spec, template)
    _check_texts(spec, template)
    _check_sizes(spec, template)
    return spec


def _name_limit(template: Template, tasks: tuple[Task, ...]) -> int:
    sizes = {task.name: len(task.name) + len(str(task.replicas - 1)) for task in tasks}
    sizes = sizes or {"worker": len("worker") + len(str(MOST_WORKERS - 2))}
    longest = max(sizes, key=sizes.__getitem__)
    limit = min(_STEM_LIMIT, _POD_LIMIT - sizes[longest])
    if limit < len("j-00000000"):
        message = f"task `{longest}` leaves {limit} characters for the job's name, whose id alone takes 10"
        raise TemplateError(message, where=template.where(*DECLARED, longest), hint="give the task a shorter name")
    return limit


def _volume(spec: JobSpec, template: Template, code: CodeUpload) -> tuple[str | None, str | None]:
    name, folder = spec.env.get(VOLUME_NAME), spec.env.get(VOLUME_FOLDER)
    if code.strategy == "kubectl-exec" and not (name and folder):
        raise TemplateError(
            f"no volume for the code: `{VOLUME_FOLDER if name else VOLUME_NAME}` is not set",
            where=template.where(*_ENV),
            hint=f"set `{VOLUME_NAME}` and `{VOLUME_FOLDER}` in it, or `_extra.code_upload.strategy: blob`",
        )
    if bool(name) != bool(folder):
        message = f"`{VOLUME_NAME}` and `{VOLUME_FOLDER}` go together, and one is not set"
        raise TemplateError(message, where=template.where(*_ENV))
    for key, value, form in ((VOLUME_NAME, name, _CLAIM), (VOLUME_FOLDER, folder, _FOLDER)):
        if value and not form.fullmatch(value):
            hint = "name a PersistentVolumeClaim" if key == VOLUME_NAME else "write an absolute path such as `/mnt/pvc`"
            raise TemplateError(f"`{key}` is `{value}`", where=template.where(*_ENV, key), hint=hint)
    return name or None, _plain(folder) if folder else None


_CLAIM = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KERNELS = re.compile(r"/(?:proc|sys|dev)(?:/|\Z)")
_SHM = "shared memory"
_FOLDER = re.compile(r"(/[A-Za-z0-9._-]+)+/?")


def _check_mounts(spec: JobSpec, template: Template) -> None:
    for task in cast(VolcanoOpts, spec.backend_spec).tasks:
        places = dict(_mounts(spec, task))
        for what, (folder, place) in places.items():
            if ".." in folder.split("/") or (_KERNELS.match(folder) and what != _SHM):
                raise TemplateError(f"{what} cannot be mounted at `{folder}`", where=template.where(*place))
        for (one, (first, _)), (other, (second, place)) in combinations(places.items(), 2):
            if f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/"):
                message = f"{other} at `{second}` overlaps {one} at `{first}`"
                raise TemplateError(message, where=template.where(*place), hint="mount it somewhere else")


def _mounts(spec: JobSpec, task: Task) -> Iterator[tuple[str, tuple[str, Place]]]:
    options = cast(VolcanoOpts, spec.backend_spec)
    yield _SHM, ("/dev/shm", ())
    yield "aj's own folder", (OWN_FOLDER, ())
    yield "Volcano's own folder", (HOSTS_FOLDER, ())
    if options.volume_folder:
        yield f"the volume `{options.volume}`", (options.volume_folder, (*_ENV, VOLUME_FOLDER))
    for mount in spec.storage:
        yield f"storage `{mount.name}`", (_plain(mount.mount_dir), ("storage", mount.name, "mount_dir"))
    if task.scratch_mount_path:
        own = (*DECLARED, task.name, "container_args", "scratch_mount_path")
        shared = ("jobs", 0, "submit_args", "container_args", "scratch_mount_path")
        yield f"the scratch space of `{task.name}`", (_plain(task.scratch_mount_path), own if task.env else shared)


def _plain(folder: str) -> str:
    return "/" + "/".join(part for part in folder.split("/") if part not in ("", "."))


def _check_texts(spec: JobSpec, template: Template) -> None:
    options = cast(VolcanoOpts, spec.backend_spec)
    for name in spec.env:
        if name.startswith("VC_") or name == "VK_TASK_INDEX":
            raise TemplateError(
                f"`{name}` is set by Volcano, which would overwrite yours", where="--env", hint="rename it"
            )
    texts = [
        (spec.command, ("jobs", 0, "command")),
        *((task.setup, ("environment", "setup")) for task in options.tasks),
    ]
    texts += [(task.command or "", (*DECLARED, task.name, "command")) for task in options.tasks]
    texts += [(value, (*_ENV, name)) for name, value in spec.env.items()]
    for text, place in texts:
        if found := _MISSPELT_HOSTS.search(text):
            hint = f"Volcano calls it `{found[0].upper().replace('-', '_')}`"
            raise TemplateError(f"`{found[0]}` is no variable's name", where=template.where(*place), hint=hint)


def _check_sizes(spec: JobSpec, template: Template) -> None:
    options = cast(VolcanoOpts, spec.backend_spec)
    job = len(spec.name) + _SUFFIX
    total = 0
    for task in options.tasks:
        place = (*DECLARED, task.name, "replicas") if options.declared else ("jobs", 0, "instance_count")
        digits = sum(len(str(index)) for index in range(task.replicas))
        hosts = len(f"VC_{task.name}_HOSTS=") + task.replicas * (2 * job + len(task.name) + 4) + digits
        if hosts > STRING_LIMIT:
            message = (
                f"the names of {task.replicas} pods take {hosts:,} bytes in one variable, which holds {STRING_LIMIT:,}"
            )
            raise TemplateError(message, where=template.where(*place), hint="take fewer nodes, or a shorter AJ_NAME")
        texts = {**spec.env, **task.env, "AJ_COMMAND": task.command or spec.command, "AJ_SETUP": task.setup}
        total += _SCRIPT_ALLOWANCE + sum(len(key) + 40 + _as_json(value) for key, value in texts.items())
    if total > _OBJECT_LIMIT:
        message = f"the Job takes {total:,} bytes, of which a cluster holds about {_OBJECT_LIMIT:,}"
        hint = "put long values into files, which travel with the code"
        raise TemplateError(message, where=template.where(*_ENV), hint=hint)


def _as_json(text: str) -> int:
    """Bytes of a value whose dollars are doubled, in the JSON that kubectl sends."""
    return len(text.encode()) + text.count("$") + 6 * len(re.findall(r'[\x00-\x1f"\\<>&\u2028\u2029]', text))


_AZURE = "a Volcano job runs in the cluster of its kubeconfig context"
_PLACE = "a Volcano job is placed by its queue and resources"

DESCRIPTION = Description(
    service="volcano",
    build_spec_backend=build_spec_backend,
    load_spec_backend=load_spec_backend,
    normalize_job_name=normalize_job_name,
    shorten=shorten,
    shape=declared_shape,
    complete=complete,
    uploads=("code",),
    managed=False,
    unused={
        "/target/name": _AZURE,
        "/target/subscription_id": _AZURE,
        "/target/resource_group": _AZURE,
        "/target/workspace_name": _AZURE,
        "/jobs/0/identity": "a Volcano job acts as its namespace's service account",
        "/jobs/0/mpi": "its processes are started by aj, not by mpirun",
        "/jobs/0/sla_tier": _PLACE,
        "/jobs/0/preemptible": _PLACE,
        "/jobs/0/priority": "write `target.priority_class`",
        "/jobs/0/tags": "write `target.labels`",
        "/jobs/0/submit_args/container_args/cpus": "write `target.cpus_per_node`",
        "/jobs/0/submit_args/container_args/memory": "write `target.memory`",
        "/jobs/0/submit_args/container_args/user": "a pod runs as its image says",
    },
)
