"""The round trip through the service's own models keeps what the contract knows and loses what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.azure.second_opinion import lost_keys


def test_the_full_example_loses_nothing_and_stays_as_it_is(contracts: Path) -> None:
    text = (contracts / "aml-commandjob.full-example.json").read_text()
    body = json.loads(text)
    assert lost_keys(body) == []
    assert body == json.loads(text)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/properties/bogus", 1),
        ("/properties/resources/bogus", "x"),
        ("/properties/inputs/data/path", "x"),
        ("/properties/distribution/processes", 2),
        ("/properties/limits/maxWallTime", "PT1S"),
    ],
)
def test_an_unknown_key_is_found(contracts: Path, pointer: str, value: object) -> None:
    body = json.loads((contracts / "aml-commandjob.full-example.json").read_text())
    *way, last = pointer.split("/")[1:]
    inner = body
    for part in way:
        inner = inner[part]
    inner[last] = value
    assert lost_keys(body) == [pointer]
