"""The options that say what job is meant, and their way to a JobSpec: the same for run, plan and render."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from aj.client.call import Call
from aj.client.commands import Command, UsageError
from aj.shared.config import read_config
from aj.shared.errors import AjError

if TYPE_CHECKING:
    from aj.shared.job.build import Built
    from aj.shared.model import Identity
    from aj.shared.template.template import Template

PLACEHOLDER = ("echo", "COMMAND")
"""Stands for the command line where there is none."""
_F = TypeVar("_F", bound=Callable[..., Any])


class JobCommand(Command):
    """A command that ends with COMMAND: the first word that is no option begins it, all that follows is its own."""

    allow_interspersed_args = False


@dataclass(frozen=True, slots=True)
class JobWords:
    """What the command line said about the job."""

    argv: tuple[str, ...]
    template: str | None = None
    nodes: int | None = None
    processes: int | None = None
    processes_per_node: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def given(self) -> bool:
        """Whether it said anything at all."""
        return self != JobWords(())


def job_options(command: _F) -> _F:
    """Declare the options and COMMAND; the function gets them as keywords for `job_words`."""
    for decorate in reversed(_JOB_OPTIONS):
        command = decorate(command)
    return command


def job_words(call: Call, *, argv: tuple[str, ...], env: tuple[str, ...], **shape: Any) -> JobWords:
    """The options as values; `CommandError` for an `--env` that says nothing."""
    from aj.shared.job.environment import parse_env

    return JobWords(argv=argv, env=parse_env(env, call.env), **shape)


def build(call: Call, words: JobWords, identity: Identity, via: str | None = None) -> Built:
    """Template, flags and command as a JobSpec, with the warnings that came up; `via` is `JobSpec.via`."""
    from aj.shared.job import amlt
    from aj.shared.job.build import Invocation, build_spec
    from aj.shared.template.template import load_template

    shape = (words.nodes, words.processes, words.processes_per_node)
    invocation = Invocation(words.argv, call.cwd, *shape, words.env, via)
    template = load_template(call.home, chosen_template(call, words))
    built = build_spec(template, invocation, identity)
    if via == amlt.NAME:
        amlt.review(template, built.spec)
    return built


def stand_in(template: Template) -> tuple[Built, dict[str, int]]:
    """The job of a template without a command line, and what had to be assumed where it leaves its shape open.

    That is what its SKU says, else 1.
    """
    from aj.shared.job.build import Invocation, build_spec
    from aj.shared.model import Identity

    keys: Mapping[str, tuple[str | int, ...]] = {
        "nodes": ("jobs", 0, "instance_count"),
        "processes": ("target", "gpus_per_node"),
    }
    said = _said_by_sku(template)
    assumed = {name: said.get(name) or 1 for name, key in keys.items() if template.get(*key) is None}
    invocation = Invocation(PLACEHOLDER, Path("/"), assumed.get("nodes"), assumed.get("processes"))
    return build_spec(template, invocation, Identity.symbolic(template.name)), assumed


def _said_by_sku(template: Template) -> dict[str, int | None]:
    from aj.shared.errors import ShapeError
    from aj.shared.sku import parse_sku

    try:
        sku = parse_sku(str(template.get("jobs", 0, "sku", default="")), "")
    except ShapeError:  # none, or one with placeholders or ranges
        return {}
    return {"nodes": sku.nodes, "processes": sku.count}


def chosen_template(call: Call, words: JobWords) -> str:
    """`-t`, else the configured template; `UsageError` naming both ways, also for a missing COMMAND."""
    name = words.template or read_config(call.home).get("template")
    if not isinstance(name, str) or not name:
        raise UsageError(
            "no template was named",
            where="-t",
            hint="give `-t NAME`, or set one for this project by `aj config template NAME`",
        )
    if not words.argv:
        raise UsageError("COMMAND is missing", where="aj", hint="for example `aj run -t local python train.py`")
    return name


def fresh_identity(call: Call, words: JobWords, aj_id: str) -> Identity:
    """The id with the base name of this call and the time."""
    from aj.shared.clock import now_utc
    from aj.shared.job.naming import job_base_name
    from aj.shared.model import Identity

    return Identity(aj_id, job_base_name(call.env.get("AJ_NAME"), call.cwd, words.argv), now_utc())


def complete_template(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The project's template names; nothing where they cannot be read."""
    from aj.shared.template.template import template_names

    call = ctx.find_object(Call)
    try:
        names = template_names(call.home) if call else []
    except (AjError, OSError):
        names = []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def whole_number(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """An option's callback: `2` and not `0`, `-1`, `1_0` or a digit of another script."""
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) == 0:
        raise click.BadParameter(f"`{value}` is not a whole number from 1")
    return int(value)


def byte_count(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """An option's callback: `0`, `812`, `1.5GB`; the units are those that sizes are shown in."""
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kMGT]?)B?", value, re.ASCII)
    if found is None:
        raise click.BadParameter(f"`{value}` is not a size such as `500MB` or `1.5GB`")
    return int(float(found[1]) * 1000 ** " kMGT".index(found[2] or " "))


def _number(*names: str, text: str) -> Callable[[Any], Any]:
    return click.option(*names, callback=whole_number, metavar="N", help=text)


_JOB_OPTIONS = (
    click.option(
        *("-t", "--template"),
        metavar="NAME",
        shell_complete=complete_template,
        help="Leaf template; may be left out after `aj config template NAME`.",
    ),
    _number("-n", "--nodes", text="Nodes, else the template's `jobs[0].instance_count`."),
    _number(
        *("-p", "--processes", "--gpn", "--gpus-per-node", "processes"),
        text="Per-node selector of the SKU: GPUs of a G SKU, size tier of a C SKU; else the template's.",
    ),
    _number(
        *("--ppn", "--processes-per-node", "processes_per_node"),
        text="Launcher processes on each node, else the template's, else 1.",
    ),
    click.option(
        "--env",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="Set a variable in the job; NAME alone takes yours. The value is hidden in every text.",
    ),
    click.argument("argv", metavar="COMMAND [ARGS]...", nargs=-1, type=click.UNPROCESSED),
)
amlt_option = click.option(
    "--amlt",
    "via",
    flag_value="amlt",
    default=None,
    help="Have `amlt` pack the code and submit the job; the daemon runs it.",
)
"""Of commands that can go the amlt way."""
