"""`aj queue` and `aj list`: submissions that wait, and the journal of all attempts."""

from __future__ import annotations

import click

from aj.client.call import Call
from aj.client.commands import Command, Group
from aj.client.console import Answer, Console
from aj.client.options import whole_number
from aj.client.progress import progress
from aj.client.show import show_fields, show_rows
from aj.shared.errors import InterruptedByUser, OutcomeUnknownError, SubmissionError

_QUEUE_COLUMNS = ("ticket", "id", "name", "state", "enqueued_at", "detail")
_RECORD_COLUMNS = ("id", "azure_name", "template", "backend", "status", "submitted_at", "nodes", "note")
_ticket = click.argument("ticket", metavar="TICKET")


@click.group(cls=Group)
def queue() -> None:
    """List, wait for and cancel queued submissions.

    TICKET is what `aj run --queue` printed, or the job's id.
    """


@queue.command("list")
@click.pass_obj
def list_entries(call: Call) -> Answer:
    """List the queue of this project."""
    with progress(call.console) as emit:
        entries = call.connect().queue(emit)
    document = {"kind": "queue", "entries": entries}
    return Answer(document, lambda out: show_rows(out, entries, _QUEUE_COLUMNS, "the queue is empty"))


@queue.command()
@_ticket
@click.pass_obj
def show(call: Call, ticket: str) -> Answer:
    """Show one entry."""
    entry = call.connect().ticket(ticket)
    return Answer({"kind": "queue_entry", **entry}, lambda out: show_fields(out, entry))


@queue.command()
@_ticket
@click.option(
    "--timeout", callback=whole_number, metavar="SECONDS", help="Give up waiting after this long; the entry goes on."
)
@click.pass_obj
def wait(call: Call, ticket: str, timeout: int | None) -> Answer:
    """Wait until an entry is done, failed or canceled."""
    client = call.connect()
    try:
        with progress(call.console) as emit:
            entry = client.wait(ticket, timeout, emit)
    except KeyboardInterrupt:
        hint = f"`aj queue wait {ticket}` waits again, `aj queue cancel {ticket}` cancels it"
        raise InterruptedByUser("no longer waiting; the entry goes on", hint=hint) from None
    document = {"kind": "queue_entry", **entry}
    code = {"done": 0, "unknown": OutcomeUnknownError.exit_code}.get(entry["state"], 1)

    def show(out: Console) -> None:
        show_fields(out, entry)
        if code:
            out.error(SubmissionError(f"entry `{entry['ticket']}` is {entry['state']}", hint=entry.get("detail")))

    return Answer(document, show, code)


@queue.command()
@_ticket
@click.pass_obj
def cancel(call: Call, ticket: str) -> Answer:
    """Cancel an entry that is still pending."""
    entry = call.connect().cancel_ticket(ticket)
    document = {"kind": "command_result", "action": "cancel", "ticket": entry["ticket"], "status": entry["state"]}
    return Answer(document, lambda out: out.line(f"{entry['ticket']} {entry['state']}"))


@click.command("list", cls=Command)
@click.option(
    "-n", "--number", callback=whole_number, default="20", metavar="N", help="At most so many.", show_default=True
)
@click.pass_obj
def list_records(call: Call, number: int) -> Answer:
    """List every attempt to submit, newest first, failures included."""
    with progress(call.console) as emit:
        records = call.connect().records(number, emit)
    document = {"kind": "records", "records": records}
    rows = [{**record, "note": (record.get("note") or "").partition("\n")[0]} for record in records]
    return Answer(document, lambda out: show_rows(out, rows, _RECORD_COLUMNS, "nothing was submitted yet"))
