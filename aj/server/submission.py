"""One submission in the daemon: the pure build under its lock, a plan of it, or the guarded writes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aj.build.effects import Effects, JobReceipt, ReadOnly, Sealed, Unseen, Upload
from aj.build.engine import Outcome, bring_up_to_date
from aj.build.generated import bootstrap, generated_files
from aj.build.plan import (
    Baseline,
    archive_plan,
    baseline_of,
    judge,
    judge_submit,
    judge_upload,
    read_baseline,
    write_baseline,
    write_listing,
)
from aj.build.remarks import check_size
from aj.build.render import SYMBOLIC_ARCHIVE, render_payload, symbolic_facts
from aj.build.select import check_credentials, check_script, select
from aj.build.statcache import StatCache
from aj.build.steps import Inputs, archive_record, document_graph, graph, job_receipt, writes
from aj.build.store import Store
from aj.server.record import provenance, record_of, result_of, with_frozen
from aj.server.submit import Execution, get_execution
from aj.shared.errors import AjError, CodeChanged, InputError, OutcomeUnknownError, SubmissionError
from aj.shared.jsonio import Json, locked, read_json, sha256
from aj.shared.model import (
    ArchiveRecord,
    Caller,
    Emit,
    Event,
    JobResult,
    JobSpec,
    Notice,
    Plan,
    StepVerdict,
    from_json,
    to_json,
)
from aj.shared.paths import Home
from aj.shared.spec import describe, spec_from_json, spec_to_json, symbolic

PACK_ATTEMPTS = 5
"""How often a tree that changes while it is packed is scanned again."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A submission that no later edit can change; journalled before the first write."""

    spec: JobSpec
    payload: Json
    """Sealed, environment values in clear: whoever stores it clears it once it is sent."""
    payload_sha256: str
    """Of the payload with symbolic identity."""
    archive: ArchiveRecord | None
    """None where another tool packs the code."""
    reused: bool
    """Whether the archive was in the store already."""
    facts: Json
    baseline: Baseline
    notices: tuple[Notice, ...] = ()


def frozen_to_json(frozen: Frozen) -> dict[str, Json]:
    """For the queue's database."""
    return {**to_json(frozen), "spec": spec_to_json(frozen.spec)}


def frozen_from_json(document: Mapping[str, Json]) -> Frozen:
    """The inverse of `frozen_to_json`."""
    return replace(from_json(Frozen, document), spec=spec_from_json(document["spec"]))


@dataclass(frozen=True, slots=True)
class _Build:
    outcomes: Mapping[str, Outcome]
    notices: tuple[Notice, ...] = ()

    @property
    def archive(self) -> ArchiveRecord | None:
        return archive_record(self.outcomes["archive"].target) if "archive" in self.outcomes else None

    @property
    def reused(self) -> bool:
        return "archive" in self.outcomes and not self.outcomes["archive"].ran

    def facts(self) -> Json:
        """Read under the build lock: the next build writes its own."""
        return read_json(self.outcomes["facts"].step.writes) if "facts" in self.outcomes else {}


