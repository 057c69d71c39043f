"""The description of `aml`: which template fields an Azure ML job has, and the service's limits on them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from aj.shared.errors import TemplateError
from aj.shared.job.naming import fit_name
from aj.shared.jsonio import Json
from aj.shared.model import from_json
from aj.shared.spec import Description
from aj.shared.template.template import Template

TAGS_AT_MOST = 42
"""Of a template: the service takes 50, aj adds its own."""
MOUNTS_AT_MOST = 40
"""Each takes one of the job's 50 properties, and the service adds its own."""
TAG_KEY, TAG_VALUE, DESCRIPTION_TEXT = 100, 1_000, 5_000
"""Characters that the service takes."""
OWN_TAG = re.compile(r"aj_.*|git_(commit|dirty)")

UPLOAD_LIMIT = 5_000 * 2**20
"""Bytes of one Put Blob request."""

_IMAGE = re.compile(
    r"(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_REGISTRY = re.compile(
    r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:))(?::[0-9]+)?(?:/[a-z0-9._/-]+)?"
)
_MEMORY = re.compile(r"([0-9]+)([bkmg])(?:i?b)?", re.IGNORECASE)
_FLAG = re.compile(r"[a-z][a-z0-9_-]*")
_VOLCANO_ONLY = ("scratch_mount_path", "scratch_size")


@dataclass(frozen=True, slots=True)
class AmlOpts:
    """Where an Azure ML job runs, as whom, and what its container gets."""

    compute: str
    subscription_id: str | None
    resource_group: str | None
    workspace: str | None
    """The name; with the two above it says which workspace, whatever is configured."""
    identity: str
    """`managed`, `user` or `none`."""
    mpi: bool
    tags: tuple[tuple[str, str], ...]
    shm_size: str | None
    docker_args: str | None


def build_spec_backend(template: Template) -> AmlOpts:
    """The options; `TemplateError` at the field that Azure ML would refuse."""
    compute = template.get("target", "name")
    if not compute:
        hint = "name a compute cluster of the workspace; `aj quota list --aml` shows them"
        raise TemplateError("`target.name` is missing: which compute?", where=template.where("target"), hint=hint)
    check_image(template)
    check_sizes(template)
    return AmlOpts(
        compute=compute,
        subscription_id=template.get("target", "subscription_id"),
        resource_group=template.get("target", "resource_group"),
        workspace=template.get("target", "workspace_name"),
        identity=str(template.get("jobs", 0, "identity", default="managed")).lower(),
        mpi=bool(template.get("jobs", 0, "mpi", default=False)),
        tags=tags_of(template),
        shm_size=shm_size(template),
        docker_args=" ".join(shlex.quote(word) for word in _docker_words(template)) or None,
    )


def normalize_job_name(name: str) -> str:
    """An Azure ML job's name: letters, digits, `_` and `-`, at most 255 characters, the id kept."""
    return fit_name(name, allowed="A-Za-z0-9_-", first="A-Za-z0-9", limit=255)


def image_reference(image: str, registry: str | None) -> str:
    """The image with its registry, `docker.io` unless it or the template names one."""
    first, slash, _ = image.partition("/")
    named = bool(slash) and ("." in first or ":" in first or first == "localhost")
    if named and (registry is None or image.startswith(f"{registry}/")):
        return image
    return f"{registry or 'docker.io'}/{image}"


def check_image(template: Template) -> None:
    """`TemplateError` for an image or a registry that can be none."""
    image, registry = template.get("environment", "image"), template.get("environment", "registry")
    where = template.where("environment", "image")
    if not image:
        hint = "set `environment.image`, such as `pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime`"
        raise TemplateError("`environment.image` is missing: a job there runs in an image", where=where, hint=hint)
    if not _IMAGE.fullmatch(image):
        raise TemplateError(f"`{image}` is not an image's name", where=where, hint="write `repository/name:tag`")
    if registry is not None and not _REGISTRY.fullmatch(registry):
        raise TemplateError(
            f"`{registry}` is not a registry: it has no host name",
            where=template.where("environment", "registry"),
            hint="write a host such as `nvcr.io` or `myteam.azurecr.io`; without it the image comes from `docker.io`",
        )


