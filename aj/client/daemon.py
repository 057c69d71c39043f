"""`aj daemon`: the process that builds and submits."""

from __future__ import annotations

import click

from aj.client.call import Call
from aj.client.commands import Group
from aj.client.console import Answer
from aj.client.progress import progress
from aj.client.show import show_fields
from aj.shared.errors import DaemonNotRunningError
from aj.shared.jsonio import Json


@click.group(cls=Group)
def daemon() -> None:
    """Show, start and stop the daemon that builds and submits.

    It starts when it is needed and ends when it is idle; these commands are for the curious and for upgrades.
    """


@daemon.command()
@click.pass_obj
def status(call: Call) -> Answer:
    """Show whether it runs; never starts it."""
    return _status(call)


@daemon.command()
@click.pass_obj
def start(call: Call) -> Answer:
    """Start it unless it runs."""
    call.connect()
    return _status(call)


@daemon.command()
@click.option(
    "--force", is_flag=True, help="Do not wait for submissions that are under way: their outcome may stay unknown."
)
@click.pass_obj
def stop(call: Call, force: bool) -> Answer:
    """Stop it when its work is done; pending entries wait for the next one."""
    return _answer("stop", "stopped" if _stop(call, force) else "not running")


@daemon.command()
@click.option("--force", is_flag=True, help="As for `stop`.")
@click.pass_obj
def restart(call: Call, force: bool) -> Answer:
    """Stop it and start it again, for example with other AJ_* settings."""
    _stop(call, force)
    call.connect()
    return _answer("restart", "running")


def _status(call: Call) -> Answer:
    document = {"kind": "daemon_status", **daemon_state(call)}
    return Answer(document, lambda out: show_fields(out, document))


def daemon_state(call: Call) -> dict[str, Json]:
    """What the daemon says of itself; `running` false and nulls where none runs."""
    try:
        return {**call.running().info(), "running": True}
    except DaemonNotRunningError:
        return {"running": False, **dict.fromkeys(("pid", "version", "uptime_s", "socket", "contexts", "outstanding"))}


def _stop(call: Call, force: bool) -> bool:
    try:
        with progress(call.console) as emit:
            call.running().shutdown(force, emit)
    except DaemonNotRunningError:
        return False
    return True


def _answer(action: str, state: str) -> Answer:
    document = {"kind": "command_result", "action": action, "status": state}
    return Answer(document, lambda out: out.line(f"daemon: {state}"))
