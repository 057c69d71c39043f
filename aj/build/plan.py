"""How a build is judged against the last submitted run of its line: verdicts, reasons, diffs."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aj.build.effects import Receipt, Unseen, Upload
from aj.build.engine import Outcome
from aj.build.select import Selection
from aj.build.step import key_changes
from aj.build.steps import archive_record
from aj.shared.jsonio import Json, canonical, compact, digest, read_json, write_file, write_if_changed
from aj.shared.model import ArchivePlan, FileChange, JobSpec, Notice, Plan, StepVerdict, Why, to_json
from aj.shared.paths import shown

PURE = ("template", "spec", "archive", "facts", "payload")
LISTINGS_KEPT = 64
"""File listings of earlier trees that stay for comparison, beside those that a baseline names."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a submitted run was made of; environment values in it are hidden."""

    id: str
    submitted_at: str
    payload_sha256: str
    tree: str
    steps: Mapping[str, Mapping[str, Json]]
    """Step → {key, target}: its key, and its target's digest; only the steps that the graph has."""
    template: Json
    payload: Json


def baseline_of(spec: JobSpec, outcomes: Mapping[str, Outcome]) -> Baseline:
    """The baseline that this build becomes once its job is submitted."""
    payload = json.loads(outcomes["payload"].target)
    return Baseline(
        id=spec.identity.id,
        submitted_at=spec.identity.submitted_at,
        payload_sha256=payload["sha256"],
        tree=archive_record(outcomes["archive"].target).tree if "archive" in outcomes else "",
        steps={
            name: {"key": outcomes[name].step.key, "target": _target_digest(outcomes[name])} for name in _pure(outcomes)
        },
        template=json.loads(outcomes["template"].target),
        payload=payload["payload"],
    )


def read_baseline(folder: Path) -> Baseline | None:
    """The line's baseline, None when nothing was submitted yet or the build folder was lost."""
    try:
        return Baseline(**read_json(folder / "baseline.json"))
    except (OSError, ValueError, TypeError):
        return None


def write_baseline(folder: Path, baseline: Baseline) -> None:
    """Make this build the one that later plans compare with."""
    write_if_changed(folder / "baseline.json", canonical(to_json(baseline)))


def judge(
    spec: JobSpec,
    outcomes: Mapping[str, Outcome],
    baseline: Baseline | None,
    writes: Sequence[StepVerdict],
    archive: ArchivePlan | None,
    warnings: Sequence[Notice],
) -> Plan:
    """The plan: each pure step `same`, `changed` or `new` against the baseline, then the writes as they were probed."""
    current = baseline_of(spec, outcomes)
    steps = _verdicts(outcomes, baseline, archive)
    diffs = {name: _diff(name, baseline, current) for name in ("template", "payload")}
    plan = Plan(
        plan_id="",
        template=spec.template.name,
        backend=spec.backend,
        line=spec.template.name,
        baseline=baseline.id if baseline else None,
        would_change=baseline is None or baseline.payload_sha256 != current.payload_sha256,
        steps=(*steps, *writes),
        archive=archive,
        payload_sha256=current.payload_sha256,
        diffs=diffs,
        warnings=tuple(warnings),
    )
    return replace(plan, plan_id=digest(to_json(plan))[:16])


def judge_upload(upload: Upload, receipt: Receipt | Unseen | None) -> StepVerdict:
    """`reuse` what is there, else the bytes that would be sent."""
    name = f"upload-{upload.name}"
    if isinstance(receipt, Unseen):  # without a network, or without a write, nobody knows what is there
        return StepVerdict(name, "write", "unknown", (Why("never_verified", upload.sha256),), upload.size)
    if receipt is not None:
        return StepVerdict(name, "write", "reuse", bytes=0)
    return StepVerdict(name, "write", "would", (Why("remote_missing", upload.sha256),), bytes=upload.size)


def judge_submit(spec: JobSpec) -> StepVerdict:
    """A run always submits one job."""
    nodes = f"{spec.shape.nodes} node{'s' if spec.shape.nodes != 1 else ''}"
    return StepVerdict("submit", "write", "would", (Why("first_run", f"one job, {nodes}"),))


