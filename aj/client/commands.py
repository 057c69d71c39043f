"""How commands and groups are declared: loaded when called, with grouped options, examples and near spellings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from aj.client.console import Answer
from aj.shared.errors import InputError

HELP = {"help_option_names": ["-h", "--help"]}


class UsageError(InputError):
    """The command line itself cannot be meant."""


class Answered(Exception):
    """An option such as `--help` has answered already: the command is not run."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class Command(click.Command):
    """A command whose help shows its options in sections, then examples and exit codes."""

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Sequence[str]] | None = None,
        examples: Sequence[str] = (),
        exits: str = "",
        **kwargs: Any,
    ) -> None:
        kwargs["context_settings"] = HELP | kwargs.get("context_settings", {})
        super().__init__(*args, **kwargs)
        self.sections = sections or {}
        self.examples = examples
        self.exits = exits

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """`--help` that keeps to the one way out of the process."""
        return _answering_help(super().get_help_option(ctx))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The sections in their order; what is in none of them comes last."""
        placed = {name for names in self.sections.values() for name in names}
        rest = [param.name or "" for param in self.get_params(ctx) if param.name not in placed]
        for title, names in {**self.sections, "Options": rest}.items():
            params = [param for param in self.get_params(ctx) if param.name in names]
            rows = [row for param in params if isinstance(param, click.Option) and (row := param.get_help_record(ctx))]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples as they are typed, and what the exit codes mean."""
        del ctx
        _block(formatter, "Examples", self.examples)
        _block(formatter, "Exit codes", [line for line in self.exits.split("; ") if line])


class Group(click.Group):
    """A group whose members are imported when they are called: `module:attribute` and a line of help each."""

    command_class = Command

    def __init__(
        self, *args: Any, lazy: Mapping[str, Mapping[str, tuple[str, str]]] | None = None, **kwargs: Any
    ) -> None:
        kwargs["context_settings"] = HELP | kwargs.get("context_settings", {})
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}
        self._targets = {name: target for members in self.lazy.values() for name, (target, _) in members.items()}

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """As a command's."""
        return _answering_help(super().get_help_option(ctx))

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
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and name not in self.list_commands(ctx):
            raise UsageError(
                f"unknown command `{name}`",
                where=ctx.command_path,
                hint=suggestion(name, self.list_commands(ctx)) or f"`{ctx.command_path} --help` lists the commands",
            )
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
    path = error.ctx.command_path if error.ctx else "aj"
    see_help = f"see `{path} --help`"
    if isinstance(error, click.NoSuchOption):
        known = (name for param in (error.ctx.command.params if error.ctx else ()) for name in param.opts)
        hint = suggestion(error.option_name, known) or see_help
        return UsageError(f"unknown option `{error.option_name}`", where=path, hint=hint)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return UsageError("missing command", where=path, hint=see_help)
    message = error.format_message().rstrip(".")
    return UsageError(_backticks(message[:1].lower() + message[1:]), where=path, hint=see_help)


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """`did you mean …?` for the names that `word` begins or resembles."""
    from difflib import get_close_matches

    names = sorted(set(known))
    near = [name for name in names if name.startswith(word) and len(word) > 2] or get_close_matches(word, names, 3, 0.6)
    return f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else None


def _answering_help(option: click.Option | None) -> click.Option | None:
    if option is not None:
        option.help = "Show this message and exit."
        option.callback = _show_help
    return option


def _show_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        text = ctx.get_help()
        raise Answered(Answer({"kind": "help", "command": ctx.command_path, "text": text}, lambda out: out.line(text)))


def _block(formatter: click.HelpFormatter, title: str, lines: Sequence[str]) -> None:
    if lines:
        with formatter.section(title):
            for line in lines:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _backticks(text: str) -> str:
    import re

    return re.sub(r"(?<!\w)'([^'\n]*)'", r"`\1`", text)
