"""The real daemon with a maker of submissions whose remote is a folder; the job's environment says how it behaves.

FAKE_REMOTE    the folder: one file for each job that exists there
FAKE_DO        ok, refuse, unknown, fault, lost (created, then an unknown outcome), loud (talks of its environment)
FAKE_GATE      a file: execution creates `<it>.reached` once the job exists, then waits until the file exists
FAKE_HOLD      a file: preparing waits until it exists
FAKE_FIND      ok (default) or blind: look-ups fail
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from aj.server.serve import main
from aj.server.submit import LogChunk, LogPage
from aj.server.workshop import Workshop
from aj.shared.errors import InputError, NotFoundError, OutcomeUnknownError, SubmissionError
from aj.shared.model import (
    ArchivePlan,
    ArchiveRecord,
    Caller,
    Emit,
    Event,
    JobResult,
    JobSpec,
    Notice,
    Plan,
    from_json,
    to_json,
)
from aj.shared.paths import Home
from aj.shared.spec import spec_from_json, spec_to_json


@dataclass(frozen=True, slots=True)
class Frozen:
    spec: JobSpec
    payload: dict[str, Any]
    payload_sha256: str
    archive: ArchiveRecord
    reused: bool = False
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class FolderRemote:
    home: Home

    def prepare(
        self, spec: JobSpec, caller: Caller, emit: Emit, expect: str | None = None, witness: Path | None = None
    ) -> Frozen:
        _wait_for(spec.env.get("FAKE_HOLD"))
        code = (Path(caller.cwd) / "train.py").read_bytes()
        emit(Event("pack", "train.py", len(code), len(code)))
        digest = hashlib.sha256(code).hexdigest()
        if expect not in (None, digest):
            raise InputError("an input has moved since the plan was made")
        payload = {"command": spec.command, "code": digest, "env": dict(spec.env)}
        return Frozen(spec, payload, digest, ArchiveRecord(digest, len(code), 1, digest, 1))

    def plan(self, spec: JobSpec, caller: Caller, emit: Emit) -> Plan:
        frozen = self.prepare(spec, caller, emit)
        packed = ArchivePlan(frozen.archive.sha256, frozen.archive.size, 1)
        name = spec.template.name
        return Plan(
            "p",
            name,
            spec.service,
            name,
            None,
            True,
            (),
            packed,
            frozen.payload_sha256,
            {"template": "", "payload": ""},
        )

    plan_offline = plan

    def freeze(self, frozen: Frozen) -> dict[str, Any]:
        return {**to_json(frozen), "spec": spec_to_json(frozen.spec)}

    def thaw(self, document: Mapping[str, Any]) -> Frozen:
        return replace(from_json(Frozen, document), spec=spec_from_json(document["spec"]))

    def execute(self, frozen: Frozen, caller: Caller, emit: Emit) -> JobResult:
        env = frozen.spec.env
        what, place = env.get("FAKE_DO", "ok"), Path(env["FAKE_REMOTE"]) / frozen.spec.name
        emit(Event("submit", f"sending {env.get('FAKE_SECRET', '')}"))
        if what == "refuse":
            raise SubmissionError("no quota", hint="ask for more")
        if what == "fault":
            raise ZeroDivisionError(f"a bug with {env.get('FAKE_SECRET', '')}")
        if what == "unknown":
            raise OutcomeUnknownError("the answer was lost")
        with place.open("x") as out:  # a second job of this name would be an error
            out.write(f"{frozen.archive.sha256}\n{caller.cwd}\n{caller.env.get('KUBECONFIG')}\n")
            out.write(f"{caller.env.get('AZURE_CLIENT_SECRET')}\n")
        with (place.parent / "order").open("a") as order:
            order.write(frozen.spec.identity.id + "\n")
        gate = env.get("FAKE_GATE")
        if gate:
            Path(gate + ".reached").touch()
        _wait_for(gate)
        if what == "lost":
            raise OutcomeUnknownError("the answer was lost")
        return _result(frozen)

    def reconcile(self, frozen: Frozen, caller: Caller, emit: Emit) -> JobResult:
        if frozen.spec.env.get("FAKE_FIND") == "blind":
            raise OutcomeUnknownError("the remote does not answer")
        if not (Path(frozen.spec.env["FAKE_REMOTE"]) / frozen.spec.name).exists():
            raise SubmissionError(f"`{frozen.spec.name}` was not created")
        return _result(frozen)


@dataclass(frozen=True, slots=True)
class FolderJobs:
    def list_jobs(self) -> list[dict[str, Any]]:
        return [self.show("some_job")]

    def show(self, name: str) -> dict[str, Any]:
        if name.startswith("no"):
            raise NotFoundError(f"no job `{name}`")
        return {"name": name, "azure_name": name, "status": "Running", "created_at": "2026-01-01T00:00:00+00:00"}

    def logs(self, name: str, cursor: Mapping[str, int], stream: str | None = None) -> LogPage:
        read = cursor.get("0", 0)
        return LogPage((LogChunk("0", "hello\n"),) if not read else (), {"0": 6}, bool(read))

    def cancel(self, name: str) -> str:
        return "Canceled"


def _result(frozen: Frozen) -> JobResult:
    spec, shape = frozen.spec, frozen.spec.shape
    return JobResult(
        status="submitted",
        id=spec.identity.id,
        name=spec.name,
        backend=spec.service,
        template=spec.template.name,
        nodes=shape.nodes,
        processes=shape.processes,
        processes_per_node=shape.processes_per_node,
        azure_name=spec.name,
        archive={"sha256": frozen.archive.sha256, "size": 1, "files": 1, "reused": False},
        payload_sha256=frozen.payload_sha256,
    )


def _wait_for(gate: str | None) -> None:
    while gate and not os.path.exists(gate):
        time.sleep(0.01)


FAKE = Workshop(
    submissions=lambda home, caller: cast(Any, FolderRemote(home)),
    jobs=lambda home, service, caller: FolderJobs(),
)

if __name__ == "__main__":
    main(FAKE)