def tags_of(template: Template) -> tuple[tuple[str, str], ...]:
    """`key:value` texts as pairs in their order, within the service's limits; a text without `:` is a key alone."""
    found: dict[str, str] = {}
    for index, text in enumerate(template.get("jobs", 0, "tags", default=())):
        key, _, value = (part.strip() for part in str(text).partition(":"))
        where = template.where("jobs", 0, "tags", index)
        if len(key) > TAG_KEY or len(value) > TAG_VALUE or not key:
            message = f"the tag `{key[:40]}…` is too long" if key else f"the tag `{text}` has no key"
            hint = f"a key takes 1 to {TAG_KEY} characters, a value up to {TAG_VALUE}"
            raise TemplateError(message, where=where, hint=hint)
        if key in found or OWN_TAG.fullmatch(key):
            message = f"the tag `{key}` is " + ("given twice" if key in found else "one of aj's own")
            raise TemplateError(message, where=where, hint="rename or remove it")
        found[key] = value
        if len(found) > TAGS_AT_MOST:
            message = f"more than {TAGS_AT_MOST} tags: a job has at most 50, and aj adds its own"
            raise TemplateError(message, where=where, hint="remove some, or join them into one value")
    return tuple(found.items())


def shm_size(template: Template) -> str | None:
    """`container_args.shm_size` in the service's spelling, such as `64g`."""
    key = ("jobs", 0, "submit_args", "container_args", "shm_size")
    value = template.get(*key)
    if value is None:
        return None
    match = _MEMORY.fullmatch(str(value))
    if match is None:
        raise TemplateError(f"`{value}` is not a size", where=template.where(*key), hint="write for example `64g`")
    return match[1] + match[2].lower()


def _docker_words(template: Template) -> Iterator[str]:
    """What else `container_args` asks for, as words of `docker run`."""
    key = ("jobs", 0, "submit_args", "container_args")
    for name, value in template.get(*key, default={}).items():
        if name == "shm_size" or name in _VOLCANO_ONLY:
            continue
        if not _FLAG.fullmatch(name):
            raise TemplateError(f"`{name}` is not a flag of `docker run`", where=template.where(*key, name))
        flag = "--cap-add" if name == "capabilities" else f"--{name.replace('_', '-')}"
        yield from (f"{flag}={_spelled(each)}" for each in (value if isinstance(value, list) else [value]))


def _spelled(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_sizes(template: Template) -> None:
    """`TemplateError` for what is too long or too many for the service."""
    if len(template.get("description", default="")) > DESCRIPTION_TEXT:
        message = f"the description is longer than {DESCRIPTION_TEXT:,} characters"
        raise TemplateError(message, where=template.where("description"), hint="shorten it")
    if len(template.get("storage", default={})) > MOUNTS_AT_MOST:
        message = f"more than {MOUNTS_AT_MOST} storages: Azure ML cannot mount so many"
        raise TemplateError(message, where=template.where("storage"), hint="mount a common folder")


DESCRIPTION = Description(
    service="aml",
    build_spec_backend=build_spec_backend,
    load_spec_backend=partial(from_json, AmlOpts),
    normalize_job_name=normalize_job_name,
    uploads=("code", "bootstrap"),
    upload_limit=UPLOAD_LIMIT,
    unused={
        "/target/namespace": "an Azure ML compute has no namespace",
        "/target/queue": "an Azure ML compute has one queue",
        "/target/context": "Azure ML is no Kubernetes cluster of yours",
        "/target/cpus_per_node": "the compute's machines decide",
        "/target/memory": "the compute's machines decide",
        "/target/rdma": "the compute's machines decide",
        "/target/priority_class": "a compute has no priority classes",
        "/target/labels": "an Azure ML job has tags: `jobs[0].tags`",
        "/jobs/0/sku": "the compute's machines decide",
        "/jobs/0/sla_tier": "a compute has no tiers",
        "/jobs/0/preemptible": "the compute decides whether its machines are preemptible",
        "/jobs/0/priority": "a compute takes its jobs in their order",
        "/jobs/0/submit_args/container_args/scratch_mount_path": "the compute's machines decide where scratch space is",
        "/jobs/0/submit_args/container_args/scratch_size": "the compute's machines decide",
    },
)
