"""What a JSON Schema that ships with aj says against a document, in words that a user can act on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aj.shared.errors import NotFoundError, PayloadError
from aj.shared.jsonio import Json, pointer, read_json
from aj.shared.paths import shipped

_SUFFIX = ".schema.json"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that a schema forbids, at the JSON pointer of the value (or key) that is wrong."""

    pointer: str
    message: str
    hint: str | None = None


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The schema `schemas/<name>.schema.json`, or the file of an absolute path; `NotFoundError` lists the names."""
    if Path(name).is_absolute():
        document: dict[str, Any] = read_json(Path(name))
        return document
    found = {path.name.removesuffix(_SUFFIX): path for path in shipped("schemas").glob("*" + _SUFFIX)}
    if name not in found:
        raise NotFoundError(f"no schema `{name}`", hint="there are " + ", ".join(f"`{each}`" for each in sorted(found)))
    schema: dict[str, Any] = read_json(found[name])
    return schema


def violations(document: Json, schema_name: str) -> list[Violation]:
    """All that the schema says against the document; empty when it is valid."""
    return explain(_validator(schema_name).iter_errors(document))


def check(document: Json, schema_name: str, what: str) -> None:
    """`PayloadError` on the first violation in a document of our own; `what` names it: `the payload`, `the plan`."""
    if found := violations(document, schema_name):
        message = f"{what} is not a valid `{schema_name}`: {found[0].message}"
        raise PayloadError(message, where=found[0].pointer or "/", hint=found[0].hint)


def validator_for(schema: Mapping[str, Any]) -> Any:
    """A jsonschema validator in which 2.0 is no whole number; `$ref` finds `<name>.schema.json` among ours."""
    from jsonschema import Draft202012Validator, validators
    from referencing import Registry, Resource

    def is_int(_: object, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def retrieve(uri: str) -> Any:
        return Resource.from_contents(load_schema(uri.rpartition("/")[2].removesuffix(_SUFFIX)))

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_int)
    strict: Any = validators.extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
    return strict(schema, registry=Registry(retrieve=retrieve))  # type: ignore[call-arg]


def explain(errors: Iterable[Any]) -> list[Violation]:
    """A validator's errors in our words, each at the place that was meant, none twice."""
    return list(dict.fromkeys(found for error in errors for found in _explain(error)))


