"""The writes of an Azure ML submission in their order, and how one that is unclear is found again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock, Thread

from aj.build.effects import JobReceipt, Receipt, Sealed, Upload
from aj.server.azure.arm import Arm, azure_of, segment
from aj.server.azure.blob import BlobStore
from aj.server.azure.token import claims
from aj.server.submit.aml.facts import (
    FRESH_SECONDS,
    check_size,
    experiment_of,
    known_workspaces,
    memory_of,
    place_of,
    read_facts,
)
from aj.server.submit.aml.memory import Known, Memory, source_of
from aj.server.submit.aml.where import find_workspace
from aj.shared.errors import (
    AjError,
    AzureError,
    LostAnswerError,
    NotFoundError,
    OutcomeUnknownError,
    SubmissionError,
    recast,
)
from aj.shared.jsonio import Json
from aj.shared.model import Caller, Emit, Event, JobSpec
from aj.shared.paths import Home

LOOKS = (0.0, 1.0, 2.0, 4.0)
"""Seconds before each look for a job whose answer was lost: the service may still be at it."""


@dataclass(slots=True)
class AmlEffects:
    """One caller's reads and writes in one project."""

    home: Home
    caller: Caller
    looks: tuple[float, ...] = LOOKS
    _opened: Arm | None = field(default=None, repr=False)
    _stores: dict[str, BlobStore] = field(default_factory=dict, repr=False)
    _guard: RLock = field(default_factory=RLock, repr=False)
    _beside: Future[None] | None = field(default=None, repr=False)
    """The registration that goes on beside the uploads."""

    def facts(self, spec: JobSpec, emit: Emit) -> Json:
        """Of the job's workspace: remembered while they are fresh, else read; what is missing is not among them."""
        read = partial(read_facts, self.home, spec, self._arm, emit)
        known = self._memory(spec).fresh(FRESH_SECONDS, "the workspace", read, emit)
        check_size(known.facts, spec)
        return {**known.facts, "experiment": experiment_of(self.home)}

    def present(self, upload: Upload, facts: Json) -> Receipt | None:
        """Equal bytes in the workspace's store."""
        return self._store(facts).present(upload)

    def upload(self, upload: Upload, facts: Json, emit: Emit) -> Receipt:
        """One Put Blob into the workspace's store; beside the first, what the job refers to is registered."""
        with self._guard:
            if self._beside is None:
                self._beside = self._register_beside(facts, emit)
        return self._store(facts).put(upload, emit)

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        """What the job refers to, if it is not there yet, then the job: one PUT."""
        del receipts
        spec = sealed.spec
        if self._beside is not None:
            self._beside.result()
        memory = self._memory(spec)
        known = memory.recall() or read_facts(self.home, spec, self._arm, emit)
        where = known.facts["workspace"]["id"]
        if not str(sealed.payload["properties"]["environmentId"]).startswith(f"{where}/"):
            message = f"the project has another workspace now than `{spec.name}` was made for"
            raise SubmissionError(message, where=where, hint="nothing runs; submit it again")
        self._register(known, memory, emit)
        path = f"{where}/jobs/{segment(spec.name)}"
        emit(Event("submit", f"submitting `{spec.name}`"))
        try:
            return job_receipt(self._arm.put(path, sealed.payload))
        except LostAnswerError as error:
            raise recast(error, OutcomeUnknownError) from error
        except AjError as error:
            memory.forget()
            if error.status_code == 409:
                # Something on the way may have sent it twice: then it is there.
                raise recast(error, OutcomeUnknownError) from error
            if type(error) in (AzureError, NotFoundError):
                raise recast(error, SubmissionError) from error
            raise

    def find(self, spec: JobSpec, facts: Json) -> JobReceipt | None:
        """Our job by its name in every workspace of the project, several times before it counts as absent."""
        del facts
        places = known_workspaces(self.home) or [find_workspace(self.home, place_of(spec), self._arm)]
        for seconds in self.looks:
            time.sleep(seconds)
            for where in places:
                job = self._arm.look(f"{where}/jobs/{segment(spec.name)}")
                if job and (job["properties"].get("tags") or {}).get("aj_id") == spec.identity.id:
                    return job_receipt(job)
        return None

    @property
    def _arm(self) -> Arm:
        with self._guard:
            if self._opened is None:
                arm = self._opened = azure_of(self.home, self.caller)
                # Two tokens are needed; neither waits for the other.
                Thread(target=lambda: _store_token(arm), name="store token", daemon=True).start()
            return self._opened

    def _memory(self, spec: JobSpec) -> Memory:
        return memory_of(self.home, spec, self._arm, self._who())

    def _who(self) -> str:
        """Tells logins apart."""
        token = self._arm.login.token(self._arm.cloud["arm_scope"])
        who = claims(token.text)
        return f"{who.get('oid')} {who.get('tid')}"

    def _store(self, facts: Json) -> BlobStore:
        store, workspace = facts["store"], facts["workspace"]["id"]
        if store["url"] not in self._stores:
            names = ("url", "account", "container", "credentials", "scope")
            secrets = f"{workspace}/datastores/{segment(store['name'])}/listSecrets"
            self._stores[store["url"]] = BlobStore(
                arm=self._arm, secrets=lambda: self._arm.ask(secrets), **{name: store[name] for name in names}
            )
        return self._stores[store["url"]]

    def _register_beside(self, facts: Json, emit: Emit) -> Future[None]:
        memory = source_of(self.home, facts)
        known = memory.recall() if memory else None
        pool = ThreadPoolExecutor(1, thread_name_prefix="beside")
        try:
            return pool.submit(lambda: self._register(known, memory, emit) if memory and known else None)
        finally:
            pool.shutdown(wait=False)

    def _register(self, known: Known, memory: Memory, emit: Emit) -> None:
        """Environment and datastores, side by side; each is what its own address says, so twice is once."""
        if not known.missing:
            return
        emit(Event("note", "registering " + ", ".join(f"`{path.rpartition('/')[2]}`" for path in known.missing)))
        with ThreadPoolExecutor(len(known.missing), thread_name_prefix="register") as pool:
            list(pool.map(lambda item: self._register_one(*item), known.missing.items()))
        memory.keep(replace(known, missing={}))

    def _register_one(self, path: str, body: Json) -> None:
        try:
            self._arm.put(path, body)
            return
        except LostAnswerError as error:
            failure: AjError = error
        except AjError as error:
            if error.status_code != 409:
                raise recast(error, SubmissionError, f"`{path.rpartition('/')[2]}` cannot be registered: ") from error
            failure = error
        found = self._arm.look(path)
        wanted = body["properties"]
        keys = ("image",) if "image" in wanted else ("accountName", "containerName")
        if found is None or any(found["properties"].get(key) != wanted[key] for key in keys):
            raise recast(failure, SubmissionError, f"`{path.rpartition('/')[2]}` cannot be registered: ") from failure


def _store_token(arm: Arm) -> None:
    """What fails here fails again, and is told, where it is needed."""
    with suppress(AzureError):
        arm.login.token(arm.cloud["storage_scope"])


def job_receipt(job: Mapping[str, Json]) -> JobReceipt:
    """What an answer says of a job: its name, the way to it in the portal, its status."""
    properties = job["properties"]
    studio = (properties.get("services") or {}).get("Studio") or {}
    return JobReceipt(str(job["name"]), studio.get("endpoint"), str(properties.get("status") or "NotStarted"))
