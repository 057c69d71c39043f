"""The pods of a Volcano job: one kind for all nodes, or the kinds that `_extra.volcano.tasks` declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from aj.shared.errors import TemplateError
from aj.shared.job.command import command_text, preamble
from aj.shared.job.environment import check_string, job_environment
from aj.shared.jsonio import Json
from aj.shared.model import JobSpec, Shape
from aj.shared.opts import quantity
from aj.shared.sku import parse_sku
from aj.shared.template.template import Template

DECLARED = ("_extra", "volcano", "tasks")
MOST_WORKERS = 10_000
"""Of a job of one kind: its name leaves room for so many pods."""
_CONTAINER = ("jobs", 0, "submit_args", "container_args")
_IN_A_SCRIPT = "put it into a script file, which travels with the code"

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """Pods that differ in nothing but their index."""

    name: str
    replicas: int
    rank_base: int
    """The node rank of its first pod."""
    image: str
    setup: str
    command: str | None
    """The script of its pods; None for the job's own."""
    env: Mapping[str, str]
    """What it lays over the job's environment."""
    cpus: str | None
    memory: str | None
    """Quantities, as requests and limits."""
    gpus: int
    rdma: bool
    processes_per_node: int
    node_selector: Mapping[str, str] = field(default_factory=dict)
    shm_size: str | None = None
    capabilities: tuple[str, ...] = ()
    scratch_mount_path: str | None = None
    scratch_size: str | None = None


def task_from_json(document: Mapping[str, Any]) -> Task:
    """The inverse of a task's JSON."""
    return Task(**{**document, "capabilities": tuple(document["capabilities"])})


def declared_tasks(template: Template) -> tuple[Task, ...]:
    """The tasks that the template declares, `master` first, then by name; none where it has one kind of pods."""
    written = template.get(*DECLARED, default={})
    names = sorted(written, key=lambda name: (name != "master", name))
    bases = accumulate((written[name]["replicas"] for name in names), initial=0)
    return tuple(_declared(template, name, base) for name, base in zip(names, bases, strict=False))


def declared_shape(template: Template) -> Shape | None:
    """All pods, and the most GPUs and processes that one of them has; None where nothing is declared.

    `TemplateError` where the template says the same in another place too.
    """
    tasks = declared_tasks(template)
    if not tasks:
        return None
    for place in _CLASHING:
        if template.get(*place) is not None:
            message = f"`{place[-1]}` says what `_extra.volcano.tasks` says for each task"
            raise TemplateError(message, where=template.where(*place), hint="remove it here")
    sku = template.get("jobs", 0, "sku")
    for text in sku.values() if isinstance(sku, Mapping) else [sku or ""]:
        if "{nodes}" in text or "{processes}" in text:
            message = f"`{text}` takes its numbers from `-n` and `-p`, which tasks of several kinds do not have"
            raise TemplateError(
                message, where=template.where("jobs", 0, "sku"), hint="write a SKU without placeholders"
            )
    most = (max(max(task.gpus for task in tasks), 1), max(task.processes_per_node for task in tasks))
    return Shape(sum(task.replicas for task in tasks), *most)


_CLASHING: tuple[Place, ...] = (
    *(("target", name) for name in ("cpus_per_node", "memory", "gpus_per_node", "rdma")),
    *(("jobs", 0, name) for name in ("instance_count", "process_count_per_node")),
)


def uniform_task(template: Template) -> Task:
    """The kind of pod that every node of a job without declared tasks is; its numbers come with the shape."""
    fields = {name: ("target", name) for name in ("cpus_per_node", "memory")}
    containers = (_CONTAINER,)
    return replace(
        _task(template, "worker", fields, containers),
        rdma=template.get("target", "rdma", default=False),
        image=_image(template),
        setup=_setup(template, ("environment", "setup")),
    )