def write_listing(folder: Path, selection: Selection, keep: frozenset[str]) -> None:
    """Remember which files a tree was made of, under its digest; the oldest listings that are not in `keep` go."""
    path = folder / f"{selection.tree}.json"
    if path.exists():
        os.utime(path)
        return
    files = {shown(entry.path): [entry.size, f"{entry.mode:o} {entry.digest}"] for entry in selection.entries}
    write_file(path, compact(files))
    kept = sorted(folder.glob("*.json"), key=lambda item: item.stat().st_mtime_ns, reverse=True)
    for old in kept[LISTINGS_KEPT:]:
        if old.stem not in keep:
            old.unlink(missing_ok=True)


def archive_plan(folder: Path, outcome: Outcome, baseline: Baseline | None) -> ArchivePlan:
    """The archive with its added, changed and removed files since the baseline."""
    record = archive_record(outcome.target)
    plan = ArchivePlan(sha256=record.sha256, size=record.size, files=record.files)
    if baseline is not None and baseline.tree == record.tree:
        return plan
    new = _listing(folder, record.tree)
    old = _listing(folder, baseline.tree) if baseline is not None else {}
    return replace(
        plan,
        added=tuple(FileChange(path, new[path][0]) for path in sorted(new.keys() - old.keys())),
        changed=tuple(
            FileChange(path, new[path][0]) for path in sorted(new.keys() & old.keys()) if new[path] != old[path]
        ),
        removed=tuple(FileChange(path, None) for path in sorted(old.keys() - new.keys())),
    )


def _listing(folder: Path, tree: str) -> dict[str, Any]:
    try:
        document = read_json(folder / f"{tree}.json")
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _verdicts(
    outcomes: Mapping[str, Outcome], baseline: Baseline | None, archive: ArchivePlan | None
) -> tuple[StepVerdict, ...]:
    if baseline is None:
        first = [(name, outcomes[name].step.kind) for name in _pure(outcomes)]
        return tuple(StepVerdict(name, kind, "new", (Why("first_run", name),)) for name, kind in first)
    changed = {name for name in _pure(outcomes) if baseline.steps[name]["target"] != _target_digest(outcomes[name])}
    verdicts = []
    for name in _pure(outcomes):
        step = outcomes[name].step
        if name not in changed:
            rebuilt = tuple(why for why in outcomes[name].ran if why.reason == "target_missing")
            verdicts.append(StepVerdict(name, step.kind, "same", rebuilt))
            continue
        inputs = [Why("input_changed", path.stem) for path in step.reads if path.stem in changed]
        keys = [
            why for why in key_changes(baseline.steps[name]["key"], step.key) if why.detail not in ("tree", "digest")
        ]
        files = [Why("input_changed", text) for text in _file_changes(archive)] if archive and name == "archive" else []
        why = (*keys, *files, *inputs) or (Why("key_changed", name),)
        verdicts.append(StepVerdict(name, step.kind, "changed", why))
    return tuple(verdicts)


def _pure(outcomes: Mapping[str, Outcome]) -> list[str]:
    return [name for name in PURE if name in outcomes]


def _file_changes(archive: ArchivePlan) -> list[str]:
    """Up to three of each kind by name, the rest by number."""
    texts = []
    for kind, files in (("added", archive.added), ("changed", archive.changed), ("removed", archive.removed)):
        names = [f"`{file.path}` {kind}" for file in files[:3]]
        rest = [f"{len(files) - 3} more {kind}"] if len(files) > 3 else []
        texts += names + rest
    return texts


def _target_digest(outcome: Outcome) -> str:
    """Targets hide values: the payload's own digest speaks for it, the key's for what is hidden in the others."""
    if outcome.step.name == "payload":
        return str(json.loads(outcome.target)["sha256"])
    return digest({"target": outcome.target.decode(), "clear": outcome.step.key.get("digest")})


def _diff(name: str, baseline: Baseline | None, current: Baseline) -> str:
    if baseline is None:
        return ""
    old, new = (canonical(getattr(side, name)).decode().split("\n") for side in (baseline, current))
    return "\n".join(difflib.unified_diff(old, new, f"{name} of {baseline.id}", f"{name} now", lineterm=""))
