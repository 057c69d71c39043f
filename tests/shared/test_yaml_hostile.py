"""Files made to hurt: they are refused fast, with their place, or read right."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.errors import TemplateError
from aj.shared.yaml import DEPTH_LIMIT, EXPANSION_LIMIT, load


def refused(content: bytes) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        load(content, "t.yaml")
    return caught.value


def test_T13_an_alias_bomb_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [" + ",".join("x" * 9) + "]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    bomb = "\n".join(lines).encode()
    tracemalloc.start()
    error = refused(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.message == "too many expanded nodes"
    assert error.where is not None
    assert peak < 20_000_000


def test_T13_a_bomb_of_merge_keys_or_of_long_texts_is_refused_too() -> None:
    wide = "{" + ",".join(f"k{n}: 1" for n in range(1000)) + "}"
    merges = f"a: &a {wide}\nb: [" + ",".join(["{<<: *a}"] * (EXPANSION_LIMIT // 1000 + 1)) + "]\n"
    texts = f"a: &a {'x' * 1_000_000}\nb: [{','.join(['*a'] * 1000)}]\n"
    for bomb in (merges, texts):
        assert refused(bomb.encode()).message == "too many expanded nodes"


def test_aliases_within_the_limit_are_read() -> None:
    text = "a: &a [" + ",".join("1" * 1000) + "]\nb: [" + ",".join(["*a"] * 50) + "]\n"
    assert len(load(text.encode(), "t").value["b"]) == 50


def test_T13_a_self_reference_names_its_anchor_and_line() -> None:
    for text in ("a: 1\nb: &x [1, *x]", "a: 1\nb: &x {c: {d: *x}}", "a: 1\nb: &x {<<: *x}"):
        error = refused(text.encode())
        assert error.message == "self-referencing anchor `x`"
        assert (error.where or "").startswith("t.yaml:2:")


def test_T13_five_megabytes_without_aliases_are_read() -> None:
    text = "".join(f"key_{n}: {'v' * 80}\n" for n in range(55_000))
    assert len(text) > 5_000_000
    assert len(load(text.encode(), "t").value) == 55_000


@pytest.mark.parametrize("text", ["[" * 10_000, "{a: " * 10_000, "- " * 10_000 + "x", "[\n" * 10_000 + "]" * 10_000])
def test_deep_nesting_is_an_error_and_no_recursion(text: str) -> None:
    error = refused(text.encode())
    assert error.message == "nested too deeply"
    assert error.where


def test_depth_is_counted_through_aliases() -> None:
    chain = "a0: &a0 " + "[" * 30 + "]" * 30 + "\n"
    chain += "".join(f"a{n}: &a{n} {'[' * 30}*a{n - 1}{']' * 30}\n" for n in range(1, 6))
    assert refused(chain.encode()).message == "nested too deeply"
    merges = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 300))
    assert load(merges.encode(), "t").value["a299"] == {"x": 1}


def test_the_deepest_document_is_read() -> None:
    value = load(("[" * (DEPTH_LIMIT - 1) + "]" * (DEPTH_LIMIT - 1)).encode(), "t").value
    assert isinstance(value, list)


@pytest.mark.parametrize(
    ("content", "where", "words"),
    [
        ("a: 1\nb: é".encode("latin-1"), "t.yaml:2:4", "not UTF-8: byte 0xe9"),
        ("a: 1".encode("utf-16"), "t.yaml:1:1", "UTF-16"),
        (b"\xfe\xff\x00a", "t.yaml:1:1", "UTF-16"),
        (b"a: x\x00y", "t.yaml:1:5", "U+0000"),
        (b"a: 1\r\nb: \x07", "t.yaml:2:4", "U+0007"),
        ("a: b\u2028c".encode(), "t.yaml:1:5", "U+2028"),
        ("a: 1\n# \x85b: 2".encode(), "t.yaml:2:3", "U+0085"),
        ("a: 1\n\ufeffb: 2".encode(), "t.yaml:2:1", "U+FEFF"),
        (b"a: \xed\xa0\x80", "t.yaml:1:4", "not UTF-8"),
    ],
)
def test_bytes_and_characters_that_readers_disagree_about_are_refused(content: bytes, where: str, words: str) -> None:
    error = refused(content)
    assert error.where == where
    assert words in error.message
    assert error.hint


@given(st.binary(max_size=60) | st.text(alphabet="ab:-[]{},&*!|>'\"%@#?\n \t<~01", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused_with_a_place(content: bytes) -> None:
    try:
        document = load(content, "t")
    except TemplateError as error:
        assert (error.where or "").startswith("t:")
        assert error.hint
        assert "\n" not in error.message
    else:
        assert set(document.spelling) <= set(document.marks) | {""}
