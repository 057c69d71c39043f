"""The graph of one submission: which steps there are, what each reads and what decides its target."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from aj.build.archive import FORMAT as ARCHIVE_FORMAT
from aj.build.archive import pack
from aj.build.effects import Effects, JobReceipt, Receipt, Sealed, Upload
from aj.build.render import SYMBOLIC_ARCHIVE, payload_sha256, render_payload, renderer
from aj.build.select import Selection
from aj.build.step import Step
from aj.build.store import Store
from aj.shared.jsonio import Json, canonical, digest, read_json
from aj.shared.model import ArchiveRecord, Emit, JobSpec, to_json
from aj.shared.redact import env_names, hide, redact
from aj.shared.schema import check
from aj.shared.spec import spec_to_json

FORMAT = 1
"""The version of the targets' own form: raised when the same key gives other bytes."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything the pure half depends on, sampled before it runs: a later edit is stale next time."""

    spec: JobSpec
    """With symbolic identity."""
    selection: Selection
    store: Store
    folder: Path
    """Where the targets lie: one folder a line."""
    facts: Callable[[], Json]
    """Asked once, by the facts step."""


def graph(inputs: Inputs, emit: Emit) -> tuple[Step, ...]:
    """The steps up to the payload. Targets hide environment values: clear ones stay in memory and in what is sent."""
    template, spec = _described(inputs.spec, inputs.folder)
    archive, facts = _archive(inputs, emit), _facts(inputs)

    def render() -> Json:
        return render_payload(inputs.spec, read_json(facts.writes), archive_record(archive.writes))

    return template, spec, archive, facts, _payload(inputs.spec, (spec, archive, facts), render)


def document_graph(spec: JobSpec, folder: Path) -> tuple[Step, ...]:
    """The steps of a job that another tool packs and submits: its payload needs no archive and no facts."""
    template, described = _described(spec, folder)
    render = partial(render_payload, spec, {}, SYMBOLIC_ARCHIVE)
    return template, described, _payload(spec, (described,), render)


def archive_record(target: bytes | Path) -> ArchiveRecord:
    """The record that the archive step wrote."""
    document = json.loads(target) if isinstance(target, bytes) else read_json(target)
    return ArchiveRecord(**document)


def _described(spec: JobSpec, folder: Path) -> tuple[Step, Step]:
    template = _template(spec, folder)
    return template, _spec(spec, template, folder / "spec.json")


def _template(spec: JobSpec, folder: Path) -> Step:
    template = spec.template
    return Step(
        name="template",
        kind="pure",
        reads=(),
        writes=folder / "template.json",
        key={"format": FORMAT, "sources": {source.path: source.sha256 for source in template.sources}},
        run=lambda: canonical(redact(template.raw, env_names(spec))),
    )


def _spec(spec: JobSpec, template: Step, writes: Path) -> Step:
    document = spec_to_json(spec)
    own = {name: value for name, value in document.items() if name != "template"}

    def run() -> bytes:
        check(document, "jobspec", f"the spec of `{spec.name}`")
        return canonical(redact(own, env_names(spec)))

    return Step(
        name="spec",
        kind="pure",
        reads=(template.writes,),
        writes=writes,
        key={
            "format": FORMAT,
            "service": spec.service,
            "shape": document["shape"],
            "argv": document["argv"],
            "env": {name: value if name.startswith("AJ_") else hide(value) for name, value in spec.env.items()},
            "digest": digest(own),
        },
        run=run,
    )


def _archive(inputs: Inputs, emit: Emit) -> Step:
    def run() -> bytes:
        return canonical(to_json(inputs.store.add(lambda out: pack(inputs.selection, out, emit))))

    return Step(
        name="archive",
        kind="pure",
        reads=(),
        writes=inputs.folder / "archive.json",
        key={"format": ARCHIVE_FORMAT, "tree": inputs.selection.tree},
        run=run,
        also=lambda target: inputs.store.has(archive_record(target).sha256, emit),
    )


def _facts(inputs: Inputs) -> Step:
    return Step(
        name="facts",
        kind="read",
        reads=(),
        writes=inputs.folder / "facts.json",
        key={"format": FORMAT, "service": inputs.spec.service},
        run=lambda: canonical(inputs.facts()),
    )


def _payload(spec: JobSpec, reads: tuple[Step, ...], render: Callable[[], Json]) -> Step:
    def run() -> bytes:
        payload = render()
        return canonical({"sha256": payload_sha256(payload), "payload": redact(payload, env_names(spec))})

    return Step(
        name="payload",
        kind="pure",
        reads=tuple(step.writes for step in reads),
        writes=reads[0].writes.with_name("payload.json"),
        key={"format": FORMAT, "backend": renderer(spec)},
        run=run,
    )


def writes(sealed: Sealed, effects: Effects, facts: Json, folder: Path, emit: Emit) -> tuple[Step, ...]:
    """The guarded half: an upload for each file that must be there, then one submission. Targets are the receipts."""
    uploads = _uploads(sealed.uploads, effects, facts, folder, emit)

    def submit() -> bytes:
        receipts = {upload.name: Receipt(**read_json(folder / f"{upload.name}.json")) for upload in sealed.uploads}
        return canonical(to_json(effects.submit(sealed, receipts, emit)))

    return (
        *uploads,
        Step(
            name="submit",
            kind="write",
            reads=tuple(step.writes for step in uploads),
            writes=folder / "submit.json",
            key={"name": sealed.spec.name, "payload": payload_sha256(sealed.payload)},
            run=submit,
        ),
    )


def job_receipt(target: bytes) -> JobReceipt:
    """The receipt that the submit step wrote."""
    return JobReceipt(**json.loads(target))


def _uploads(uploads: Sequence[Upload], effects: Effects, facts: Json, folder: Path, emit: Emit) -> tuple[Step, ...]:
    """Files do not wait for each other: the first step to run sends them all side by side, each reports its own."""

    @cache
    def sent() -> Mapping[str, Future[Receipt]]:
        def one(upload: Upload) -> Receipt:
            found = effects.present(upload, facts)
            return found if isinstance(found, Receipt) else effects.upload(upload, facts, emit)

        with ThreadPoolExecutor(len(uploads), thread_name_prefix="upload") as pool:
            return {upload.name: pool.submit(one, upload) for upload in uploads}

    def step(upload: Upload) -> Step:
        return Step(
            name=f"upload-{upload.name}",
            kind="write",
            reads=(),
            writes=folder / f"{upload.name}.json",
            key={"sha256": upload.sha256, "size": upload.size},
            run=lambda: canonical(to_json(sent()[upload.name].result())),
        )

    return tuple(map(step, uploads))
