"""`aj code`: which files would travel with a job, by the very selection that packs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from aj.client.call import Call
from aj.client.commands import Group
from aj.client.console import Answer, Console
from aj.client.options import complete_template
from aj.client.progress import progress
from aj.client.show import counted, size
from aj.shared.config import read_config
from aj.shared.model import Notice, to_json
from aj.shared.paths import shown

if TYPE_CHECKING:
    from aj.build.select import Selection

LARGEST = 10


@click.group(cls=Group)
def code() -> None:
    """Show which files would travel with a job."""


@code.command()
@click.option(
    "-t", "--template", metavar="NAME", shell_complete=complete_template, help="Obey this template's `code.ignore` too."
)
@click.option("--list-all", is_flag=True, help="List every file.")
@click.option("--why", metavar="PATH", help="Tell whether PATH would travel, and what decides it.")
@click.pass_obj
def stats(call: Call, template: str | None, list_all: bool, why: str | None) -> Answer:
    """Count the files of the current folder that would be packed, and name the largest."""
    ignore = _ignore(call, template)
    if why is not None:
        return _why(call, ignore, why)
    found, notices = _select(call, ignore)
    files = [(shown(entry.path), entry.size) for entry in found.entries if entry.kind != "folder"]
    largest = sorted(files, key=lambda item: (-item[1], item[0]))[:LARGEST]
    document: dict[str, Any] = {
        "kind": "code_stats",
        "files": len(files),
        "bytes": sum(amount for _, amount in files),
        "tree_sha256": found.tree,
        "largest": [{"path": path, "size": amount} for path, amount in largest],
        "skipped": [
            {"path": shown(skip.path), "reason": f"{skip.reason}{f' ({skip.rule})' if skip.rule else ''}"}
            for skip in found.skipped
        ],
        "warnings": [to_json(notice) for notice in notices],
    }
    if list_all:
        document["paths"] = [path for path, _ in files]
    return Answer(document, lambda out: _show(out, document))


def _ignore(call: Call, template: str | None) -> Sequence[str]:
    name = template or read_config(call.home).get("template")
    if not name:
        return ()
    from aj.shared.template.template import load_template

    return tuple(load_template(call.home, name).get("code", "ignore", default=()))


def _select(call: Call, ignore: Sequence[str]) -> tuple[Selection, tuple[Notice, ...]]:
    from aj.build.generated import generated_files
    from aj.build.select import check_credentials, select
    from aj.build.statcache import StatCache

    generated, notices = generated_files(call.home, call.caller())
    known = call.home.build / "stat.cache"
    with progress(call.console) as emit:
        found = select(call.cwd, call.home, ignore, generated, StatCache(known if known.exists() else None), emit)
    check_credentials(found, call.home)
    return found, (*notices, *found.notices)


def _why(call: Call, ignore: Sequence[str], path: str) -> Answer:
    from aj.build.select import explain

    decision = explain(call.cwd, call.home, ignore, path)
    document = {
        "kind": "code_why",
        "path": path,
        "packed": decision.packed,
        "reason": decision.reason,
        "rule": decision.rule,
    }
    verb = "is packed" if decision.packed else "stays here"
    text = f"{path} {verb}: {document['reason']}{f' ({decision.rule})' if decision.rule else ''}"
    return Answer(document, lambda out: out.line(text))


def _show(out: Console, document: Mapping[str, Any]) -> None:
    for path in document.get("paths", ()):
        out.line(path)
    for warning in document["warnings"]:
        out.warn(Notice(**warning))
    summary = f"{counted(document['files'], 'file')}, {size(document['bytes'])}, tree {document['tree_sha256'][:12]}"
    if "paths" in document:
        out.say(summary)
        return
    out.painted(summary, "bold")
    for row in document["largest"]:
        out.line(f"  {size(row['size']):>9}  {row['path']}")
    if document["skipped"]:
        out.painted("skipped:", "bold")
    for row in document["skipped"]:
        out.line(f"  {row['path']}  {row['reason']}")
