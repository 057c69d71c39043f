"""The protocol of everything that reaches outside the build folder, and the object that forbids its writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn, Protocol

from aj.shared.errors import ReadOnlyError, SubmissionError
from aj.shared.jsonio import Json
from aj.shared.model import Emit, JobSpec

_FILES = {"code": "code.tar.gz", "bootstrap": "bootstrap.sh"}


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that must lie at the remote under its own content address before the job is submitted."""

    name: str
    """`code` or `bootstrap`."""
    sha256: str
    size: int
    path: Path
    job_id: str = "00000000"
    """The AJ_ID of the job that needs it: names what an upload leaves for a moment at the remote."""

    @property
    def file(self) -> str:
        """The last part of its name at a remote."""
        return _FILES[self.name]

    @property
    def place(self) -> str:
        """Its name at a remote, below the folder that is ours: its digest, then what it is."""
        return f"{self.sha256}/{self.file}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof of an upload."""

    url: str
    etag: str | None
    sha256: str
    size: int


class Unseen(Enum):
    """The answer where only a write could tell what is there."""

    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class JobReceipt:
    """Proof of a submission."""

    remote_name: str
    portal_url: str | None
    status: str
    """In Azure ML's words."""
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is sent: the payload with its real identity, and the spec that it was rendered from."""

    spec: JobSpec
    payload: Json
    uploads: tuple[Upload, ...]
    archive: Path | None = None
    """The archive in the store, leased while the submission lives; None where another tool packs the code."""


class Effects(Protocol):
    """One backend's reads and writes for one submission."""

    def facts(self, spec: JobSpec, emit: Emit) -> Json:
        """Read: what the payload needs to know of the remote; `{}` where that is nothing."""
        ...

    def present(self, upload: Upload, facts: Json) -> Receipt | Unseen | None:
        """Read: the receipt of equal bytes that are already at the remote."""
        ...

    def upload(self, upload: Upload, facts: Json, emit: Emit) -> Receipt:
        """Write: send the file; a file that appeared meanwhile is adopted when its bytes are equal."""
        ...

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        """Write: one attempt. `SubmissionError`: surely nothing exists; `OutcomeUnknownError`: that is not sure."""
        ...

    def find(self, spec: JobSpec, facts: Json) -> JobReceipt | None:
        """Read: our job by our own unique name, after a lost answer; None when it surely does not exist."""
        ...


class NothingToUpload:
    """The half of `Effects` that a backend without a remote store needs: nothing to know, nothing to send."""

    __slots__ = ()

    def facts(self, spec: JobSpec, emit: Emit) -> Json:
        """Nothing needs to be known beforehand."""
        return {}

    def present(self, upload: Upload, facts: Json) -> NoReturn:
        """Never asked: the description names no uploads."""
        raise SubmissionError(f"this backend uploads nothing, so not `{upload.name}` either")

    def upload(self, upload: Upload, facts: Json, emit: Emit) -> NoReturn:
        """Never asked: the description names no uploads."""
        self.present(upload, facts)


class ReadOnly:
    """The same reads; every write raises `ReadOnlyError`."""

    def __init__(self, inner: Effects) -> None:
        self.facts = inner.facts
        self.present = inner.present
        self.find = inner.find

    def upload(self, upload: Upload, facts: Json, emit: Emit) -> NoReturn:
        raise ReadOnlyError(f"a plan must not upload `{upload.name}`")

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> NoReturn:
        raise ReadOnlyError(f"a plan must not submit `{sealed.spec.name}`")
