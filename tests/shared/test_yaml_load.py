"""What a YAML file means to aj: the 1.2 core rules, places, spellings, duplicate keys, merge keys, lints."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from aj.shared.errors import TemplateError
from aj.shared.yaml import Document, load


def read(text: str) -> Document:
    return load(text.encode(), "t.yaml")


def refused(text: str | bytes) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        load(text if isinstance(text, bytes) else text.encode(), "t.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("spelled", "value"),
    [
        *((word, None) for word in ("", "~", "null", "Null", "NULL")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("-12345678", -12345678),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.10", 1.1),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1e-5", -1e-05),
        ("58899e0", 58899.0),
    ],
)
def test_plain_scalars_follow_the_core_schema(spelled: str, value: object) -> None:
    document = read(f"a: {spelled}\n")
    assert document.value == {"a": value}
    assert type(document.value["a"]) is type(value)
    assert document.spelling == {"/a": spelled}


TEXTS = (
    *("4090:8", "22:22", "72:00:00", "4090:60", "1:30", "190:20:30"),  # base 60
    *("0123456", "01", "08", "0777", "-012", "00.5", "08e1"),  # leading zeros
    *("no", "on", "Yes", "y", "n", "off", "tRUE", "nULL"),
    *("2020-01-01", "2020-01-01T10:00:00Z", "1_000", "0b11", "0x", "0o8", "1e", "1.2.3", "=", "--", "+", "."),
    *(".inf", "-.inf", ".nan", ".NaN", "1e999", "9" * 1001, "0x" + "f" * 1001),
)


@pytest.mark.parametrize("text", TEXTS)
def test_T02_T03_T05_what_is_no_number_by_the_core_rules_is_text(text: str) -> None:
    assert read(f"a: {text}\nb: [{text}]\n").value == {"a": text, "b": [text]}


def test_T05_keys_are_text_as_spelled() -> None:
    document = read("on: 1\n1: 2\nnull: 3\n~: 4\n1.10: 5\ntrue: 6\n'': 7\n2020-01-01: 8\n")
    assert list(document.value) == ["on", "1", "null", "~", "1.10", "true", "", "2020-01-01"]


def test_quotes_and_the_core_tags_decide_the_type() -> None:
    text = "a: '1'\nb: !!str 1.10\nc: ! 1\nd: !!float 1\ne: !!int '3'\nf: !!null ''\n"
    text += "g: !!seq [1]\nh: !!map {a: !!bool true}\n"
    values = {"a": "1", "b": "1.10", "c": "1", "d": 1.0, "e": 3, "f": None, "g": [1], "h": {"a": True}}
    assert read(text).value == values
    assert type(read(text).value["d"]) is float


@pytest.mark.parametrize(
    "text", ["a: !foo 1", "a: !!python/name:os.system x", "!include x.yaml", "a: !!set {b}", "!x k: 1"]
)
def test_other_tags_are_refused_with_their_place(text: str) -> None:
    error = refused(text)
    assert "tag `!" in error.message
    assert error.where in ("t.yaml:1:4", "t.yaml:1:1")


def test_a_tag_that_does_not_fit_its_text_is_refused() -> None:
    assert "`x` is not what its tag `!!int` says" in refused("a: !!int x").message


def test_marks_name_the_key_or_the_item() -> None:
    document = read("a:\n  b: 1\n  c/d~:\n    - x\n    - {y: 2}\n")
    places = {where: f"{mark.line}:{mark.column}" for where, mark in document.marks.items()}
    assert places == {
        "": "1:1",
        "/a": "1:1",
        "/a/b": "2:3",
        "/a/c~1d~0": "3:3",
        "/a/c~1d~0/0": "4:7",
        "/a/c~1d~0/1": "5:7",
        "/a/c~1d~0/1/y": "5:8",
    }
    assert str(document.marks["/a/b"]) == "t.yaml:2:3"


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("env:\n  A: 1\nenv:\n  B: 2", "env", (3, 1)),
        ("a:\n  b:\n    x: 1\n    y: 2\n    x: 3", "x", (5, 3)),
        ("{a: 1, a: 2}", "a", (1, 1)),
        ("- {a: 1,\n   a: 2}", "a", (2, 1)),
        ("a: 1\n'a': 2", "a", (2, 1)),
        ("1: 1\n'1': 2", "1", (2, 1)),
    ],
)
def test_T01_a_duplicate_key_names_both_lines(text: str, key: str, lines: tuple[int, int]) -> None:
    error = refused(text)
    assert error.message == f"duplicate key `{key}` on line {lines[0]}, first on line {lines[1]}"
    assert (error.where or "").startswith(f"t.yaml:{lines[0]}:")


def test_T01_overriding_a_key_that_came_by_merge_is_legal() -> None:
    assert read("a: &a {x: 1, z: 1}\nb:\n  x: 2\n  <<: *a\n").value["b"] == {"x": 2, "z": 1}


def test_T08_the_list_form_of_merge_lets_earlier_ones_win() -> None:
    text = "a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc:\n  <<: [*b, *a]\nd:\n  <<: [*a, {w: 0}, *b]\n"
    value = read(text).value
    assert value["c"] == {"x": 2, "y": 2}
    assert value["d"] == {"x": 1, "w": 0, "y": 2}


def test_T08_two_merge_keys_are_a_duplicate() -> None:
    error = refused("a: &a {x: 1}\nb: &b {x: 2}\nc:\n  <<: *a\n  <<: *b\n")
    assert error.message == "duplicate key `<<` on line 5, first on line 4"
    assert "<<: [*a, *b]" in (error.hint or "")


def test_a_quoted_merge_key_is_a_key_and_merge_takes_mappings_only() -> None:
    assert read("a: &a {x: 1}\nb: {'<<': *a}\n").value["b"] == {"<<": {"x": 1}}
    for text in ("a: {<<: 1}", "a: &a [1]\nb: {<<: *a}", "a: {<<: null}", "a: {<<: [[{b: 1}]]}"):
        assert "`<<` merges mappings only" in refused(text).message


def test_aliases_share_nothing_and_keep_the_places_of_what_they_hold() -> None:
    document = read("a: &a\n  x: [1]\nb: *a\nc:\n  - *a\nd:\n  <<: *a\n")
    value: Any = document.value
    value["a"]["x"].append(2)
    assert value["b"] == value["c"][0] == value["d"] == {"x": [1]}
    value["d"]["x"].append(3)
    assert value["b"] == {"x": [1]}
    places = {where: f"{mark.line}:{mark.column}" for where, mark in document.marks.items()}
    assert (places["/b"], places["/b/x"], places["/c/0"], places["/d/x"]) == ("3:1", "2:3", "5:5", "2:3")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "\ufeff"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    assert read(text).value == {}


def test_bom_and_line_endings_do_not_change_values_or_places() -> None:
    document = read("\ufeffa: 1\r\nb: |\r\n  x\r\n  y\r\nc: 2\r\n")
    assert document.value == {"a": 1, "b": "x\ny\n", "c": 2}
    assert str(document.marks["/c"]) == "t.yaml:5:1"


def test_yaml_directives_other_than_1_2_are_refused() -> None:
    assert read("%YAML 1.2\n---\na: yes\n").value == {"a": "yes"}
    assert refused("%YAML 1.1\n---\na: yes\n").where == "t.yaml:1:1"
    assert "1.2" in refused("%YAML 2.0\n---\na: yes\n").message


FAULTS = [
    ("jobs:\n- name: A\n sku: C1", "3:2", "line up `sku` with `name`"),  # T15
    ("jobs:\n  - name: A\n    x: 1\n   sku: C1\n", "4:4", "line up `sku` with `x`"),
    ("a: 1\n b: 2\n", "2:3", "line up `b` with `a`"),
    ("pattern: *.py", "1:10", "quote the value"),  # T19
    ("user: @me", "1:7", "quote the value"),  # T19
    ("a: `x`", "1:4", "quote the value"),
    ("a: %x", "1:4", "quote the value"),
    ("a: &", "1:4", "quote the value"),
    ("a: b: c", "1:5", "quote the value if `: ` belongs to it"),
    ("a: {{x}}", "1:5", "quote the value"),
    ("a: ]", "1:4", "quote the value"),
    ("a: - b", "1:4", "begin the list on a line of its own"),
    ("a:\n\tb: 1", "2:1", "indent with blanks, not with tabs"),
    ("a:\n  b: 1\n\tc: 2", "3:1", "indent with blanks, not with tabs"),
    ("a: [1, 2\nb: 3", "2:2", "close it"),
    ("a: {b: 1\n", "2:1", "close it"),
    ('a: "abc\nb: 2\n', "1:4", "close them"),
    ("a: 'x\n", "1:4", "close them"),
    ('a: "\\q"', "1:5", "single quotes"),
    ("a: 1\n--- \nb: 2", "2:1", "keep one document a file"),
    ("a: *u", "1:4", "quote the value"),
    ("? [a]\n: b", "1:3", "quote the value"),
    ("a: &x y\n*x : 1", "2:1", "write the key out"),
    ('a: "x" y', "1:8", "check the indentation"),
]


@pytest.mark.parametrize(("text", "place", "hint"), FAULTS)
def test_T15_T19_a_parser_error_is_one_line_with_its_place_and_a_way_out(text: str, place: str, hint: str) -> None:
    error = refused(text)
    assert error.where == f"t.yaml:{place}"
    assert hint in (error.hint or "")
    assert "\n" not in error.message
    assert error.exit_code == 2


def test_every_fault_has_a_place_and_a_hint_by_the_pure_python_parser_too() -> None:
    program = (
        "import sys; sys.modules['yaml._yaml'] = None\n"
        "import yaml; assert not hasattr(yaml, 'CSafeLoader')\n"
        "from aj.shared.yaml import load\n"
        "from aj.shared.errors import TemplateError\n"
        "assert load(b'a: &a [1, 0777]\\nb: *a', 't').value == {'a': [1, '0777'], 'b': [1, '0777']}\n"
        "for text in eval(sys.stdin.read()):\n"
        "    try: load(text.encode(), 't')\n"
        "    except TemplateError as error: print(error.where, error.message, '|', error.hint)\n"
        "    else: print('read', repr(text))\n"
    )
    texts = [text for text, _, _ in FAULTS]
    child = [sys.executable, "-c", program]
    out = subprocess.run(child, input=repr(texts), capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(out) == len(texts)
    for line, (_, place, _) in zip(out, FAULTS, strict=True):
        assert line.startswith(f"t:{place.partition(':')[0]}:"), line
        assert not line.endswith("None")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("command: echo a #b", "1:17", "comment"),  # T19
        ("a:\n  - pip install x #y\n", "2:19", "comment"),
        ("command: >\n  python train.py\n    --lr 1\n    --bs 2\n", "1:10", "`>` keeps"),  # E06
    ],
)
def test_T19_E06_what_may_be_meant_otherwise_is_a_notice(text: str, place: str, words: str) -> None:
    (notice,) = read(text).notices
    assert notice.where == f"t.yaml:{place}"
    assert words in notice.message
    assert notice.hint


def test_E06_the_folded_value_is_what_yaml_says() -> None:
    value = read("command: >\n  python train.py\n    --lr 1\n    --bs 2\n").value
    assert value == {"command": "python train.py\n  --lr 1\n  --bs 2\n"}


@pytest.mark.parametrize(
    "text", ["a: 1 #x", "a: b # a comment", "a: 'b' #c", "a: b#c", "a: >\n  b\n  c\n\n  d\n", "# a #b"]
)
def test_ordinary_comments_and_folds_give_no_notice(text: str) -> None:
    assert read(text).notices == ()
