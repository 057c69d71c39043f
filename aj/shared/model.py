"""The values that travel: JobSpec to the daemon, events, results and plans back; all frozen, all JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from aj.shared.jsonio import Json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes one run differ from an equal one: never part of a payload's digest."""

    id: str
    """AJ_ID, 8 lower-case hex digits."""
    base: str
    """AJ_NAME, or the folder's name with the script's stem."""
    submitted_at: str
    """ISO 8601 UTC in whole seconds."""

    @classmethod
    def symbolic(cls, template: str) -> Identity:
        """The identity that payload digests and snapshots carry; valid wherever a real one is."""
        return cls(id="00000000", base=template, submitted_at="1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class Shape:
    """How many: instance count, `-p` and `--ppn`."""

    nodes: int
    processes: int
    """The per-node SKU selector `-p`: GPUs of a G SKU, size tier of a C SKU."""
    processes_per_node: int
    """Launcher processes on each node."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A blob container mounted in the job."""

    name: str
    account: str
    container: str
    mount_dir: str


@dataclass(frozen=True, slots=True)
class Source:
    """A file that a merged template came from: path relative to AJ_HOME (POSIX) and the digest of its bytes."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class MergedTemplate:
    """The merged source document, kept for amlt rendering and for plan's diff."""

    name: str
    raw: Mapping[str, Json]
    sources: tuple[Source, ...]


class Options(Protocol):
    """A backend's typed options: a frozen dataclass of JSON-able fields."""

    __dataclass_fields__: ClassVar[Any]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, backend-neutral; `backend_spec` is typed by the description, `extra` is nobody's business here."""

    service: str
    identity: Identity
    name: str
    """The remote name: base and id, normalized by the backend."""
    shape: Shape
    sku: str | None
    """`jobs[0].sku` with its placeholders filled in."""
    image: str | None
    registry: str | None
    setup: tuple[str, ...]
    """Shell lines run once per node before the command."""
    command: str
    """The whole script: the template's commands, then the user's words, shell-quoted."""
    argv: tuple[str, ...]
    """The user's words as given."""
    env: Mapping[str, str]
    """The job's environment, stable AJ_* variables included."""
    secret_env: tuple[str, ...]
    """Names in `env` that came with `--env`: their values are hidden in every text, whatever they are called."""
    storage: tuple[Mount, ...]
    ignore: tuple[str, ...]
    """`code.ignore`: patterns in git's syntax."""
    timeout_seconds: int | None
    """`max_run_duration_seconds`."""
    description: str | None
    backend_spec: Options
    extra: Mapping[str, Json]
    template: MergedTemplate
    via: str | None = None
    """`amlt`: rendered for and submitted by that tool, instead of by the service's own execution."""

    @property
    def backend(self) -> str:
        """Who submits it: `via`, else the service."""
        return self.via or self.service


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth a warning: it changes nothing, `where` says what to look at."""

    message: str
    where: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Progress. `kind`: `scan` (counts files), `pack`, `upload` (bytes), `step`, `note`, `warning`, `wait`."""

    kind: str
    detail: str
    completed: int | None = None
    total: int | None = None


Emit = Callable[[Event], None]
"""Where progress goes."""


def nowhere(event: Event) -> None:
    """An `Emit` that keeps nothing."""
    del event


@dataclass(frozen=True, slots=True)
class ArchiveRecord:
    """The target of the archive step."""

    sha256: str
    """Of the finished `.tar.gz`: its address."""
    size: int
    """Bytes of the `.tar.gz`."""
    files: int
    tree: str
    """The tree digest that it was packed from."""
    format: int
    """The version of the archive's byte format."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller's world, carried in the request: the daemon never uses its own instead."""

    cwd: str
    """Absolute: the code's root, and what relative paths are relative to."""
    env: Mapping[str, str]
    """Only names on the allow-list of `aj.shared.caller`."""


Status = Literal["submitted", "queued", "failed", "unknown", "dry_run"]


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of one submission: the `submission_result` document (json-output)."""

    status: Status
    id: str
    name: str
    backend: str
    template: str
    nodes: int
    processes: int
    processes_per_node: int
    azure_name: str | None = None
    """The authoritative remote name; None before there is one."""
    portal_url: str | None = None
    ticket: str | None = None
    archive: Mapping[str, Json] | None = None
    """{sha256, size, files, reused}"""
    payload_sha256: str | None = None
    job_status: str | None = None
    """In Azure ML's words, when the job was followed."""
    note: str | None = None
    error: Mapping[str, Json] | None = None
    """`errors.to_wire`"""


Verdict = Literal["same", "changed", "new", "reuse", "would", "unknown", "blocked"]
Reason = Literal[
    "first_run", "input_changed", "key_changed", "target_missing", "format_changed", "never_verified", "remote_missing"
]


@dataclass(frozen=True, slots=True)
class Why:
    """One reason of a verdict; `detail` names the input, the key or the object."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """A step judged against the last submitted run of the line."""

    name: str
    kind: Literal["pure", "read", "write"]
    verdict: Verdict
    why: tuple[Why, ...] = ()
    bytes: int | None = None
    """What a write would send."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file of the archive that was added, changed or removed since the baseline; size in bytes, None when removed."""

    path: str
    size: int | None


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """The archive's half of a plan."""

    sha256: str
    size: int
    files: int
    added: tuple[FileChange, ...] = ()
    changed: tuple[FileChange, ...] = ()
    removed: tuple[FileChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next run would do: the `plan` document (json-output)."""

    plan_id: str
    template: str
    backend: str
    line: str
    baseline: str | None
    """AJ_ID of the last submitted run of this line."""
    would_change: bool
    steps: tuple[StepVerdict, ...]
    archive: ArchivePlan | None
    """None where another tool packs the code."""
    payload_sha256: str
    diffs: Mapping[str, str]
    """Unified diffs of `template` and `payload`, empty text when equal."""
    warnings: tuple[Notice, ...] = field(default=())


def to_json(value: Any) -> Any:
    """A value of this module as JSON: dataclasses become objects, tuples lists."""
    return _plain(asdict(value))


def from_json(kind: type[T], document: Mapping[str, Any]) -> T:
    """The inverse of `to_json`: objects become the dataclasses, and lists the tuples, that the fields name.

    `TypeError` for a key that is missing or too many.
    """
    hints = _hints(kind)
    return kind(**{name: _typed(hints.get(name), value) for name, value in document.items()})


_hints: Callable[[Any], Mapping[str, Any]] = cache(get_type_hints)


def _typed(hint: Any, value: Any) -> Any:
    for kind in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        if isinstance(value, Mapping) and isinstance(kind, type) and is_dataclass(kind):
            return from_json(kind, value)
        if isinstance(value, list) and get_origin(kind) is tuple:
            return tuple(_typed(get_args(kind)[0], item) for item in value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
