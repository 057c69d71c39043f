"""`aj cache`: the archives of packed code on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from aj.client.call import Call
from aj.client.commands import Group
from aj.client.console import Answer, Console
from aj.client.options import byte_count, whole_number
from aj.client.show import counted, show_rows, size
from aj.shared.errors import InterruptedByUser

_COLUMNS = ("archive", "size", "used_at")


@click.group(cls=Group)
def cache() -> None:
    """Show and clean the cache of packed code.

    It holds one archive for each state of the code that was packed, for all projects, in AJ_CACHE_HOME. An archive
    that is gone is packed again when it is needed.
    """


@cache.command()
@click.pass_obj
def show(call: Call) -> Answer:
    """List the archives, least recently used first."""
    found = call.connect().cache()
    archives = found["archives"]

    def render(out: Console) -> None:
        show_rows(out, _rows(archives), (*_COLUMNS, "in_use"), "the cache is empty")
        total = f"{counted(len(archives), 'archive')}, {size(found['bytes'])} of at most {size(found['limit'])}"
        out.line(f"{total}, in {found['folder']}")

    return Answer({"kind": "cache", **found}, render)


@cache.command()
@click.option(
    "--max-size",
    "max_bytes",
    callback=byte_count,
    metavar="SIZE",
    help="Remove the least recently used archives until so much is left, such as `5GB`; `0` for all. Without it, what"
    " packing leaves by itself: 20 GiB.",
)
@click.option(
    "--unused", "unused_days", callback=whole_number, metavar="DAYS", help="Remove what was not used for so long, too."
)
@click.option("-d", "--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
@click.pass_obj
def gc(call: Call, /, **wanted: Any) -> Answer:
    """Remove archives that nobody needs.

    What is being packed or sent, or waits in the queue of any project, stays. Output of local jobs is no archive and
    is not touched.
    """
    client = call.connect()
    try:
        cleaned = client.cache_gc(**wanted)
    except KeyboardInterrupt:
        hint = "`aj cache show` tells what is left"
        raise InterruptedByUser("no longer waiting; the daemon goes on cleaning", hint=hint) from None

    def render(out: Console) -> None:
        _show_cleaned(out, cleaned)
        if wanted["max_bytes"] is not None and cleaned["left"] > wanted["max_bytes"]:
            out.say("what is packed, sent or queued stays: `aj cache show` tells which")

    return Answer({"kind": "cache_gc", **cleaned}, render)


def _show_cleaned(out: Console, cleaned: Mapping[str, Any]) -> None:
    removed = cleaned["removed"]
    gone = f"{size(cleaned['freed'])} ({counted(len(removed), 'archive')})"
    left = f"{size(cleaned['left'])} ({counted(cleaned['left_archives'], 'archive')})"
    if cleaned["dry_run"]:
        show_rows(out, _rows(removed), _COLUMNS, "nothing would go")
        out.line(f"would free {gone}, {left} would stay")
    else:
        out.line(f"freed {gone}, {left} left")


def _rows(archives: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**row, "archive": row["sha256"][:12], "size": size(row["size"]), "in_use": "yes" if row.get("in_use") else ""}
        for row in archives
    ]
