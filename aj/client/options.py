"""The options that say what job is meant, and their way to a JobSpec: the same for run, plan and render."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from aj.client.call import Call
from aj.client.commands import UsageError
from aj.client.config import read_config
from aj.shared.errors import AjError, CommandError

if TYPE_CHECKING:
    from aj.shared.job.build import Built
    from aj.shared.model import Identity

SECTIONS = {
    "What to run": ("template", "env"),
    "Shape": ("nodes", "processes", "processes_per_node"),
}
COMMAND_SETTINGS: dict[str, Any] = {"allow_interspersed_args": False}
"""The first word that is no option begins COMMAND; everything after it is the command's own."""
_F = TypeVar("_F", bound=Callable[..., Any])
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Count(click.ParamType):
    """A whole number from 1, in ASCII digits."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """`2` and not `0`, `-1`, `1_0` or a digit of another script."""
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) and int(value) > 0:
            return int(value)
        self.fail(f"`{value}` is not a whole number from 1", param, ctx)


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
    for decorate in (
        click.argument("argv", metavar="COMMAND [ARGS]...", nargs=-1, type=click.UNPROCESSED),
        click.option("--env", metavar="NAME[=VALUE]", multiple=True, help="Set a variable in the job; NAME alone takes yours. Hidden in every text."),
        click.option("--ppn", "--processes-per-node", "processes_per_node", type=Count(), metavar="N", help="Launcher processes on each node, else the template's, else 1."),
        click.option("-p", "--processes", "--gpn", "--gpus-per-node", "processes", type=Count(), metavar="N", help="Per-node selector of the SKU: GPUs of a G SKU, size tier of a C SKU; else the template's."),
        click.option("-n", "--nodes", type=Count(), metavar="N", help="Nodes, else the template's `jobs[0].instance_count`."),
        click.option("-t", "--template", metavar="NAME", shell_complete=complete_template, help="Leaf template; may be left out after `aj config template NAME`."),
    ):  # fmt: skip
        command = decorate(command)
    return command


def job_words(call: Call, *, argv: tuple[str, ...], env: tuple[str, ...], **shape: Any) -> JobWords:
    """The options as values; `CommandError` for an `--env` that says nothing."""
    return JobWords(argv=argv, env=dict(_variable(text, call.env) for text in env), **shape)


def build(call: Call, words: JobWords, identity: Identity) -> Built:
    """Template, flags and command as a JobSpec, with the warnings that came up."""
    from aj.shared.job.build import Invocation, build_spec
    from aj.shared.template.template import load_template

    invocation = Invocation(
        argv=words.argv,
        cwd=call.cwd,
        nodes=words.nodes,
        processes=words.processes,
        processes_per_node=words.processes_per_node,
        env=words.env,
    )
    return build_spec(load_template(call.home, chosen_template(call, words)), invocation, identity)


def chosen_template(call: Call, words: JobWords) -> str:
    """`-t`, else the configured template; `UsageError` naming both ways, also for a missing COMMAND."""
    name = words.template or read_config(call.home).get("template")
    if not isinstance(name, str) or not name:
        raise UsageError(
            "no template was named", where="-t", hint="give `-t NAME`, or set one for this project by `aj config template NAME`"
        )
    if not words.argv:
        raise UsageError("COMMAND is missing", where="aj", hint="for example `aj run -t local python train.py`")
    return name


def fresh_identity(call: Call, words: JobWords) -> Identity:
    """A new id, the base name of this call and the time."""
    from aj.shared.clock import new_id, now_utc
    from aj.shared.job.naming import job_base_name
    from aj.shared.model import Identity

    return Identity(new_id(), job_base_name(call.env.get("AJ_NAME"), call.cwd, words.argv), now_utc())


def complete_template(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The project's template names; nothing where they cannot be read."""
    from aj.shared.template.template import template_names

    call = ctx.find_object(Call)
    try:
        names = template_names(call.home) if call else []
    except (AjError, OSError):
        names = []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _variable(text: str, env: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not _VARIABLE.match(name):
        raise CommandError(f"`{name}` is not a variable's name", where="--env", hint="write `--env NAME=VALUE`")
    if equals:
        return name, value
    if name not in env:
        raise CommandError(f"`{name}` is not set here", where="--env", hint=f"export it, or write `--env {name}=VALUE`")
    return name, env[name]
