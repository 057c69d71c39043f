"""`aj template` and `aj schema`: what the project's templates say, and the rules they obey."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from aj.client.call import Call
from aj.client.commands import Command, Group
from aj.client.console import Answer, Console
from aj.client.options import complete_template, stand_in
from aj.client.show import show_rows
from aj.shared.errors import AjError, TemplateError
from aj.shared.jsonio import Json, dotted, parts
from aj.shared.model import Notice, to_json
from aj.shared.paths import Home, shipped

if TYPE_CHECKING:
    from aj.shared.template.template import Template


@click.group(cls=Group)
def template() -> None:
    """List, show and validate templates: `AJ_HOME/template/NAME.yaml` with its bases."""


@template.command("list")
@click.pass_obj
def list_templates(call: Call) -> Answer:
    """List the project's leaf templates."""
    from aj.shared.template.template import list_templates

    found = list_templates(call.home)
    rows = [{"name": each.name, "path": str(each.path), "base": each.base, "service": each.service} for each in found]

    def show(out: Console) -> None:
        empty = f"no templates in {call.home.templates}; `aj init` writes a first one"
        show_rows(out, rows, ("name", "service", "base", "path"), empty)
        for issue in (each.issue for each in found if each.issue):
            out.warn(issue)

    return Answer({"kind": "template_list", "templates": rows}, show)


@template.command()
@click.argument("name", shell_complete=complete_template)
@click.option("--explain", is_flag=True, help="Show beside each value the file and line that it comes from.")
@click.pass_obj
def show(call: Call, name: str, explain: bool) -> Answer:
    """Show a template with all of its bases merged. It is not checked: `aj template validate` does that."""
    from aj.shared.template.template import resolve_template
    from aj.shared.yaml import dump

    found = resolve_template(call.home, name)
    document = {
        "kind": "template_detail",
        "name": found.name,
        "path": str(found.path),
        "base": found.base,
        "config": found.raw,
        "provenance": {
            pointer: {"file": origin.mark.file, "line": origin.mark.line, "column": origin.mark.column}
            for pointer, origin in found.provenance.items()
        },
    }

    def show(out: Console) -> None:
        for notice in found.notices:
            out.warn(notice)
        if explain:
            out.table(("FIELD", "VALUE", "FROM", "BY WAY OF"), _explained(found))
        else:
            out.line(dump(found.raw).rstrip("\n"))

    return Answer(document, show)


@template.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_template)
@click.pass_obj
def validate(call: Call, names: tuple[str, ...]) -> Answer:
    """Check templates, all of them unless some are named; every issue is shown, not only the first."""
    from aj.shared.template.template import template_names

    results = [_validated(call.home, name) for name in names or template_names(call.home)]
    invalid = sum(not result["ok"] for result in results)
    document = {
        "kind": "template_validate",
        "valid_count": len(results) - invalid,
        "invalid_count": invalid,
        "results": results,
    }
    return Answer(document, lambda out: _show_validation(out, document), TemplateError.exit_code if invalid else 0)


@click.command(cls=Command)
@click.argument("name", required=False)
def schema(name: str | None) -> Answer:
    """Print one of aj's JSON Schemas; without NAME, their names."""
    import json

    from aj.shared.schema import load_schema

    if name is None:
        names = sorted(path.name.removesuffix(".schema.json") for path in shipped("schemas").glob("*.schema.json"))
        return Answer({"kind": "schema_list", "names": names}, lambda out: out.line("\n".join(names)))
    found = load_schema(name)
    text = json.dumps(found, indent=2, ensure_ascii=False)
    return Answer({"kind": "schema", "name": name, "schema": found}, lambda out: out.line(text))


def _validated(home: Home, name: str) -> dict[str, Json]:
    """The schema's issues; without any, what building a job of it says too."""
    from aj.shared.template.template import check_template, load_template

    issues: list[Json] = [to_json(issue) for issue in check_template(home, name)]
    warnings: list[Json] = []
    if not issues:
        try:
            warnings = [to_json(notice) for notice in stand_in(load_template(home, name))[0].warnings]
        except AjError as error:
            issues = [{"where": error.where, "message": error.message, "hint": error.hint}]
    return {"name": name, "ok": not issues, "issues": issues, "warnings": warnings}


def _explained(found: Template) -> list[tuple[str, str, str, str]]:
    import json

    rows = []
    for pointer, value in _leaves("", found.raw):
        if origin := found.provenance.get(pointer):
            said = json.dumps(value, ensure_ascii=False)
            rows.append((dotted(*parts(pointer)), said, str(origin.mark), " > ".join(origin.chain[:-1])))
    return rows


def _leaves(pointer: str, value: Json) -> list[tuple[str, Json]]:
    from aj.shared.jsonio import pointer as joined

    if not value or not isinstance(value, Mapping | list):
        return [(pointer, value)]
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [leaf for key, item in items for leaf in _leaves(pointer + joined(key), item)]


def _show_validation(out: Console, document: Mapping[str, Any]) -> None:
    for result in document["results"]:
        out.painted(f"{result['name']}: {'ok' if result['ok'] else 'invalid'}", "green" if result["ok"] else "red")
        for warning in result["warnings"]:
            out.warn(Notice(**warning))
        for issue in result["issues"]:
            out.error(TemplateError(issue["message"], where=issue["where"], hint=issue["hint"]))
    out.line(f"{document['valid_count']} valid, {document['invalid_count']} invalid")
