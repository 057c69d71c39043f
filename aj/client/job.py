"""`aj job`: the remote life of jobs."""

from __future__ import annotations

from functools import partial

import click

from aj.client.call import Call
from aj.client.commands import Group
from aj.client.console import Answer, Console
from aj.client.follow import Follower
from aj.client.options import whole_number
from aj.client.show import show_fields, show_rows
from aj.shared.errors import InterruptedByUser
from aj.shared.model import Notice, to_json

_COLUMNS = ("azure_name", "status", "backend", "nodes", "created_at", "ended_at")
LISTED = 50
"""Rows of a list without `--limit`."""
_reference = click.argument("ref", metavar="REF")


@click.group(cls=Group)
def job() -> None:
    """List, show, follow and cancel jobs.

    REF is a job's name, its id, or a unique beginning of one.
    """


@job.command("list")
@click.option("--limit", callback=whole_number, metavar="N", help=f"So many at most, the newest. Default {LISTED}.")
@click.option("--status", metavar="WORD", help="Only jobs that are so, such as `Running`.")
@click.option("--experiment", metavar="NAME", help="Only jobs of this experiment.")
@click.option("--backend", metavar="NAME", help="Only jobs of this backend.")
@click.pass_obj
def list_jobs(call: Call, /, limit: int | None, **wanted: str | None) -> Answer:
    """List jobs, newest first."""
    given = {name: value for name, value in wanted.items() if value is not None}
    notices: list[Notice] = []
    jobs = call.connect().jobs(limit or LISTED, warn=notices.append, **given)

    def render(out: Console) -> None:
        for notice in notices:
            out.warn(notice)
        show_rows(out, jobs, _COLUMNS, "no jobs yet")

    return Answer({"kind": "job_list", "jobs": jobs, "warnings": [to_json(notice) for notice in notices]}, render)


@job.command()
@_reference
@click.pass_obj
def show(call: Call, ref: str) -> Answer:
    """Show all that is known of one job."""
    found = call.connect().job(ref)
    return Answer({"kind": "job", "job": found}, lambda out: show_fields(out, found))


@job.command()
@_reference
@click.pass_obj
def status(call: Call, ref: str) -> Answer:
    """Print one job's status in a word."""
    found = call.connect().job(ref)
    document = {"kind": "job_status", **{key: found.get(key) for key in ("id", "name", "azure_name", "status")}}
    return Answer(document, lambda out: out.line(str(found["status"])))


@job.command()
@_reference
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the job has ended. Ctrl-C stops following, not the job."
)
@click.option("--file", "stream", metavar="NAME", help="Only this log file, or this rank; a wrong one lists them.")
@click.pass_obj
def logs(call: Call, ref: str, follow: bool, stream: str | None) -> Answer:
    """Print a job's output; rank or file stands in front of each line when there are several."""
    client = call.connect()
    found = client.job(ref)
    name = str(found["azure_name"])
    kept: list[str] = []
    write = kept.append if call.console.machine else call.console.stream
    several = int(found.get("nodes") or 1) * int(found.get("processes_per_node") or 1) > 1
    follower = Follower(
        partial(client.job_logs, stream=stream), name, write, prefixed=stream is None and several, say=call.console.say
    )
    try:
        if follow:
            follower.to_the_end()
            found = client.job(name)
        else:
            follower.so_far()
    except KeyboardInterrupt:
        hint = f"`aj job logs -f {name}` follows it again, `aj job cancel {name}` ends it"
        raise InterruptedByUser(f"no longer following `{name}`", hint=hint) from None
    document = {"kind": "job_logs", "azure_name": name, "status": found["status"], "content": "".join(kept)}
    return Answer(document, Console.flush)


@job.command()
@_reference
@click.pass_obj
def cancel(call: Call, ref: str) -> Answer:
    """End a job and all of its processes."""
    canceled = call.connect().cancel_job(ref)
    document = {"kind": "command_result", "action": "cancel", **canceled}
    return Answer(document, lambda out: out.line(f"{canceled['azure_name']} {canceled['status']}"))
