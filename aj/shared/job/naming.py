"""What a job is called: the name a person would give it, made legal for a backend without losing the id."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from aj.shared.errors import CommandError
from aj.shared.job.command import existing_file
from aj.shared.model import Identity

_ID = re.compile(r"(?:\A|[-_])([0-9a-f]{8})\Z")


def job_base_name(aj_name: str | None, cwd: Path, argv: Sequence[str]) -> str:
    """AJ_NAME where it is set and not empty, else the folder's name with `_stem` of the script that is run."""
    if aj_name:
        if not aj_name.isprintable():
            hint = "use letters, digits, `-`, `_` and `.`"
            raise CommandError(f"`{aj_name!r}` holds a character that cannot be printed", where="AJ_NAME", hint=hint)
        return aj_name
    script = existing_file(argv[0], cwd) if argv else None
    name = cwd.name + (f"_{script.stem}" if script else "")
    return "".join(char if char.isprintable() else "-" for char in name) or "job"


def fit_name(name: str, *, allowed: str, first: str, limit: int) -> str:
    """The legal name closest to `name`: a legal one as it is, any other mapped character by character and cut.

    `allowed` and `first` are the insides of character classes over ASCII letters, digits and `-_.`: both hold `a-z`,
    `allowed` also `0-9` and one of `-`, `_`. `limit` (at least 10) counts characters. A final id, 8 hex digits, is
    never cut. The result starts with one of `first`, ends with a letter or digit and is a fixed point.
    """
    if re.fullmatch(f"(?=[{first}])[{allowed}]+(?<=[A-Za-z0-9])", name) and len(name) <= limit:
        return name
    separator = "-" if re.fullmatch(f"[{allowed}]", "-") else "_"
    match = _ID.search(name)
    tail = (_legal("_", allowed, separator) + match[1]) if match else ""
    text = _legal(name[: match.start()] if match else name, allowed, separator)
    head = re.sub(rf"\A(?:(?![{first}])[-_.])+", "", text).rstrip("-_.") or "job"
    if not re.match(f"[{first}]", head):
        head = f"j{separator}{head}"
    return (head[: limit - len(tail)].rstrip("-_.") or "j") + tail


def _legal(text: str, allowed: str, separator: str) -> str:
    legal = re.compile(f"[{allowed}]")

    def spell(char: str) -> str:
        return next((form for form in (char, char.lower(), char.upper()) if legal.fullmatch(form)), "\0")

    plain = (char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return re.sub("\0+", separator, "".join(map(spell, plain)))


def stable_identity(identity: Identity, name: str) -> dict[str, str]:
    """The job's variables that change with its identity."""
    return {"AJ_NAME": name, "AJ_ID": identity.id, "AJ_SUBMIT_TIMESTAMP_UTC": identity.submitted_at}
