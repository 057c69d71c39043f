"""Every schema that ships is a valid schema, and its patterns mean the whole value in Python and in editors alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from aj.shared.yaml import load

SCHEMAS = sorted((Path(__file__).parents[2] / "schemas").glob("*.*"))


def patterns(schema: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Each regular expression of a schema with its place; a property named `pattern` is not one."""
    if isinstance(schema, dict):
        for key, inner in schema.items():
            if key == "pattern" and isinstance(inner, str):
                yield f"{where}/pattern", inner
            if key == "patternProperties" and isinstance(inner, dict):
                yield from ((f"{where}/{key}", name) for name in inner)
            yield from patterns(inner, f"{where}/{key}")
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            yield from patterns(inner, f"{where}/{index}")


def fault(pattern: str) -> str | None:
    """Why a pattern may match a part of a value, or a value and a newline, or differ between dialects."""
    bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "_", pattern)
    depth = 0
    for character in bare:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and depth == 0:
            return "an alternative outside brackets escapes the anchors"
    if not pattern.startswith("^"):
        return "does not begin with `^`"
    if not pattern.endswith(("$(?!\\n)", "(?!\\n)$", "(?![\\s\\S])")):
        return "does not end with `$(?!\\n)` or `(?![\\s\\S])`: `$` alone matches before a final newline"
    if re.search(r"\\[dDwW]|\\[AZz]|\(\?[a-zP]", pattern):
        return "`\\d`, `\\w`, `\\A`, `\\Z` and flags differ between Python and JavaScript"
    return None


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_T16_every_pattern_is_anchored_and_newline_proof(path: Path) -> None:
    schema = load(path.read_bytes(), path.name).value
    faults = [f"{where} {pattern!r} {found}" for where, pattern in patterns(schema) if (found := fault(pattern))]
    assert faults == []


@pytest.mark.parametrize("path", [path for path in SCHEMAS if path.suffix == ".json"], ids=lambda path: path.name)
def test_every_schema_is_valid_by_its_own_dialect(path: Path) -> None:
    schema = load(path.read_bytes(), path.name).value
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("[a-z]+$(?!\\n)", "begin"),
        ("^[a-z]+$", "final newline"),
        ("^[a-z]+", "end"),
        ("^a|b$(?!\\n)", "alternative"),
        ("^\\d+$(?!\\n)", "differ"),
        ("^(?i:a)$(?!\\n)", "differ"),
    ],
)
def test_T16_the_lint_finds_what_it_is_for(pattern: str, words: str) -> None:
    assert words in (fault(pattern) or "")


def test_T16_the_lint_accepts_what_is_right() -> None:
    for pattern in ("^(?:a|b)[|)]$(?!\\n)", "^[^\\u0000]*(?![\\s\\S])"):
        assert fault(pattern) is None


def test_every_key_of_the_template_schema_is_described() -> None:
    schema = load((Path(__file__).parents[2] / "schemas" / "template.schema.json").read_bytes(), "s").value
    for name, room in schema["$defs"].items():
        for key, inner in room.get("properties", {}).items():
            target = schema["$defs"].get(inner.get("$ref", "").rpartition("/")[2], {})
            assert inner.get("description") or target.get("description"), f"{name}.{key}"
