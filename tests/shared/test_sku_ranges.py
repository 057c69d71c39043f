"""A template's SKU: two placeholders, and ranges of nodes of which the first that fits wins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.errors import ShapeError
from aj.shared.sku import resolve_sku


def test_placeholders_are_filled_in() -> None:
    assert resolve_sku("{nodes}xG{processes}", 2, 8, "here") == "2xG8"
    assert resolve_sku("{nodes}{nodes}x{processes}", 2, 8, "here") == "22x8"


def test_T02_a_text_that_is_no_sku_stays_as_it_is() -> None:
    assert resolve_sku("4090:8", 2, 8, "here") == "4090:8"


@pytest.mark.parametrize(
    "text", ["{gpus}xG1", "{}", "{ nodes }", "{nodes", "nodes}", "{{nodes}}", "{nodes!r}", "{nodes:03}", "}{"]
)
def test_another_placeholder_or_a_stray_brace_is_an_error(text: str) -> None:
    with pytest.raises(ShapeError, match="placeholder") as caught:
        resolve_sku(text, 1, 1, "t.yaml:7:3")
    assert caught.value.where == "t.yaml:7:3"
    assert "`{nodes}` and `{processes}`" in (caught.value.hint or "")


def test_a_brace_that_stays_open_and_a_near_word_are_told() -> None:
    with pytest.raises(ShapeError, match=r"placeholder `\{processes` is never closed"):
        resolve_sku("{nodes}xG{processes", 1, 1, "t.yaml:7:3")
    with pytest.raises(ShapeError, match=r"`\{node\}` is not a placeholder") as caught:
        resolve_sku("{node}xG1", 1, 1, "t.yaml:7:3")
    assert "did you mean `{nodes}`?" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("nodes", "sku"), [(1, "G1"), (2, "2xG8-few"), (4, "4xG8-few"), (5, "5xG8-many"), (99, "99xG8-many")]
)
def test_the_range_that_contains_the_nodes(nodes: int, sku: str) -> None:
    ranges = {"1": "G1", "2-4": "{nodes}xG{processes}-few", "5+": "{nodes}xG{processes}-many"}
    assert resolve_sku(ranges, nodes, 8, "here") == sku


def test_the_first_in_source_order_wins() -> None:
    assert resolve_sku({"2-9": "wide", "4": "exact"}, 4, 1, "here") == "wide"
    assert resolve_sku({"4": "exact", "2-9": "wide"}, 4, 1, "here") == "exact"


def test_no_range_fits_lists_them_all() -> None:
    with pytest.raises(ShapeError, match="3 nodes") as caught:
        resolve_sku({"1": "a", "4-8": "b", "9+": "c"}, 3, 1, "t.yaml:7:3")
    assert caught.value.hint == "the ranges are `1`, `4-8`, `9+`"
    with pytest.raises(ShapeError):
        resolve_sku({}, 3, 1, "here")


@pytest.mark.parametrize(
    "key",
    ["0", "0-3", "4-2", "a", "", "1-", "-3", "+", "1 - 2", "1+2", "01", "１", "1\n", "1-2-3", "1.0", "nodes", "*"],
)
def test_a_key_that_is_no_range_is_an_error_even_behind_the_one_that_fits(key: str) -> None:
    with pytest.raises(ShapeError, match="not a range") as caught:
        resolve_sku({"1+": "fits", key: "x"}, 5, 1, "t.yaml:7:3")
    assert repr(key) in caught.value.message and caught.value.where == "t.yaml:7:3"


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 600))
def test_a_range_holds_both_of_its_ends(low: int, high: int, nodes: int) -> None:
    low, high = sorted((low, high))
    chosen = resolve_sku({f"{low}-{high}": "in", "1+": "out"}, nodes, 1, "here")
    assert chosen == ("in" if low <= nodes <= high else "out")
