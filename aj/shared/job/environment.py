"""What an environment of a job may hold, and whose value of a variable wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from aj.shared.errors import CommandError

STRING_LIMIT = 131_071
"""Bytes of one environment string, `NAME=value`, that Linux gives to a process."""
RESERVED_PREFIX = "AJ_"
"""Variables so named are aj's own."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IN_A_FILE = "put the value into a file, which travels with the code"


def parse_env(pairs: Sequence[str], caller_env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `--env`: `NAME=value`, split at the first `=`, or `NAME` alone for the caller's own value.

    The last of equal names wins. `CommandError` never shows a value.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals and _VARIABLE.fullmatch(name) and name not in caller_env:
            hint = f"export it, or write `--env {name}=VALUE`"
            raise CommandError(f"`{name}` is not set here", where="--env", hint=hint)
        given[name] = value if equals else caller_env.get(name, "")
        _check_given(name, given[name])
    return given


def job_environment(
    template_env: Mapping[str, str], given: Mapping[str, str], stable: Mapping[str, str], where: Callable[[str], str]
) -> dict[str, str]:
    """The template's variables, those of `--env` over them, aj's own over all; `where` is a template variable's place.

    `CommandError` for a name that is none or is reserved, and for a value that no process can be given.
    """
    for name, value in template_env.items():
        _check_variable(name, value, where(name))
        if name.startswith(RESERVED_PREFIX) and name not in stable:
            raise CommandError(
                f"`{name}` is reserved: names in `AJ_` are aj's own", where=where(name), hint="rename it"
            )
    for name, value in given.items():
        _check_given(name, value)
    return {**template_env, **given, **stable}


def _check_given(name: str, value: str) -> None:
    _check_variable(name, value, "--env")
    if name.startswith(RESERVED_PREFIX):
        hint = "set AJ_NAME in front of `aj` to name the job" if name == "AJ_NAME" else "rename it"
        raise CommandError(f"`{name}` is reserved: names in `AJ_` are aj's own", where="--env", hint=hint)


def _check_variable(name: str, value: str, where: str) -> None:
    if not _VARIABLE.fullmatch(name):
        hint = "use letters, digits and `_`, with no digit in front"
        raise CommandError(f"`{name!r}` is not a variable's name", where=where, hint=hint)
    check_string(name, value, where, _IN_A_FILE)


def check_string(name: str, value: str, where: str, hint: str) -> None:
    """Refuse a variable that no process can be given: `CommandError` for a NUL, broken Unicode or too many bytes."""
    if "\0" in value:
        raise CommandError(f"`{name}` holds a NUL, which no process can be given", where=where, hint=hint)
    try:
        size = len(f"{name}={value}".encode())
    except UnicodeEncodeError:
        raise CommandError(f"`{name}` is not valid UTF-8", where=where, hint=hint) from None
    if size > STRING_LIMIT:
        message = f"`{name}=…` takes {size:,} bytes, but a process can be given {STRING_LIMIT:,}"
        raise CommandError(message, where=where, hint=hint)
