"""`aj run`: from the command line to a submitted job, or to the document that `-d` writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aj.client.call import Call
from aj.client.commands import UsageError
from aj.client.console import Answer, Console
from aj.client.options import JobCommand, JobWords, amlt_option, build, fresh_identity, job_options, job_words
from aj.client.submit import Submission, document_of, failed
from aj.shared.clock import new_id
from aj.shared.errors import AjError

if TYPE_CHECKING:
    from aj.shared.model import JobSpec


@dataclass(frozen=True, slots=True)
class Ways:
    """How the job is to be submitted."""

    dry_run: bool
    plan_file: str | None
    queue: bool
    follow: bool | None
    """None: as the backend does."""
    via: str | None


@click.command(cls=JobCommand)
@job_options
@click.option(
    "-d", "--dry-run", is_flag=True, help="Write an amlt-shaped YAML and show it; needs no daemon and no network."
)
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="Submit exactly what `aj plan -o FILE` saved; refused when an input has moved.",
)
@click.option("--queue", is_flag=True, help="Leave the work to the daemon and return a ticket.")
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Show the job's output to its end. Local jobs are followed unless you say no.",
)
@amlt_option
@click.pass_obj
def run(call: Call, /, **options: Any) -> Answer:
    """Build a job from a template, these options and COMMAND, and submit it.

    Everything from COMMAND on belongs to COMMAND: options of `aj run` come before it. Options count for this run
    only; nothing is remembered.
    """
    ways = Ways(**{name: options.pop(name) for name in Ways.__slots__})
    words = job_words(call, **options)
    _refuse_contradictions(words, ways)
    aj_id = new_id()
    try:
        spec, expect = _spec(call, words, ways, aj_id)
        if ways.dry_run:
            return _dry_run(call, spec)
    except UsageError:
        raise
    except AjError as error:
        return failed({"id": aj_id, "template": words.template}, error)
    return Submission(call, spec, queue=ways.queue, follow=ways.follow, expect=expect).answer()


def _refuse_contradictions(words: JobWords, ways: Ways) -> None:
    if ways.plan_file and words.given():
        hint = "leave COMMAND and the job's options out"
        raise UsageError("a saved plan already says what to run", where="--plan", hint=hint)
    for one, other, both in (
        ("-d", "--queue", ways.dry_run and ways.queue),
        ("-d", "--plan", ways.dry_run and ways.plan_file),
        ("-d", "--follow", ways.dry_run and ways.follow),
        ("--queue", "--follow", ways.queue and ways.follow),
        ("--amlt", "--follow", ways.via and ways.follow),
        ("--amlt", "--plan", ways.via and ways.plan_file),
    ):
        if both:
            raise UsageError(f"`{one}` and `{other}` exclude each other", where="aj run", hint="leave one of them out")


def _spec(call: Call, words: JobWords, ways: Ways, aj_id: str) -> tuple[JobSpec, str | None]:
    """The job, and the payload digest that it must have."""
    if ways.plan_file:
        from aj.client.saved import read_saved

        return read_saved(call.home, Path(ways.plan_file), aj_id)
    built = build(call, words, fresh_identity(call, words, aj_id), ways.via)
    for notice in built.warnings:
        call.console.warn(notice)
    return built.spec, None


def _dry_run(call: Call, spec: JobSpec) -> Answer:
    from aj.shared.job.amlt import amlt_document, with_code
    from aj.shared.jsonio import write_file
    from aj.shared.redact import redact, secret_names
    from aj.shared.yaml import dump

    path = call.home.dryrun / f"{spec.identity.id}.yaml"
    config = amlt_document(spec)
    if spec.via:
        config = with_code(config, path, call.cwd, call.home)
    write_file(path, dump(config).encode("utf-8", "surrogatepass"))
    hidden = secret_names(spec)
    shown = redact(config, hidden)

    def show(out: Console) -> None:
        out.line(dump(shown).rstrip("\n"))
        if hidden:
            out.say(f"values of {', '.join(sorted(hidden))} are hidden here; the file has them")
        out.say(f"written to {path}; nothing was submitted")

    document = {**document_of(spec, "dry_run"), "path": str(path), "config": shown}
    return Answer(document, show)