def close_match(word: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one is nearest to, whatever the case."""
    from difflib import get_close_matches

    folded = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), folded, n=1)
    return folded[found[0]] if found else None


@cache
def _validator(schema_name: str) -> Any:
    return validator_for(load_schema(schema_name))


def _explain(error: Any) -> Iterator[Violation]:
    where, schema = pointer(*error.absolute_path), error.schema if isinstance(error.schema, Mapping) else {}
    match error.validator:
        case "additionalProperties" if error.validator_value is False:
            yield from _unknown_keys(error.instance, where, schema)
        case "anyOf" | "oneOf" if error.context:
            yield from _meant_branch(error, where)
        case "required":
            for key in error.validator_value:
                if key not in error.instance:
                    yield Violation(where, f"the key `{key}` is missing", _says(schema.get("properties", {}).get(key)))
        case "type":
            yield _wrong_type(error.instance, _types(error), where, schema)
        case "maxItems":
            message = f"{_named(error)}{len(error.instance)} entries, where at most {error.validator_value} can be"
            yield Violation(where + pointer(error.validator_value), message, _says(schema))
        case _:
            # An error about a key has the path of its mapping.
            key = pointer(error.instance) if "propertyNames" in error.absolute_schema_path else ""
            form = schema.get("patternErrorMessage") if error.validator == "pattern" else None
            yield Violation(where + key, _refusal(error), form or _says(schema) or _close_value(error))


def _unknown_keys(mapping: Mapping[str, Json], where: str, schema: Mapping[str, Any]) -> Iterator[Violation]:
    known, meant = list(schema.get("properties", ())), schema.get("x-meant", {})
    patterns = list(schema.get("patternProperties", ()))
    for key in mapping:
        if key in known or any(re.search(pattern, key) for pattern in patterns):
            continue
        if close := key if key in meant else close_match(key, [*known, *meant]):
            hint: str | None = f"did you mean `{meant.get(close, close)}`?"
        else:
            hint = "the keys here are " + ", ".join(f"`{each}`" for each in known) if known else None
        yield Violation(where + pointer(key), f"unknown key {_shown(key)}", hint)


def _meant_branch(error: Any, where: str) -> Iterator[Violation]:
    """The faults of the alternative that was meant: the value has its type, and it has the fewest faults."""
    branches: dict[object, list[Any]] = {}
    for each in error.context:
        branches.setdefault(each.relative_schema_path[0], []).append(each)
    of_other_type = {
        key: [each for each in found if each.validator == "type" and not each.relative_path]
        for key, found in branches.items()
    }
    fitting = [found for key, found in branches.items() if not of_other_type[key]]
    if fitting:
        yield from (violation for each in min(fitting, key=len) for violation in _explain(each))
    else:
        types = [kind for found in of_other_type.values() for each in found for kind in _types(each)]
        yield _wrong_type(error.instance, list(dict.fromkeys(types)), where, error.schema)


_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "`true` or `false`",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_WAYS = {
    "array": "write a list: each entry on its own line behind `- `",
    "object": "write a mapping: `key: value` on lines of their own, indented below the key",
    "boolean": "write `true` or `false`",
    "integer": "write a whole number, such as 1",
    "number": "write a number, such as 1.5",
    "string": "write one text",
}
_KINDS = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a mapping"}


def _types(error: Any) -> list[str]:
    return [error.validator_value] if isinstance(error.validator_value, str) else list(error.validator_value)


def _wrong_type(value: Json, types: Sequence[str], where: str, schema: Mapping[str, Any]) -> Violation:
    names = [_TYPES[kind] for kind in types if kind != "null" or len(types) == 1]
    expected = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    message = f"{_shown(value)} is {_KINDS.get(type(value), 'nothing')}, where {expected} is expected"
    hint = _way_out(value, types) or _says(schema) or next((_WAYS[kind] for kind in types if kind in _WAYS), None)
    return Violation(where, message, hint)


def _way_out(value: Json, types: Sequence[str]) -> str | None:
    match value:
        case bool() | int() | float() if "string" in types:
            return "quote it: a number or a word like `true` is text only in quotes"
        case dict() if "string" in types:
            return "quote it if it is text: `: ` without quotes makes a mapping"
        case str() if "boolean" in types and value.lower() in ("yes", "on", "y", "no", "off", "n"):
            return f"write `{'true' if value.lower() in ('yes', 'on', 'y') else 'false'}`"
        case str() if {"integer", "number"} & set(types) and re.fullmatch(r"[0-9]+", value):
            return "write the number without quotes and without leading zeros"
        case bool() | int() | float() | str() if "array" in types:
            return _WAYS["array"]
    return None


_REFUSALS = {
    "const": "is not {limit}",
    "pattern": "is not of the right form",
    "minimum": "is less than {limit}",
    "exclusiveMinimum": "is not more than {limit}",
    "maximum": "is more than {limit}",
    "maxLength": "is longer than {limit} characters",
    **dict.fromkeys(("minLength", "minItems", "minProperties"), "is shorter than {limit}"),
}


def _refusal(error: Any) -> str:
    limit = error.validator_value
    if error.validator == "enum":
        words = "is not one of " + ", ".join(_shown(each) for each in limit if each is not None)
    elif error.validator not in _REFUSALS:
        return str(error.message)
    elif limit == 1 and error.validator.startswith("min") and error.validator != "minimum":
        words = "is empty"
    else:
        words = _REFUSALS[error.validator].format(limit=_shown(limit) if error.validator == "const" else limit)
    return f"{_shown(error.instance)} {words}"


def _named(error: Any) -> str:
    """`… has ` for a value under a key."""
    path = list(error.absolute_path)
    return f"`{path[-1]}` has " if path and isinstance(path[-1], str) else ""


def _says(schema: Any) -> str | None:
    """What the schema's author wrote for people who meet the error; editors show the same."""
    return schema.get("errorMessage") if isinstance(schema, Mapping) else None


def _close_value(error: Any) -> str | None:
    if error.validator != "enum" or not isinstance(error.instance, str):
        return None
    meant = close_match(error.instance, [each for each in error.validator_value if isinstance(each, str)])
    return f"did you mean `{meant}`?" if meant else None


def _shown(value: Json) -> str:
    """A value for a message: what cannot be seen is spelled out, what is long is cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= 60 else text[:57] + "…"
    return f"`{text}`" if text and text.isprintable() and "`" not in text else repr(text)
