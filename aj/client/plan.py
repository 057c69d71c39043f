"""`aj plan`: what the next run would do, as text, as JSON, as an exit code or as a file that `aj run --plan` takes."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aj.client.call import Call
from aj.client.commands import UsageError
from aj.client.console import Answer, Console, failure
from aj.client.options import JobCommand, amlt_option, build, fresh_identity, job_options, job_words
from aj.client.progress import progress
from aj.client.show import show_plan
from aj.shared.clock import new_id
from aj.shared.errors import AjError, InputError, NotFoundError

if TYPE_CHECKING:
    from aj.shared.model import JobSpec

WOULD_CHANGE = 3
"""The exit code of `--check`."""


class PlanCommand(JobCommand):
    """A command that takes `--json` too, and obeys it even when the rest of its line is wrong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As a command's, after a look for `--json` in front of COMMAND."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        valued = [name for option in options if not option.is_flag for name in option.opts]
        words = iter(args)
        for word in takewhile(lambda word: word.startswith("-") and word != "--", words):
            if word == "--json" and isinstance(ctx.obj, Call):
                ctx.obj.console.machine = True
            if word in valued:
                next(words, None)
        return super().parse_args(ctx, args)


@click.command(cls=PlanCommand)
@job_options
@amlt_option
@click.option("--offline", is_flag=True, help="Ask no remote: what lies there is `unknown`.")
@click.option("--check", is_flag=True, help="Exit 3 when the next run would send something other than the last one.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Save the plan for `aj run --plan FILE`. The file is private: variables are in it.",
)
@click.option("--json", "machine", is_flag=True, expose_value=False, help="As `aj --json plan`.")
@click.pass_obj
def plan(call: Call, /, check: bool, output: str | None, **options: Any) -> Answer:
    """Show what the next run would do, and do none of it.

    The template, the archive and the payload are really built, then compared with the last submitted run of the same
    template. Nothing is uploaded, submitted or recorded.
    """
    try:
        return _planned(call, check, output, options)
    except UsageError:
        raise
    except AjError as error:
        return failure(error, exit_code=1 if check else None)


def _refuse_to_travel(call: Call, spec: JobSpec, output: str) -> None:
    """A plan that is part of the code it was made of is never true, and would take its variables with it."""
    from aj.build.select import explain

    try:
        packed = explain(call.cwd, call.home, spec.ignore, output).packed
    except NotFoundError:  # outside the code folder
        return
    if packed:
        hint = f"save it under `{call.home.root.name}/`, or list it in the ignore file"
        raise InputError(f"`{output}` would travel with the code", where="-o", hint=hint)


def _planned(call: Call, check: bool, output: str | None, options: dict[str, Any]) -> Answer:
    offline, via = options.pop("offline"), options.pop("via")
    words = job_words(call, **options)
    built = build(call, words, fresh_identity(call, words, new_id()), via)
    if output:
        _refuse_to_travel(call, built.spec, output)
    with progress(call.console) as emit:
        found = call.connect().plan(built.spec, call.caller(), offline=offline, emit=emit)
    warnings = [*({"message": w.message, "where": w.where, "hint": w.hint} for w in built.warnings), *found["warnings"]]
    document = {"kind": "plan", **found, "warnings": warnings}
    if output:
        from aj.client.saved import write_saved

        write_saved(Path(output), document, built.spec)

    def show(out: Console) -> None:
        from aj.shared.model import Notice

        show_plan(out, document)
        for warning in warnings:
            out.warn(Notice(**warning))
        if output:
            out.say(f"saved; `aj run --plan {output}` submits exactly this")

    return Answer(document, show, WOULD_CHANGE if check and document["would_change"] else 0)
