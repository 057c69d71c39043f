"""A third party's backend: its remote is a folder, its network can be cut, its writes are counted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aj.build.effects import JobReceipt, Receipt, Sealed, Upload
from aj.server.submit import Execution
from aj.shared.errors import OutcomeUnknownError, SubmissionError
from aj.shared.jsonio import Json, sha256, write_file
from aj.shared.model import Caller, Emit, JobSpec
from aj.shared.paths import Home
from aj.shared.spec import Description
from aj.shared.template.template import Template

FOLDER = Path(__file__).parent / "double_backend"


@dataclass(frozen=True, slots=True)
class DoubleOpts:
    """No options."""


@dataclass
class Remote:
    """`AJ_HOME/../remote`: blobs by digest, jobs by name, and a log of every write."""

    root: Path
    writes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, home: Home) -> Remote:
        return cls(home.root.parent.parent / "remote")

    def facts(self, spec: JobSpec, emit: Emit) -> Json:
        path = self.root / "facts.json"
        return json.loads(path.read_text()) if path.exists() else {"store": "default"}

    def present(self, upload: Upload, facts: Json) -> Receipt | None:
        path = self.root / "blobs" / upload.sha256
        if not path.exists():
            return None
        if sha256(path.read_bytes()) != upload.sha256:
            raise SubmissionError(f"a foreign blob lies at `{upload.sha256}`")
        return Receipt(str(path), None, upload.sha256, upload.size)

    def upload(self, upload: Upload, facts: Json, emit: Emit) -> Receipt:
        path = self.root / "blobs" / upload.sha256
        write_file(path, upload.path.read_bytes())
        self._log(f"upload-{upload.name} {upload.size}")
        return Receipt(str(path), None, upload.sha256, upload.size)

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        path = self.root / "jobs" / f"{sealed.spec.name}.json"
        if path.exists():
            raise SubmissionError(f"`{sealed.spec.name}` exists")
        mode = (self.root / "fault").read_text() if (self.root / "fault").exists() else ""
        if mode != "lost before":
            write_file(path, json.dumps(sealed.payload).encode())  # a remote takes all or nothing
            self._log(f"submit {sealed.spec.name}")
        if mode.startswith("lost"):
            raise OutcomeUnknownError("the answer was lost")
        return JobReceipt(sealed.spec.name, f"https://portal/{sealed.spec.name}", "Queued")

    def find(self, spec: JobSpec, facts: Json) -> JobReceipt | None:
        if (self.root / "blind").exists():
            raise SubmissionError("the network is down")
        if not (self.root / "jobs" / f"{spec.name}.json").exists():
            return None
        return JobReceipt(spec.name, None, "Queued")

    def _log(self, line: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "log").open("a") as log:
            log.write(line + "\n")


def _build(template: Template) -> DoubleOpts:
    return DoubleOpts()


def _load(document: Mapping[str, Any]) -> DoubleOpts:
    return DoubleOpts(**document)


def _name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _effects(home: Home, caller: Caller) -> Remote:
    return Remote.of(home)


DESCRIPTION = Description(
    service="double",
    build_spec_backend=_build,
    load_spec_backend=_load,
    normalize_job_name=_name,
    unused={},
    uploads=("code", "bootstrap"),
    folder=FOLDER,
)
EXECUTION = Execution(effects=_effects, jobs=None)
