"""Rendering: values cannot become structure, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.build.render import _render, yaml_scalar
from aj.shared import yaml
from aj.shared.errors import PayloadError
from aj.shared.jsonio import Json

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_reads_back_exactly(value: Json) -> None:
    assert yaml.load(f"value: {yaml_scalar(value)}\n".encode(), "x").value == {"value": value}


@pytest.mark.parametrize(
    "text", ["\U0001f600", "\u2028", "\x85", "\ufeff", "\x7f", 'a"b\\', "${x}", "{{ 7 }}", "a\nb: c"]
)
def test_hostile_text_reads_back_exactly(tmp_path: Path, text: str) -> None:
    (tmp_path / "payload.yaml.j2").write_text(
        "name: {{ name }}\nlist:\n{% for x in [name] %}\n  - {{ x }}\n{% endfor %}\n"
    )
    rendered = _render(tmp_path, "payload.yaml.j2", {"name": text})
    assert yaml.load(rendered.encode(), "x").value == {"name": text, "list": [text]}


def test_a_missing_name_is_an_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "payload.yaml.j2").write_text("a: 1\nb: {{ spec.nmae }}\n")
    with pytest.raises(PayloadError, match="nmae"):
        _render(tmp_path, "payload.yaml.j2", {"spec": {"name": "x"}})


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "payload.yaml.j2").write_text("a: 1\nb: {{ spec. }}\n")
    with pytest.raises(PayloadError) as caught:
        _render(tmp_path, "payload.yaml.j2", {"spec": {}})
    assert caught.value.where == "payload.yaml.j2:2"


def test_templates_cannot_reach_python(tmp_path: Path) -> None:
    (tmp_path / "payload.yaml.j2").write_text("{{ spec.__class__.__mro__ }}")
    with pytest.raises(PayloadError):
        _render(tmp_path, "payload.yaml.j2", {"spec": {}})
