"""`aj render` and `aj snapshot`: payloads as text for review, without daemon, network or a real identity."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from aj.client.call import Call
from aj.client.commands import Group
from aj.client.console import Answer, Console
from aj.client.options import JobCommand, build, fresh_identity, job_options, job_words, stand_in
from aj.client.show import counted, show_diff
from aj.shared.jsonio import Json, canonical, write_if_changed
from aj.shared.model import Identity, JobSpec
from aj.shared.paths import Home

if TYPE_CHECKING:
    from aj.shared.template.template import Template

CHANGED = 3
"""The exit code of `snapshot check` when something differs."""


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["payload", "amlt"]),
    default="payload",
    show_default=True,
    help="The backend's payload as JSON, or the amlt-shaped document as YAML.",
)
@click.pass_obj
def render(call: Call, /, form: str, **options: Any) -> Answer:
    """Print what would be sent for a job, with a symbolic identity, to stdout.

    The id is 00000000, the code archive's digest is zeros, and what only a remote knows is a placeholder: the text is
    the same on every machine. Values of secret variables are hidden.
    """
    from aj.build.render import payload_sha256
    from aj.shared.job.amlt import amlt_document
    from aj.shared.redact import redact, secret_names
    from aj.shared.yaml import dump

    words = job_words(call, **options)
    built = build(call, words, Identity.symbolic(fresh_identity(call, words, "").base))
    for notice in built.warnings:
        call.console.warn(notice)
    spec, hidden = built.spec, secret_names(built.spec)
    if form == "amlt":
        shown = redact(amlt_document(spec), hidden)
        text, document = dump(shown), {"kind": "amlt_document", "backend": spec.service, "config": shown}
    else:
        payload = _payload(spec)
        shown, digest = redact(payload, hidden), payload_sha256(payload)
        document = {"kind": "payload", "backend": spec.service, "payload_sha256": digest, "payload": shown}
        text = canonical(shown).decode()

    def show(out: Console) -> None:
        out.line(text.rstrip("\n"))
        out.say("identity, code digest and remote facts are placeholders", "dim")
        if hidden:
            out.say(f"hidden values: {', '.join(sorted(hidden))}", "dim")

    return Answer(document, show)


@click.group(cls=Group)
def snapshot() -> None:
    """Keep the payload of every template under AJ_HOME/snapshots, as stable text for review in pull requests."""


@snapshot.command()
@click.pass_obj
def update(call: Call) -> Answer:
    """Write the snapshots that differ, and remove those whose template has gone."""
    found = _compare(call.home)
    for state in found:
        if state.state == "stale":
            state.path.unlink()
        elif state.state != "same":
            write_if_changed(state.path, state.text, mode=0o644)
    changed = [state for state in found if state.state != "same"]
    document = {
        "kind": "command_result",
        "action": "snapshot update",
        "status": "changed" if changed else "same",
        "written": [state.name for state in changed if state.state != "stale"],
        "removed": [state.name for state in changed if state.state == "stale"],
    }

    def show(out: Console) -> None:
        for state in changed:
            out.line(f"{'removed' if state.state == 'stale' else 'wrote'} {state.path}")
        out.say(f"{counted(len(found) - len(changed), 'snapshot')} unchanged")

    return Answer(document, show)


@snapshot.command()
@click.pass_obj
def check(call: Call) -> Answer:
    """Compare the snapshots with what the templates give now; show the differences."""
    found = _compare(call.home)
    results = [{"name": each.name, "state": each.state, "diff": each.diff} for each in found]
    differ = [result for result in results if result["state"] != "same"]

    def show(out: Console) -> None:
        for result in differ:
            show_diff(out, result["diff"])
        if differ:
            names = ", ".join(f"`{result['name']}` {result['state']}" for result in differ)
            out.say(f"{names}; `aj snapshot update` accepts what is new", "yellow")

    return Answer({"kind": "snapshot_check", "results": results}, show, CHANGED if differ else 0)


class _Snapshot(NamedTuple):
    name: str
    path: Path
    text: bytes
    """What the template gives now; empty when it has gone."""
    state: str
    """`same`, `changed`, `missing` or `stale`."""
    diff: str
    """Unified, empty when equal."""


def _compare(home: Home) -> list[_Snapshot]:
    from aj.shared.template.template import load_template, template_names

    texts = {name: canonical(_document(load_template(home, name))) for name in template_names(home)}
    kept = {path.stem: path.read_bytes() for path in home.snapshots.glob("*.json")}
    return [_compared(home, name, kept.get(name), texts.get(name, b"")) for name in sorted({*texts, *kept})]


def _compared(home: Home, name: str, old: bytes | None, text: bytes) -> _Snapshot:
    state = "stale" if not text else "missing" if old is None else "same" if old == text else "changed"
    before, after = (side.decode("utf-8", "replace").splitlines(keepends=True) for side in (old or b"", text))
    diff = "".join(difflib.unified_diff(before, after, f"{name} snapshot", f"{name} now"))
    return _Snapshot(name, home.snapshots / f"{name}.json", text, state, diff)


def _document(template: Template) -> Json:
    """The document of one template: where it leaves the shape open, one node and one process, which the header says."""
    from aj.shared.redact import redact, secret_names

    built, assumed = stand_in(template)
    payload = redact(_payload(built.spec), secret_names(built.spec))
    return {"template": template.name, "backend": built.spec.service, "assumed": assumed, "payload": payload}


def _payload(spec: JobSpec) -> Json:
    from aj.build.render import SYMBOLIC_ARCHIVE, render_payload, symbolic_facts

    return render_payload(spec, symbolic_facts(spec.service), SYMBOLIC_ARCHIVE)
