"""How commands and groups are declared: loaded when called, their help with sections, examples and near spellings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from aj.client.console import Answer
from aj.shared.errors import InputError


class UsageError(InputError):
    """The command line itself cannot be meant."""


class Answered(Exception):
    """An option such as `--help` has answered already: the command is not run."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class _Helpful(click.Command):
    """A command or group whose `--help` keeps to the one way out of the process."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """The option, answering."""
        if option := super().get_help_option(ctx):
            option.help, option.callback = "Show this message and exit.", _show_help
        return option


class Command(_Helpful):
    """A command whose help shows its options in sections, then examples and exit codes: all of them in `help.toml`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The sections in their order; what is in none of them comes last."""
        sections = _texts()["sections"].get(ctx.command_path, {})
        placed = {name for names in sections.values() for name in names}
        params = {param.name: param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        for title, names in {**sections, "Options": params.keys() - placed}.items():
            rows = [param.get_help_record(ctx) for name, param in params.items() if name in names]
            if shown := [row for row in rows if row]:
                with formatter.section(title):
                    formatter.write_dl(shown)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples as they are typed, and what the exit codes mean."""
        for title, table in (("Examples", "examples"), ("Exit codes", "exits")):
            if lines := _texts()[table].get(ctx.command_path):
                with formatter.section(title):
                    for line in lines:
                        formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Group(_Helpful, click.Group):
    """A group whose members may be `lazy`, imported when called: `module:attribute` and a line of help each."""

    command_class = Command

    def __init__(
        self, *args: Any, lazy: Mapping[str, Mapping[str, tuple[str, str]]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}
        self._targets = {name: target for members in self.lazy.values() for name, (target, _) in members.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of their declaration."""
        del ctx
        return [*self._targets, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if target := self._targets.get(cmd_name):
            module, _, attribute = target.partition(":")
            command = getattr(import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with near names for an unknown one."""
        name, known = args[0], self.list_commands(ctx)
        if not ctx.resilient_parsing and not name.startswith("-") and name not in known:
            hint = suggestion(name, known) or f"`{ctx.command_path} --help` lists the commands"
            raise UsageError(f"unknown command `{name}`", where=ctx.command_path, hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The sections of lazy commands without importing one; then click's own list."""
        for title, members in self.lazy.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in members.items()])
        if not self.lazy:
            super().format_commands(ctx, formatter)


def usage_error(error: click.UsageError) -> UsageError:
    """click's complaint in aj's words, with the nearest option and the place of the help."""
    import re

    path = error.ctx.command_path if error.ctx else "aj"
    hint = f"see `{path} --help`"
    if isinstance(error, click.NoSuchOption):
        known = (name for param in (error.ctx.command.params if error.ctx else ()) for name in param.opts)
        hint = suggestion(error.option_name, known) or hint
        return UsageError(f"unknown option `{error.option_name}`", where=path, hint=hint)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return UsageError("missing command", where=path, hint=hint)
    message = error.format_message().rstrip(".")
    return UsageError(re.sub(r"(?<!\w)'([^'\n]*)'", r"`\1`", message[:1].lower() + message[1:]), where=path, hint=hint)


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """`did you mean …?` for the names that `word` begins or resembles."""
    from difflib import get_close_matches

    names = sorted(set(known))
    near = [name for name in names if name.startswith(word) and len(word) > 2] or get_close_matches(word, names, 3, 0.6)
    return f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else None


def _show_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        text = ctx.get_help()
        raise Answered(Answer({"kind": "help", "command": ctx.command_path, "text": text}, lambda out: out.line(text)))


@cache
def _texts() -> Mapping[str, Mapping[str, Any]]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name("help.toml").read_text("utf-8"))
