"""Azure Resource Graph: a small part of its query language over the workspaces and virtual clusters there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.azure.arm.contract import check_api_version, parse_json
from tests.azure.arm.refusals import Refused
from tests.azure.arm.resources import Answer
from tests.azure.arm.tokens import TENANT

if TYPE_CHECKING:
    from tests.azure.arm.simulator import Simulator

PATH = "/providers/Microsoft.ResourceGraph/resources"
Row = Mapping[str, Any]
_WORD = r"[A-Za-z_][\w.\[\]'\"-]*"
_CONDITION = re.compile(
    rf"\s*(?P<left>(?:tolower|tostring)\({_WORD}\)|{_WORD})\s*"
    r"(?P<op>=~|==|!=|!~|in~|in|has|contains|startswith|endswith)\s*"
    r"(?P<right>\((?:\s*(?:'[^']*'|\"[^\"]*\")\s*,?)*\)|'[^']*'|\"[^\"]*\"|\d+|true|false)\s*"
)


def answer(world: Simulator, query: Mapping[str, str], body: bytes) -> Answer:
    """POST of a query: one page of rows. As in the service, no `$skipToken` comes when the rows have no `id`."""
    check_api_version(query, {"2021-03-01", "2022-10-01", "2024-04-01"})
    given = parse_json(body)
    if not isinstance(given, dict) or set(given) - {"query", "subscriptions", "managementGroups", "options", "facets"}:
        raise Refused(400, "BadRequest", "The request body has unknown keys.")
    options = given.get("options") or {}
    if set(options) - {"$skipToken", "$top", "$skip", "resultFormat", "authorizationScopeFilter", "allowPartialScopes"}:
        raise Refused(400, "BadRequest", f"Unknown options: {sorted(options)}.")
    rows = run(given.get("query", ""), _visible(world, given.get("subscriptions")))
    start = int(options.get("$skipToken") or options.get("$skip") or 0)
    size = min(int(options.get("$top", 1000)), world.state.settings.page_size)
    shown, more = rows[start : start + size], start + size < len(rows)
    document = {
        "totalRecords": len(rows),
        "count": len(shown),
        "resultTruncated": "true" if more else "false",
        "data": shown,
        "facets": [],
    }
    if more and all("id" in row for row in shown):
        document["$skipToken"] = str(start + size)
    return Answer(200, document)


def run(text: str, rows: Sequence[Row]) -> list[Row]:
    """The rows that a query selects; Refused for what this part of the language does not have."""
    table, *stages = [stage.strip() for stage in _split(text, "|")]
    if table.lower() == "resourcecontainers":
        rows = [row for row in rows if row["type"] == "microsoft.resources/subscriptions"]
    elif table.lower() != "resources":
        raise _invalid(f"no table `{table}`")
    result = list(rows)
    for stage in stages:
        verb, _, rest = stage.partition(" ")
        if verb == "order" or verb == "sort":
            rest = rest.strip().removeprefix("by").strip()
        if verb not in _STAGES:
            raise _invalid(f"no operator `{verb}`")
        result = _STAGES[verb](rest, result)
    return result


def _where(text: str, rows: list[Row]) -> list[Row]:
    either = [[_condition(one) for one in _split(part, " and ")] for part in _split(text, " or ")]
    return [row for row in rows if any(all(test(row) for test in tests) for tests in either)]


def _condition(text: str) -> Callable[[Row], bool]:
    text = text.strip()
    while text.startswith("(") and text.endswith(")") and _CONDITION.fullmatch(text) is None:
        inner = text[1:-1]
        return lambda row: bool(_where(inner, [row]))
    if found := re.fullmatch(rf"is(not)?(?:empty|null)\(({_WORD})\)", text):
        return lambda row: (value(row, found[2]) in (None, "")) != bool(found[1])
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise _invalid(f"cannot read the condition `{text}`")
    left, op = match["left"], match["op"]
    wanted = [first or second for first, second in re.findall(r"'([^']*)'|\"([^\"]*)\"", match["right"])] or [
        match["right"]
    ]
    return lambda row: _compare(op, _text(value(row, left)), wanted)


def _compare(op: str, have: str, wanted: list[str]) -> bool:
    low, wants = have.lower(), [one.lower() for one in wanted]
    match op:
        case "==" | "in":
            return have in wanted
        case "=~" | "in~":
            return low in wants
        case "!=":
            return have not in wanted
        case "!~":
            return low not in wants
        case "startswith":
            return low.startswith(wants[0])
        case "endswith":
            return low.endswith(wants[0])
    return wants[0] in low


def _project(text: str, rows: list[Row]) -> list[Row]:
    columns = [_column(part) for part in _split(text, ",")]
    return [{name: value(row, source) for name, source in columns} for row in rows]


def _extend(text: str, rows: list[Row]) -> list[Row]:
    columns = [_column(part) for part in _split(text, ",")]
    return [{**row, **{name: value(row, source) for name, source in columns}} for row in rows]


def _order(text: str, rows: list[Row]) -> list[Row]:
    for part in reversed(_split(text, ",")):
        name, _, direction = part.strip().partition(" ")
        down = direction.strip() != "asc"
        rows = sorted(rows, key=lambda row: _text(value(row, name)).lower(), reverse=down)
    return rows


def _take(text: str, rows: list[Row]) -> list[Row]:
    return rows[: int(text)]


_STAGES: dict[str, Callable[[str, list[Row]], list[Row]]] = {
    "where": _where,
    "project": _project,
    "extend": _extend,
    "order": _order,
    "sort": _order,
    "limit": _take,
    "take": _take,
}


def value(row: Row, source: str) -> Any:
    """The value of a dotted path, through `tostring(…)` and `tolower(…)`; None when it is not there."""
    call = re.fullmatch(r"(tostring|tolower)\((.+)\)", source.strip())
    if call is not None:
        inner = _text(value(row, call[2]))
        return inner.lower() if call[1] == "tolower" else inner
    found: Any = row
    for part in re.findall(r"[\w-]+", source):
        if isinstance(found, list) and part.isdecimal():
            found = found[int(part)] if int(part) < len(found) else None
        else:
            found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _column(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not re.fullmatch(rf"\s*(?:(?:tostring|tolower)\(.+\)|{_WORD})\s*", source if equals else name):
        raise _invalid(f"cannot read the column `{text.strip()}`")
    return name.strip(), (source if equals else name).strip()


def _split(text: str, mark: str) -> list[str]:
    """Parts between marks that are outside of quotes and brackets."""
    parts, depth, quote, start = [], 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif depth == 0 and text.startswith(mark, at):
            parts.append(text[start:at])
            start = at + len(mark)
    return [*parts, text[start:]]


def _visible(world: Simulator, subscriptions: list[str] | None) -> list[Row]:
    state = world.state
    wanted = [one.lower() for one in subscriptions] if subscriptions else [one.lower() for one in state.subscriptions]
    rows: list[Row] = []
    for workspace in state.workspaces:
        document = workspace.document(world.discovery)
        place = {"subscriptionId": workspace.subscription, "resourceGroup": workspace.group, "tenantId": TENANT}
        rows.append({**document, "type": document["type"].lower(), **place})
    rows += state.virtual_clusters
    for one, name in state.subscriptions.items():
        kind = "microsoft.resources/subscriptions"
        rows.append(
            {"id": f"/subscriptions/{one}", "name": name, "type": kind, "subscriptionId": one, "tenantId": TENANT}
        )
    denied = state.denied
    seen = [row for row in rows if row["subscriptionId"].lower() in wanted]
    return [row for row in seen if not any(part in row["id"].lower() for part in denied)]


def _text(found: Any) -> str:
    return "" if found is None else str(found)


def _invalid(message: str) -> Refused:
    return Refused(400, "BadRequest", f"Please provide below info when asking for support: ParserFailure, {message}.")
