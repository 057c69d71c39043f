"""The commands there are, and the one error boundary of the client: every failure leaves here, in words or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import click

from aj import __version__
from aj.client.call import Call
from aj.client.commands import Answered, Group, usage_error
from aj.client.console import Answer, HungUp, failure, standard
from aj.shared.errors import AjError, ConfigError, InternalError, InterruptedByUser, StoreError
from aj.shared.paths import cache_home, environment

HUNG_UP = 141
"""What a shell shows for a program that SIGPIPE ended."""

_COMMANDS = {
    "Submit": {
        "run": ("aj.client.run:run", "Build a job and submit it."),
        "plan": ("aj.client.plan:plan", "Show what the next run would do, and do none of it."),
    },
    "Watch": {
        "job": ("aj.client.job:job", "List, show, follow and cancel jobs."),
        "queue": ("aj.client.queue:queue", "List, wait for and cancel queued submissions."),
        "list": ("aj.client.queue:list_records", "List every attempt to submit, newest first."),
    },
    "Azure": {
        "ws": ("aj.client.resources:ws", "List Azure ML workspaces, and choose this project's."),
        "exp": ("aj.client.resources:exp", "List experiments."),
        "quota": ("aj.client.resources:quota", "List what there is to run on."),
        "sku": ("aj.client.resources:sku", "List the machines of Singularity."),
        "image": ("aj.client.resources:image", "List the images of Singularity."),
        "auth": ("aj.client.resources:auth", "Show whom Azure takes you for."),
    },
    "Review": {
        "template": ("aj.client.template:template", "List, show and validate templates."),
        "code": ("aj.client.code:code", "Show which files would travel with a job."),
        "render": ("aj.client.review:render", "Print the payload of a job without sending it."),
        "snapshot": ("aj.client.review:snapshot", "Keep payload snapshots of all templates for review."),
    },
    "Set up": {
        "init": ("aj.client.project:init", "Write a first template; change nothing that exists."),
        "config": ("aj.client.project:config", "Show and change the project's configuration."),
        "schema": ("aj.client.template:schema", "Print a JSON Schema, for example for an editor."),
        "doctor": ("aj.client.doctor:doctor", "Check this machine and this project."),
        "daemon": ("aj.client.daemon:daemon", "Show, start and stop the daemon."),
        "cache": ("aj.client.cache:cache", "Show and clean the cache of packed code."),
        "completion": ("aj.client.project:completion", "Print a completion script for a shell."),
    },
}


def _show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        document = {"kind": "version", "version": __version__}
        raise Answered(Answer(document, lambda out: out.line(f"aj {__version__}")))


@click.group(
    cls=Group,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Options of `aj` itself come before the command. `aj COMMAND --help` tells more about each.",
)
@click.option(
    "--json", "machine", is_flag=True, help="Print one JSON document on stdout, failures too (AJ_OUTPUT=json)."
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_obj
def aj(call: Call, machine: bool) -> None:
    """Submit training jobs like a build tool: a graph of content-addressed steps, then a few guarded writes."""
    del machine  # `main` has looked for it before anything could fail
    if (form := call.env.get("AJ_OUTPUT", "")) not in ("", "json", "text"):
        raise ConfigError(f"AJ_OUTPUT is `{form}`", hint="it may be `json` or `text`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    env = environment()
    if instruction := env.get("_AJ_COMPLETE"):
        from click.shell_completion import shell_complete

        return shell_complete(aj, {"obj": Call(env, standard(env, machine=False))}, "aj", "_AJ_COMPLETE", instruction)
    asked = env.get("AJ_OUTPUT") == "json" or "--json" in takewhile(lambda word: word.startswith("-"), words)
    call = Call(env, standard(env, machine=asked))
    try:
        try:
            return call.console.answer(_invoke(words, call))
        except KeyboardInterrupt:
            return call.console.answer(failure(InterruptedByUser("interrupted")))
        except Exception as error:  # noqa: BLE001 the boundary
            return call.console.answer(failure(_explained(error, env)))
    except HungUp:
        return HUNG_UP
    except (AjError, KeyboardInterrupt) as error:
        return error.exit_code if isinstance(error, AjError) else InterruptedByUser.exit_code


def _invoke(words: list[str], call: Call) -> Answer:
    try:
        with aj.make_context("aj", words, obj=call) as ctx:
            answer = aj.invoke(ctx)
    except Answered as answered:
        return answered.answer
    except click.exceptions.NoArgsIsHelpError as missing:
        text = missing.message
        return replace(failure(usage_error(missing)), show=lambda out: out.say(text))
    assert isinstance(answer, Answer)
    return answer


def _explained(error: Exception, env: Mapping[str, str]) -> AjError:
    if isinstance(error, HungUp):
        raise error
    if isinstance(error, AjError):
        return error
    if isinstance(error, click.UsageError):
        return usage_error(error)
    if isinstance(error, OSError) and error.strerror:
        return StoreError(error.strerror, where=str(error.filename) if error.filename else None)
    return _bug(error, env)


def _bug(error: Exception, env: Mapping[str, str]) -> InternalError:
    """A fault of ours: its traceback goes to a private file, and to stderr for whoever asked by AJ_DEBUG=1."""
    import traceback

    from aj.shared.clock import new_id
    from aj.shared.jsonio import write_file

    said = "".join(traceback.format_exception_only(error)).strip()
    text = "".join(traceback.format_exception(error))
    if env.get("AJ_DEBUG") == "1":
        sys.stderr.write(text)
    log = cache_home(env) / "logs" / f"aj-{new_id()}.log"
    try:
        write_file(log, text.encode("utf-8", "backslashreplace"))
    except OSError as unwritable:
        return InternalError(said, hint=f"AJ_DEBUG=1 shows the traceback; its log cannot be written: {unwritable}")
    return InternalError(said, hint=f"a fault of aj; the traceback is in `{log}`")
