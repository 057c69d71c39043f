"""The double answers what a real API server was recorded to answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cluster.double import Double, serving

REPLAYED = (
    "create_201",
    "create_generateName_201",
    "get_404",
    "ssar_allowed",
    "pod_create_201",
    "delete_404",
    "pod_get_404",
)


@pytest.fixture
def double(tmp_path: Path) -> Iterator[Double]:
    with serving(tmp_path) as made:
        yield made


def ask(double: Double, request: Any) -> tuple[int, Any]:
    body = json.dumps(request["body"]).encode() if request["body"] is not None else None
    asked = urllib.request.Request(double.url + request["path"], body, method=request["method"])
    try:
        with urllib.request.urlopen(asked) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def same(ours: Any, theirs: Any) -> None:
    """What kubectl reads of an answer: its kind, why it failed, whom it is about."""
    for key in ("kind", "apiVersion", "status", "reason", "code"):
        if not isinstance(theirs.get(key), dict):
            assert ours.get(key) == theirs.get(key), key
    own, recorded = ours.get("metadata") or {}, theirs.get("metadata") or {}
    for key in ("name", "namespace", "generateName", "labels"):
        if key == "name" and "generateName" in recorded:
            assert own["name"].startswith(recorded["generateName"]) and len(own["name"]) == len(recorded["name"])
        else:
            assert own.get(key) == recorded.get(key), key
    assert set(own) >= {key for key in ("uid", "creationTimestamp") if recorded.get(key)}


@pytest.mark.parametrize("name", REPLAYED)
def test_an_answer_is_as_it_was_recorded(double: Double, contracts: Path, name: str) -> None:
    recorded = json.loads((contracts / "kube-recorded" / f"{name}.json").read_text())
    status, body = ask(double, recorded["request"])
    assert status == recorded["status"]
    same(body, recorded["body"])


def test_a_second_object_of_a_name_is_refused(double: Double, contracts: Path) -> None:
    recorded = json.loads((contracts / "kube-recorded" / "create_409_exists.json").read_text())
    ask(double, recorded["request"])
    status, body = ask(double, recorded["request"])
    assert status == recorded["status"] == 409
    same(body, recorded["body"])


def test_a_deletion_is_a_success(double: Double, contracts: Path) -> None:
    recorded = json.loads((contracts / "kube-recorded" / "delete_200.json").read_text())
    ask(double, json.loads((contracts / "kube-recorded" / "create_201.json").read_text())["request"])
    status, body = ask(double, recorded["request"])
    assert status == recorded["status"] == 200
    same(body, recorded["body"])


def test_discovery_names_every_resource_that_the_recorded_one_has_of_ours(double: Double, contracts: Path) -> None:
    recorded = json.loads((contracts / "kube-recorded" / "disc_group.json").read_text())
    _, body = ask(double, {**recorded["request"], "body": None})
    theirs = {item["name"]: item for item in recorded["body"]["resources"]}
    for item in body["resources"]:
        assert all(theirs[item["name"]][key] == item[key] for key in ("kind", "namespaced"))
    assert urlsplit(recorded["request"]["path"]).path.startswith("/apis/")
