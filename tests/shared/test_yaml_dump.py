"""Text that is written survives readers of both YAML dialects."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.yaml import dump, load

TRICKY = (
    *("58899e0", "1_000", "0o7", "0x1F", "0b1", "0777", "1.10", "12345678", "1e5", ".5", "+1", "-", "1:30", "72:00:00"),
    *("yes", "No", "ON", "off", "y", "N", "true", "False", "null", "NULL", "~", "", ".inf", ".NaN", "=", "<<"),
    *("2020-01-01", "2020-01-01 10:00:00", " lead", "trail ", "a: b", "a #b", "a:", ":", "#", "- a", "? a", "---"),
    *("[a]", "{a}", "*a", "&a", "!a", "|", ">", "'a'", '"a"', "%a", "@a", "`a`", "a'b", 'a"b', "\\", "a\\nb", ",", "]"),
    *("😀", "\u2028", "\x85", "\x07", "\0", "\x7f", "\ufeff", "\xa0", "\u202e", "\uffff", "\r", "é", "a\tb", "\t"),
    *("a\nb", "a\nb\n", "a\n\n\nb\n\n", "\n", "\n\n", "\na", " a\nb", "a\n b\n", "a \nb", "a\n  \nb"),
    *("# a\nb", "a\n---\nb\n", "a\n\tb", "\ta\nb", "a\r\nb", "a\n..."),
)


def both(text: str) -> tuple[Any, Any, Any]:
    return yaml.safe_load(text), yaml.load(text, Loader=yaml.CSafeLoader), load(text.encode(), "t").value


@pytest.mark.parametrize("text", TRICKY)
def test_T06_a_text_stays_a_text_in_both_dialects(text: str) -> None:
    for value in ({"k": text}, [text], {"a": [[text], {text: text}]}, text):
        assert both(dump(value)) == (value, value, value)


@pytest.mark.parametrize("text", ["58899e0", "1_000", "0o7", "yes", "1:30", "2020-01-01", "=", "<<", "~", "y", "0777"])
def test_T06_what_another_dialect_would_read_as_something_else_is_quoted(text: str) -> None:
    assert dump({"k": text}) == f'k: "{text}"\n'
    assert dump({text: 1}) == f'"{text}": 1\n'


def test_the_text_is_made_for_people() -> None:
    value = {
        "name": "train",
        "command": "set -e\npython train.py\n",
        "list": ["plain words", {"a": 1, "b": []}, ["x"]],
        "empty": {},
        "number": 1e16,
    }
    assert dump(value) == (
        "name: train\n"
        "command: |\n  set -e\n  python train.py\n"
        "list:\n  - plain words\n  - a: 1\n    b: []\n  - - x\n"
        "empty: {}\n"
        "number: 1.0e+16\n"
    )


def test_keys_longer_than_a_reader_looks_are_written_so_that_it_finds_them() -> None:
    value = {"k" * 3000: {"a": ["x\ny\n"]}, "j" * 600: "b\nc", "l" * 501: 1}
    assert both(dump(value)) == (value, value, value)


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": object()}, {1: 2}])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        dump(value)


def test_bottomless_values_are_refused_without_recursion() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested deeper"):
        dump(value)


letters = st.text(st.characters(exclude_categories=["Cs"]))
texts = letters | st.text("ab:-#\n \t'\"\\|>0e.~", max_size=20) | st.sampled_from(TRICKY)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


@given(values)
def test_every_json_value_survives_both_dialects(value: Any) -> None:
    text = dump(value)
    assert yaml.safe_load(text) == value
    read = load(text.encode(), "t").value
    assert read == value
    assert dump(read) == text
