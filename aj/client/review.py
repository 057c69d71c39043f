"""`aj render` and `aj snapshot`: payloads as text for review, without daemon, network or a real identity."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    words = job_words(call, **options)
    built = build(call, words, Identity.symbolic(fresh_identity(call, words, "").base))
    for notice in built.warnings:
        call.console.warn(notice)
    return _rendered_amlt(built.spec) if form == "amlt" else _rendered_payload(built.spec)


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
    results = [{"name": state.name, "state": state.state, "diff": state.diff()} for state in found]
    differ = [result for result in results if result["state"] != "same"]

    def show(out: Console) -> None:
        for result in differ:
            show_diff(out, result["diff"])
        if differ:
            names = ", ".join(f"`{result['name']}` {result['state']}" for result in differ)
            out.say(f"{names}; `aj snapshot update` accepts what is new", "yellow")

    return Answer({"kind": "snapshot_check", "results": results}, show, CHANGED if differ else 0)


@dataclass(frozen=True, slots=True)
class _State:
    name: str
    path: Path
    old: bytes | None
    text: bytes
    """What the template gives now; empty when it has gone."""

    @property
    def state(self) -> str:
        if not self.text:
            return "stale"
        if self.old is None:
            return "missing"
        return "same" if self.old == self.text else "changed"

    def diff(self) -> str:
        """Unified, empty when equal."""
        old, new = (
            (side or b"").decode("utf-8", "replace").splitlines(keepends=True) for side in (self.old, self.text)
        )
        return "".join(difflib.unified_diff(old, new, f"{self.name} snapshot", f"{self.name} now"))


def _compare(home: Home) -> list[_State]:
    from aj.shared.template.template import load_template, template_names

    names = template_names(home)
    texts = {name: canonical(_snapshot(load_template(home, name))) for name in names}
    stale = {path.stem for path in home.snapshots.glob("*.json")} - texts.keys()
    return [_state(home, name, texts.get(name, b"")) for name in sorted({*names, *stale})]


def _state(home: Home, name: str, text: bytes) -> _State:
    path = home.snapshots / f"{name}.json"
    return _State(name, path, path.read_bytes() if path.exists() else None, text)


def _snapshot(template: Template) -> Json:
    """The document of one template: where it leaves the shape open, one node and one process, which the header says."""
    from aj.build.render import SYMBOLIC_ARCHIVE, render_payload, symbolic_facts
    from aj.shared.redact import redact, secret_names

    built, assumed = stand_in(template)
    spec = built.spec
    payload = render_payload(spec, symbolic_facts(spec.service), SYMBOLIC_ARCHIVE)
    return {
        "template": template.name,
        "backend": spec.service,
        "assumed": assumed,
        "payload": redact(payload, secret_names(spec)),
    }


def _rendered_payload(spec: JobSpec) -> Answer:
    from aj.build.render import SYMBOLIC_ARCHIVE, payload_sha256, render_payload, symbolic_facts
    from aj.shared.redact import redact, secret_names

    payload = render_payload(spec, symbolic_facts(spec.service), SYMBOLIC_ARCHIVE)
    hidden = secret_names(spec)
    shown = redact(payload, hidden)
    document = {"kind": "payload", "backend": spec.service, "payload_sha256": payload_sha256(payload), "payload": shown}

    def show(out: Console) -> None:
        out.line(canonical(shown).decode().rstrip("\n"))
        _say_symbolic(out, hidden)

    return Answer(document, show)


def _rendered_amlt(spec: JobSpec) -> Answer:
    from aj.shared.job.amlt import amlt_document
    from aj.shared.redact import redact, secret_names
    from aj.shared.yaml import dump

    hidden = secret_names(spec)
    config = redact(amlt_document(spec), hidden)

    def show(out: Console) -> None:
        out.line(dump(config).rstrip("\n"))
        _say_symbolic(out, hidden)

    return Answer({"kind": "amlt_document", "backend": spec.service, "config": config}, show)


def _say_symbolic(out: Console, hidden: Collection[str]) -> None:
    out.say("identity, code digest and remote facts are placeholders", "dim")
    if hidden:
        out.say(f"hidden values: {', '.join(sorted(hidden))}", "dim")