@dataclass(frozen=True, slots=True)
class Submissions:
    """What one project's submissions share."""

    home: Home
    store: Store
    executions: Callable[[str], Execution] = get_execution
    freeze = staticmethod(frozen_to_json)
    thaw = staticmethod(frozen_from_json)

    def prepare(
        self, spec: JobSpec, caller: Caller, emit: Emit, expect: str | None = None, witness: Path | None = None
    ) -> Frozen:
        """The pure half: whatever can fail before a write has failed when this returns.

        `expect` is the payload digest of a saved plan: `InputError` when an input has moved since. The archive stays
        in the store as long as the file `witness` exists.
        """
        effects = ReadOnly(self.executions(spec.backend).effects(self.home, caller))
        with self._locked(emit):
            build = self._build(spec, caller, lambda: effects.facts(spec, emit), emit, witness)
            facts = build.facts()
        baseline = baseline_of(spec, build.outcomes)
        if expect is not None and expect != baseline.payload_sha256:
            raise InputError("an input has moved since the plan was made", hint="run `aj plan` again and look at it")
        return Frozen(
            spec=spec,
            payload=render_payload(spec, facts, build.archive or SYMBOLIC_ARCHIVE, provenance(caller)),
            payload_sha256=baseline.payload_sha256,
            archive=build.archive,
            reused=build.reused,
            facts=facts,
            baseline=baseline,
            notices=build.notices,
        )

    def plan(self, spec: JobSpec, caller: Caller, emit: Emit) -> Plan:
        """What `prepare` and `execute` would do; reads remotes, writes only the build folder."""
        effects = ReadOnly(self.executions(spec.backend).effects(self.home, caller))
        return self._plan(spec, caller, effects, emit)

    def plan_offline(self, spec: JobSpec, caller: Caller, emit: Emit) -> Plan:
        """The same without any network: the last known facts, else symbolic ones; remote verdicts are `unknown`."""
        plan = self._plan(spec, caller, None, emit)
        unread = symbolic_facts(spec.service)
        if spec.via is not None or not unread:
            return plan
        how = "placeholders" if self._known_facts(spec) == unread else "as they were last read"
        notice = Notice(
            f"offline, {', '.join(sorted(unread))} are {how}", hint="`aj plan` without `--offline` reads them"
        )
        return replace(plan, warnings=(*plan.warnings, notice))

    def execute(self, frozen: Frozen, caller: Caller, emit: Emit) -> JobResult:
        """The writes. `SubmissionError` when surely nothing runs, `OutcomeUnknownError` when that cannot be known."""
        effects = self.executions(frozen.spec.backend).effects(self.home, caller)
        folder = self._line(frozen.spec)
        with self._sealed(frozen) as sealed:
            try:
                steps = writes(sealed, effects, frozen.facts, folder / "receipts", emit)
                receipt = job_receipt(bring_up_to_date(steps, folder / "receipts.db", emit)["submit"].target)
            except OutcomeUnknownError as error:
                receipt = self._look_up(frozen, caller, error, emit)
        self._remember(frozen, emit)
        return _result(frozen, receipt)

    def reconcile(self, frozen: Frozen, caller: Caller, emit: Emit) -> JobResult:
        """After a crash between send and record: adopt our job by its own name; it is never sent again."""
        error = OutcomeUnknownError(
            f"the daemon stopped while `{frozen.spec.name}` was being submitted",
            hint=f"look for `{frozen.spec.name}` with `aj job show {frozen.spec.identity.id}` before you run it again",
        )
        receipt = self._look_up(frozen, caller, error, emit)
        self._remember(frozen, emit)
        return _result(frozen, receipt)

    @contextmanager
    def _sealed(self, frozen: Frozen) -> Iterator[Sealed]:
        """What is sent, its archive leased meanwhile."""
        if frozen.archive is None:
            yield Sealed(frozen.spec, frozen.payload, ())
            return
        with self.store.lease(frozen.archive.sha256) as archive:
            uploads = _uploads(frozen.spec, frozen.archive, archive)
            yield Sealed(frozen.spec, frozen.payload, uploads, archive)

    def _remember(self, frozen: Frozen, emit: Emit) -> None:
        """For later plans: the job exists, whether or not this can be written."""
        try:
            write_baseline(self._line(frozen.spec), frozen.baseline)
        except OSError as error:
            emit(Event("warning", f"the next plan compares with an older run: {error}"))

    def _look_up(self, frozen: Frozen, caller: Caller, error: OutcomeUnknownError, emit: Emit) -> JobReceipt:
        spec, execution = frozen.spec, self.executions(frozen.spec.backend)
        emit(Event("note", f"the answer was lost; looking for `{spec.name}`"))
        try:
            receipt = ReadOnly(execution.effects(self.home, caller)).find(spec, frozen.facts)
        except AjError as failure:
            raise error from failure
        left = execution.settle(caller, spec, frozen.facts, receipt)
        if receipt is None:
            hint = "; ".join(filter(None, ("nothing runs; submit it again", left)))
            raise SubmissionError(f"`{spec.name}` was not created: {error.message}", hint=hint) from error
        adopted = "adopted: the job was found after its answer was lost"
        return replace(receipt, note="\n".join(filter(None, (adopted, left, receipt.note))))

    def _plan(self, spec: JobSpec, caller: Caller, effects: Effects | None, emit: Emit) -> Plan:
        folder = self._line(spec)
        with self._locked(emit):
            facts = (lambda: effects.facts(spec, emit)) if effects else (lambda: self._known_facts(spec))
            build = self._build(spec, caller, facts, emit)
            baseline, found = read_baseline(folder), build.facts()
            packed = build.outcomes.get("archive")
            archive = archive_plan(self._listings, packed, baseline) if packed else None
        record = build.archive
        uploads = _uploads(spec, record, self.store.path(record.sha256)) if record else ()
        verdicts = (
            _look(uploads, effects, found) if effects else [judge_upload(upload, Unseen.UNSEEN) for upload in uploads]
        )
        return judge(spec, build.outcomes, baseline, [*verdicts, judge_submit(spec)], archive, build.notices)

    def _build(
        self, spec: JobSpec, caller: Caller, facts: Callable[[], Json], emit: Emit, witness: Path | None = None
    ) -> _Build:
        folder = self._line(spec)
        if spec.via is not None:
            return _Build(bring_up_to_date(document_graph(symbolic(spec), folder), folder / "memo.db", emit))
        generated, notices = generated_files(self.home, caller)
        check_script(Path(caller.cwd), self.home, spec.ignore, spec.argv)
        cache = StatCache(self.home.build / "stat.cache")
        for attempt in range(PACK_ATTEMPTS):
            selection = select(Path(caller.cwd), self.home, spec.ignore, generated, cache, emit)
            cache.save()
            check_credentials(selection, self.home)
            inputs = Inputs(symbolic(spec), selection, self.store.kept_by(witness), folder, facts)
            try:
                outcomes = bring_up_to_date(graph(inputs, emit), folder / "memo.db", emit)
            except CodeChanged as error:
                if attempt == PACK_ATTEMPTS - 1:
                    raise
                emit(Event("note", f"{error.message}; scanning again"))
                continue
            packed = archive_record(outcomes["archive"].target).size
            check_size(packed, describe(spec.service).upload_limit, ((e.path, e.size) for e in selection.entries))
            baseline = read_baseline(folder)
            write_listing(self._listings, selection, frozenset({selection.tree, baseline.tree if baseline else ""}))
            return _Build(outcomes, (*notices, *selection.notices))
        raise AssertionError("unreachable")

    def _known_facts(self, spec: JobSpec) -> Json:
        path = self._line(spec) / "facts.json"
        return read_json(path) if path.exists() else symbolic_facts(spec.service)

    def _line(self, spec: JobSpec) -> Path:
        line = self.home.build / "lines" / spec.template.name
        return line / spec.via if spec.via else line

    @property
    def _listings(self) -> Path:
        return self.home.build / "trees"

    @contextmanager
    def _locked(self, emit: Emit) -> Iterator[None]:
        """One build at a time in a project, in whatever process it runs."""
        self.home.build.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = self.home.build / "lock"
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                emit(Event("wait", "another build of this project is running"))
                stack.enter_context(locked(lock))
            yield


def _result(frozen: Frozen, receipt: JobReceipt) -> JobResult:
    result = result_of(with_frozen(record_of(frozen.spec), frozen), "submitted", None, receipt.note)
    return replace(result, azure_name=receipt.remote_name, portal_url=receipt.portal_url)


def _look(uploads: Sequence[Upload], effects: Effects, facts: Json) -> list[StepVerdict]:
    """Side by side: each look is a round trip."""
    with ThreadPoolExecutor(max(1, len(uploads)), thread_name_prefix="look") as pool:
        receipts = pool.map(lambda upload: effects.present(upload, facts), uploads)
        return [judge_upload(upload, receipt) for upload, receipt in zip(uploads, receipts, strict=True)]


def _uploads(spec: JobSpec, record: ArchiveRecord, archive: Path) -> tuple[Upload, ...]:
    script = bootstrap()
    content = script.read_bytes()
    known = {
        "code": Upload("code", record.sha256, record.size, archive, spec.identity.id),
        "bootstrap": Upload("bootstrap", sha256(content), len(content), script, spec.identity.id),
    }
    return tuple(known[name] for name in describe(spec.service).uploads)
