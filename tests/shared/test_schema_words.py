"""A schema's errors become sentences at the place that was meant."""

from __future__ import annotations

from typing import Any

import pytest

from aj.shared.errors import NotFoundError, PayloadError
from aj.shared.schema import Violation, check, explain, load_schema, validator_for, violations


def said(schema: dict[str, Any], document: Any) -> list[Violation]:
    return explain(validator_for(schema).iter_errors(document))


TEXT_OR_MAP = {
    "oneOf": [
        {"type": "string"},
        {"type": "object", "properties": {"target": {"type": "string"}}, "additionalProperties": False},
    ]
}


def test_T17_only_the_branch_that_was_meant_is_reported() -> None:
    assert said({"properties": {"a": TEXT_OR_MAP}}, {"a": {"targt": "x"}}) == [
        Violation("/a/targt", "unknown key `targt`", "did you mean `target`?")
    ]
    assert said(TEXT_OR_MAP, {"target": 1})[0].pointer == "/target"


def test_T17_a_value_of_no_branch_s_type_names_all_of_them() -> None:
    (violation,) = said(TEXT_OR_MAP, [1])
    assert violation.message == "`[1]` is a list, where text or a mapping is expected"


def test_T17_of_several_fitting_branches_the_nearest_is_reported() -> None:
    kinds = [
        {"properties": {"kind": {"const": kind}, "size": {"type": "integer"}}, "required": ["kind", "size"]}
        for kind in ("disk", "tape")
    ]
    assert said({"anyOf": kinds}, {"kind": "tape", "size": "x"}) == [
        Violation("/size", "`x` is text, where a whole number is expected", "write a whole number, such as 1")
    ]


def test_T16_patterns_show_the_value_with_what_cannot_be_seen() -> None:
    schema = {"type": "string", "pattern": "^[a-z]+$(?!\\n)", "patternErrorMessage": "lower-case letters only"}
    assert said(schema, "abc\n") == [Violation("", "'abc\\n' is not of the right form", "lower-case letters only")]
    assert said(schema, "BAD_NAME x")[0].message == "`BAD_NAME x` is not of the right form"
    assert said(schema, "abc") == []


@pytest.mark.parametrize(
    ("schema", "document", "pointer", "message"),
    [
        ({"required": ["a", "b"]}, {"a": 1}, "", "the key `b` is missing"),
        ({"enum": ["fast", "slow"]}, "fsat", "", "`fsat` is not one of `fast`, `slow`"),
        ({"const": 1}, 2, "", "`2` is not `1`"),
        ({"maximum": 3}, 4, "", "`4` is more than 3"),
        ({"minLength": 1}, "", "", "'' is empty"),
        ({"maxLength": 2}, "abc", "", "`abc` is longer than 2 characters"),
        ({"maxItems": 1}, [1, 2, 3], "/1", "3 entries, where at most 1 can be"),
        ({"propertyNames": {"pattern": "^a$(?!\\n)"}}, {"b/c": 1}, "/b~1c", "`b/c` is not of the right form"),
        ({"items": {"type": "integer"}}, [1, 2.0], "/1", "`2.0` is a number, where a whole number is expected"),
        ({"additionalProperties": {"type": "string"}}, {"a": None}, "/a", "`null` is nothing, where text is expected"),
        ({"type": ["string", "null"]}, True, "", "`true` is a boolean, where text is expected"),
        ({"type": "string"}, {"a": "x" * 99}, "", '`{"a": "' + "x" * 50 + "…` is a mapping, where text is expected"),
        ({"not": {}}, 1, "", ""),
    ],
)
def test_what_is_wrong_is_one_sentence(schema: dict[str, Any], document: Any, pointer: str, message: str) -> None:
    (violation,) = said(schema, document)
    assert violation.pointer == pointer
    assert message in violation.message


def test_a_misspelt_word_of_a_list_is_answered() -> None:
    assert said({"enum": ["fast", "slow"]}, "fsat")[0].hint == "did you mean `fast`?"


def test_every_violation_is_reported_once() -> None:
    both = {"allOf": [{"type": "string"}, {"type": "string"}]}
    assert len(said(both, 1)) == 1
    assert len(said({"properties": {"a": both, "b": {"minimum": 2}}}, {"a": 1, "b": 1})) == 2


def test_our_own_documents_are_checked_with_their_name() -> None:
    check({"base": None}, "template", "the file")
    with pytest.raises(PayloadError) as caught:
        check({"config": {"jobs": 1}}, "template", "the file")
    assert caught.value.message.startswith("the file is not a valid `template`: `1` is a number")
    assert caught.value.where == "/config/jobs"
    assert violations({}, "template") == []


def test_an_unknown_schema_lists_the_known_ones() -> None:
    for name in ("templates", "../pyproject", ""):
        with pytest.raises(NotFoundError) as caught:
            load_schema(name)
        assert "`template`" in (caught.value.hint or "")


def test_schemas_refer_to_each_other_by_file_name() -> None:
    schema = {"properties": {"file": {"$ref": "template.schema.json"}}}
    (violation,) = said(schema, {"file": {"bsae": 1}})
    assert violation == Violation("/file/bsae", "unknown key `bsae`", "did you mean `base`?")