def uniform_tasks(template: Template, spec: JobSpec, kind: Task) -> tuple[Task, ...]:
    """`master` and the workers of a job of one kind, by its shape; a C SKU has no GPUs."""
    nodes = spec.shape.nodes
    if nodes > MOST_WORKERS:
        message = f"{nodes} nodes are more than the {MOST_WORKERS} for which pods can be named"
        raise TemplateError(message, where=template.where("jobs", 0, "instance_count"))
    cpu = spec.sku is not None and parse_sku(spec.sku, template.where("jobs", 0, "sku")).family == "C"
    gpus = 0 if cpu else spec.shape.processes
    rdma = template.get("target", "rdma", default=gpus > 0)
    master = replace(
        kind, name="master", replicas=1, gpus=gpus, rdma=rdma, processes_per_node=spec.shape.processes_per_node
    )
    workers = replace(master, name="worker", replicas=nodes - 1, rank_base=1)
    return (master, workers) if nodes > 1 else (master,)


def with_commands(template: Template, spec: JobSpec, tasks: tuple[Task, ...]) -> Iterator[Task]:
    """The tasks, each with its own script where it declares one; an empty list means COMMAND alone."""
    entries = template.get("jobs", 0, "command", default=())
    first = preamble((entries,) if isinstance(entries, str) else tuple(entries))
    alone = spec.command.removeprefix("".join(line + "\n" for line in first))
    for task in tasks:
        place = (*DECLARED, task.name, "command")
        written = template.get(*place)
        if written is None:
            yield task
            continue
        lines = preamble((written,) if isinstance(written, str) else tuple(written))
        text = command_text(written, ()).rstrip("\n") if lines else alone
        check_string("AJ_COMMAND", text, template.where(*place), _IN_A_SCRIPT)
        yield replace(task, command=text)


def _declared(template: Template, name: str, rank_base: int) -> Task:
    place = (*DECLARED, name)
    fields = {each: (*place, each) for each in ("cpus_per_node", "memory")}
    task = _task(template, name, fields, ((*place, "container_args"), _CONTAINER))
    env = template.get(*place, "env", default={})
    setup = (*place, "environment", "setup")
    return replace(
        task,
        replicas=template.get(*place, "replicas"),
        rank_base=rank_base,
        image=template.get(*place, "environment", "image") or _image(template),
        setup=_setup(template, setup if template.get(*setup) is not None else ("environment", "setup")),
        env=job_environment(env, {}, {}, lambda variable: template.where(*place, "env", variable)),
        gpus=template.get(*place, "gpus_per_node"),
        rdma=template.get(*place, "rdma"),
        processes_per_node=template.get(*place, "processes_per_node"),
        node_selector=template.get(*place, "node_selector", default={}),
    )


def _task(template: Template, name: str, fields: Mapping[str, Place], containers: tuple[Place, ...]) -> Task:
    def amount(read: Any, *places: Place) -> str | None:
        for place in places:
            if (value := template.get(*place)) is not None:
                return str(read(value, place[-1], template.where(*place)))
        return None

    def container(key: str) -> Iterator[Place]:
        return ((*place, key) for place in containers)

    paths = (template.get(*place) for place in container("scratch_mount_path"))
    capabilities = next(filter(None, (template.get(*place) for place in container("capabilities"))), ())
    return Task(
        name=name,
        replicas=1,
        rank_base=0,
        image="",
        setup="",
        command=None,
        env={},
        cpus=amount(quantity.cpus, fields["cpus_per_node"]),
        memory=amount(quantity.memory, fields["memory"]),
        gpus=0,
        rdma=False,
        processes_per_node=1,
        shm_size=amount(quantity.shm, *container("shm_size")),
        capabilities=tuple(dict.fromkeys(each.upper().removeprefix("CAP_") for each in capabilities)),
        scratch_mount_path=next(filter(None, paths), None),
        scratch_size=amount(quantity.memory, *container("scratch_size")),
    )


def _image(template: Template) -> str:
    registry, image = template.get("environment", "registry"), template.get("environment", "image")
    return f"{registry.rstrip('/')}/{image}" if registry else str(image)


def _setup(template: Template, place: Place) -> str:
    lines: Json = template.get(*place, default=())
    text = "\n".join(lines)
    check_string("AJ_SETUP", text, template.where(*place), _IN_A_SCRIPT)
    return text
