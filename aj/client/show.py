"""How results, plans and tables look to a person; their JSON goes out as it came."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aj.client.console import Console, Style
from aj.shared.jsonio import Json

FILES_SHOWN = 30
"""Changed files in a plan's text; the JSON has all."""
_VERDICTS: Mapping[str, tuple[str, Style]] = {
    "same": ("=", "dim"),
    "changed": ("~", "yellow"),
    "new": ("+", "green"),
    "reuse": ("=", "dim"),
    "would": (">", "cyan"),
    "unknown": ("?", "yellow"),
    "blocked": ("!", "red"),
}
_CHANGES: Sequence[tuple[str, str, Style]] = (
    ("added", "+", "green"),
    ("changed", "~", "yellow"),
    ("removed", "-", "red"),
)
_DIFF: Mapping[str, Style] = {"+": "green", "-": "red", "@": "cyan"}
Say = Callable[..., None]


def size(count: float) -> str:
    """Bytes in decimal units: `812 B`, `1.2 MB`."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while count >= (1000 if unit == "B" else 999.95) and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count} B" if unit == "B" else f"{count:.1f} {unit}"


def counted(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def show_result(say: Say, result: Mapping[str, Any]) -> None:
    """What became of a submission."""
    say(f"{result['status']}  {result['name']}", "bold")
    remote, launched, archive = result.get("azure_name"), result["processes_per_node"], result.get("archive")
    shape = f"{counted(result['nodes'], 'node')} with {launched} process{'' if launched == 1 else 'es'} each"
    rows = {
        "remote": remote if remote != result["name"] else None,
        "backend": f"{result['backend']}, {shape}",
        "code": f"{_packed(archive)}{', reused' if archive.get('reused') else ''}" if archive else None,
        "portal": result.get("portal_url"),
        "note": result.get("note"),
    }
    for label, value in rows.items():
        if value:
            say(f"  {label:<8}{value}".replace("\n", "\n" + " " * 10))


def way_on(result: Mapping[str, Any]) -> str | None:
    """The command that goes on with a submission which is not followed; None where that is no command of aj."""
    from aj.shared.spec import describe

    if result["status"] == "queued":
        return f"aj queue wait {result['ticket'] or result['id']}"
    if result["backend"] == "amlt" or not describe(result["backend"]).managed:  # the note says how to follow it there
        return None
    return f"aj job logs -f {result['azure_name']}"


def _packed(archive: Mapping[str, Any]) -> str:
    return f"{counted(archive['files'], 'file')}, {size(archive['size'])}"


def show_plan(out: Console, plan: Mapping[str, Any]) -> None:
    """The steps with verdict and reason, the changed files, the diffs, and one closing line."""
    against = f"compared with run {plan['baseline']}" if plan["baseline"] else "nothing of it was submitted yet"
    out.painted(f"{plan['template']} on {plan['backend']}, {against}", "bold")
    out.line()
    width = max(len(step["name"]) for step in plan["steps"])
    for step in plan["steps"]:
        sign, style = _VERDICTS[step["verdict"]]
        out.painted(f"  {sign} {step['name']:<{width}}  {step['verdict']:<7}  {_why(step)}".rstrip(), style)
    if plan["archive"]:
        _show_files(out, plan["archive"])
    for name, diff in plan["diffs"].items():
        if diff:
            out.line()
            out.painted(f"{name}:", "bold")
            show_diff(out, diff)
    out.line()
    out.painted(closing_line(plan), "bold")


def closing_line(plan: Mapping[str, Any]) -> str:
    """The plan in one sentence."""
    sent = "".join(
        f"{words} {size(number)} and "
        for verdict, words in (("would", "upload"), ("unknown", "perhaps upload"))
        if (number := sum(step["bytes"] or 0 for step in plan["steps"] if step["verdict"] == verdict))
    )
    if not plan["would_change"]:
        return f"No changes: the next run would {sent}submit what run {plan['baseline']} submitted."
    if plan["baseline"] is None:
        return f"First run: it would {sent}submit one job."
    return f"Changes: the next run would {sent}submit something other than run {plan['baseline']} did."


def _why(step: Mapping[str, Any]) -> str:
    if step["verdict"] == "new":
        return ""
    plain = ("input_changed", "key_changed", "first_run")
    said = [
        why["detail"] if why["reason"] in plain else f"{why['reason'].replace('_', ' ')}: {why['detail']}"
        for why in step["why"]
    ]
    return ", ".join([size(step["bytes"]), *said] if step["bytes"] else said)


def _show_files(out: Console, archive: Mapping[str, Any]) -> None:
    out.line()
    out.line(f"code: {_packed(archive)} packed, {archive['sha256'][:12]}")
    for key, sign, style in _CHANGES:
        changes = archive[key]
        for change in changes[:FILES_SHOWN]:
            amount = f"  {size(change['size'])}" if change["size"] is not None else ""
            out.painted(f"  {sign} {change['path']}{amount}", style)
        if len(changes) > FILES_SHOWN:
            out.line(f"  {sign} ... and {len(changes) - FILES_SHOWN} more")


def show_diff(out: Console, diff: str) -> None:
    """A unified diff, coloured line by line."""
    for line in diff.splitlines():
        style = None if line.startswith(("+++", "---")) else _DIFF.get(line[:1])
        out.painted(line, *((style,) if style else ()))


def show_fields(out: Console, document: Mapping[str, Json]) -> None:
    """One `name  value` line each; nested values as compact JSON, absent ones left out."""
    rows = [(name, _cell(value)) for name, value in document.items() if name != "kind" and value not in (None, {}, [])]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        out.line(f"{name:<{width}}  {value}")


def show_rows(out: Console, rows: Iterable[Mapping[str, Json]], columns: Sequence[str], empty: str) -> None:
    """A table of `columns`; a line on stderr when there is nothing to show."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if cells:
        out.table([column.replace("_", " ").upper() for column in columns], cells)
    else:
        out.say(empty)


def _cell(value: Json) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False)
