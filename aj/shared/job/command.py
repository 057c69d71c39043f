"""How the words of a command line become one shell script that runs them exactly."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from aj.shared.errors import CommandError

_RUNNERS = {".py": ("uv", "run"), ".sh": ("bash",)}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[.*\])?\+?=.*", re.DOTALL)
_DOUBLED_DOLLARS = re.compile(r"(?<!\$)\$\$(?:\{\w|[A-Z_][A-Z0-9_])")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_RESERVED = frozenset(
    "case coproc do done elif else esac fi for function if in select then until while".split()  # noqa: SIM905
)

# What a shell reads as one piece outside of quotes; what does not match is not understood here, and so may stay open.
_TOKEN = re.compile(
    r"""
      (?P<silent>[ \t]+|\\\n(?!\#)|(?:(?<=[ \t\n;&|()<>])|\A)\#[^\n]*)
    | (?P<line>\n)
    | \\.(?!\#)
    | '[^']*'
    | \$'(?:\\.|[^'\\])*'
    | "(?:\\.|[^"\\`$]|\$\([^()'"`\\\#<]*\)|\$\{[^{}'"`\\$]*\}|\$(?![({]))*"
    | `[^`'"\\\#<$]*`
    | \$\{[^{}'"`\\$\s]*\} | \$(?![({'"\[])
    | <<<
    | <<(?P<dash>-?)[ \t]*(?P<quote>['"]?)(?P<end>[A-Za-z0-9_]+)(?P=quote)(?=[ \t\n;&|<>])
    | \$\((?!\() | \((?!\() | <(?!<) | (?<=[^ \t\n;&|()<>])\# | [^\\'"`<(\#$ \t\n]
    """,
    re.VERBOSE | re.DOTALL,
)


DOUBLED_DOLLARS = "has `$$` before a variable and keeps both: to a shell that is its own process id"
SINGLE_DOLLARS = "write a single `$`: it means the same everywhere, and aj doubles it for amlt"


def doubles_dollars(texts: Sequence[str]) -> bool:
    """Whether someone wrote `$$HOME` for amlt, which makes `$HOME` of it; `$$` alone and `/tmp/$$.log` are shell."""
    return any(_DOUBLED_DOLLARS.search(text) for text in texts)


def existing_file(word: str, cwd: Path) -> Path | None:
    """The file that `word` names, seen from `cwd`; None for a folder, a device or nothing."""
    path = cwd / word
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):  # too long, not permitted, not a name at all
        return None


def command_words(argv: Sequence[str], cwd: Path) -> tuple[str, ...]:
    """The words that run in the code's root: `.py` and `.sh` files get their runner, all others stay as given.

    Only the first word is looked at. `CommandError` for no command, a file that cannot be started so, one outside of
    `cwd`, and words that no process can be given.
    """
    for word in argv:
        _check_word(word)
    if not argv or not argv[0]:
        raise CommandError(
            "there is no command to run", where="COMMAND", hint="end with one: `aj run -t NAME train.py`"
        )
    place = travelling_script(argv[0], cwd)
    if place is None:
        if _ASSIGNMENT.fullmatch(argv[0]):
            name = argv[0].partition("=")[0]
            hint = f"give variables by `--env {name}=…`, or start with `env {name}=…`"
            raise CommandError(f"`{name}=` would set a variable, not start a program", where="COMMAND", hint=hint)
        return tuple(argv)
    runner = _RUNNERS.get(PurePosixPath(place).suffix)
    if runner is None:
        program = shlex.quote(place if "/" in place else f"./{place}")
        raise CommandError(
            f"`{argv[0]}` is a file that is neither `.py` nor `.sh`",
            where="COMMAND",
            hint=f"`bash {shlex.quote(place)}` runs it as a script, `env {program}` as a program",
        )
    return (*runner, place, *argv[1:])


def travelling_script(word: str, cwd: Path) -> str | None:
    """The file of the code that `word` names, from `cwd`; None when it names none, `CommandError` outside of `cwd`."""
    script = existing_file(word, cwd)
    if script is None:
        return None
    try:
        place = (script.parent.resolve() / script.name).relative_to(cwd.resolve()).as_posix()
    except ValueError:
        raise CommandError(
            f"`{script}` lies outside the code folder, it would not travel with the job",
            where="COMMAND",
            hint=f"copy it into `{cwd}`, or submit from a folder that holds it",
        ) from None
    _check_word(place)
    return f"./{place}" if place[0] in "-+" else place


def _check_word(word: str) -> None:
    if "\0" in word:
        raise CommandError("no process can be given a word with a NUL", where="COMMAND", hint=f"look at {word!r}")
    try:
        word.encode()
    except UnicodeEncodeError:
        hint = f"look at {word!r}, or pass the bytes in a file"
        raise CommandError("a word is not valid UTF-8", where="COMMAND", hint=hint) from None


def command_text(template_command: Sequence[str], words: Sequence[str]) -> str:
    """One script: the template's entries, then `words`, quoted so that a process gets exactly them."""
    return "\n".join([*preamble(template_command), " ".join(_quoted(word) for word in words)])


def _quoted(word: str) -> str:
    return word if _PLAIN.fullmatch(word) and word not in _RESERVED else "'" + word.replace("'", "'\"'\"'") + "'"


def preamble(template_command: Sequence[str]) -> tuple[str, ...]:
    """The template's entries as lines before a command that they cannot swallow.

    They stay as written where it is plain that no here-document, quote or operator is left open. Else one `eval` runs
    them in the same shell and ends them.
    """
    entries = tuple(entry.rstrip("\n") for entry in template_command if entry.strip(" \t\n"))
    text = "\n".join(entries) + "\n"
    if not entries:
        return ()
    if not _surely_ends(text):
        return ("eval " + shlex.quote(text),)
    return (*entries[:-1], entries[-1] + "\n") if entries[-1].endswith("\\") else entries


def _surely_ends(text: str) -> bool:
    position, last = 0, ""
    open_documents: list[re.Match[str]] = []
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return False
        position = token.end()
        if token["end"]:
            open_documents.append(token)
        elif token["line"]:
            while open_documents:
                body = _document(open_documents.pop(0)).match(text, position)
                if body is None:
                    return False
                position = body.end()
        elif token["silent"] is None:
            last = (last + token[0])[-2:]
    return not open_documents and not last.endswith(("|", "|&", "&&"))


def _document(token: re.Match[str]) -> re.Pattern[str]:
    """The body of a here-document and its last line; none where a backslash may hide that line."""
    line = ".*\n" if token["quote"] else r"(?:.*[^\\\n])?\n"
    indent = "\t*" if token["dash"] else ""
    return re.compile(rf"(?:{line})*?{indent}{token['end']}\n")
