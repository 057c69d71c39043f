"""The simulator breaks what it is told to break, as often as it is told, and counts what went over the wire."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.azure.arm.traffic import sequential
from tests.azure.cloud import Azure, Place


@pytest.fixture
def place(azure: Azure) -> Place:
    """A workspace with a cluster and an environment; jobs wait."""
    made = azure.workspace("ws1")
    azure.compute(made, "gpu")
    azure.environment(made)
    azure.settings(hold=True)
    return made


def body(place: Place) -> dict[str, Any]:
    """A job."""
    return {
        "properties": {
            "jobType": "Command",
            "command": "true",
            "environmentId": f"{place.id}/environments/env/versions/1",
            "computeId": f"{place.id}/computes/gpu",
        }
    }


@pytest.mark.parametrize(("kind", "made"), [("lose_before", []), ("lose_after", ["j1"])])
def test_a_lost_answer_breaks_the_connection_before_or_after_the_write(
    azure: Azure, place: Place, kind: str, made: list[str]
) -> None:
    azure.fault(kind, "PUT Jobs_CreateOrUpdate")
    with pytest.raises(httpx.TransportError):
        azure.request("PUT", f"{place.id}/jobs/j1", body(place))
    assert azure.control("job_ids") == made
    assert azure.request("PUT", f"{place.id}/jobs/j1", body(place)).status_code == (200 if made else 201)


def test_throttling_ends_after_as_many_requests_as_ordered(azure: Azure, place: Place) -> None:
    azure.fault("throttle", "GET Compute_", times=2, retry_after=7)
    path = f"{place.id}/computes/gpu"
    for _ in range(2):
        answer = azure.request("GET", path)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert answer.json()["error"]["code"] == "TooManyRequests"
    assert azure.request("GET", path).status_code == 200
    assert azure.refusals() == []
    assert azure.control("faults_waiting") == []


def test_refusals_come_with_the_status_and_code_ordered_after_some_passed(azure: Azure, place: Place) -> None:
    azure.fault("refuse", r"PUT Jobs_CreateOrUpdate .*/j", status=503, code="ServiceUnavailable", skip=1)
    assert azure.request("PUT", f"{place.id}/jobs/j1", body(place)).status_code == 201
    answer = azure.request("PUT", f"{place.id}/jobs/j2", body(place))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ServiceUnavailable")
    assert azure.control("job_ids") == ["j1"]


def test_a_fault_that_is_misspelt_is_no_fault(azure: Azure) -> None:
    for wrong in ({"kind": "explode"}, {"kind": "slow", "second": 1}, {"kind": "slow", "match": "("}):
        with pytest.raises(ValueError):
            azure.control("fault", **{"match": "x", **wrong})
    with pytest.raises(ValueError):
        azure.settings(latency=1)


def test_a_barrier_lets_two_requests_meet(azure: Azure, place: Place) -> None:
    azure.fault("barrier", "GET Workspaces_Get", times=2, parties=2)
    with azure.window() as seen, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: azure.request("GET", place.id).raise_for_status(), range(2)))
    assert seen.sequential == 1
    assert len(seen.requests) == 2


def test_round_trips_that_wait_for_each_other_are_told_from_those_side_by_side(azure: Azure, place: Place) -> None:
    azure.settings(latency_ms=100)
    store = azure.blobs()
    with azure.window() as seen:
        with ThreadPoolExecutor(3) as pool:
            paths = [place.id, f"{place.id}/computes/gpu", f"{place.id}/datastores/workspaceblobstore"]
            list(pool.map(lambda path: azure.request("GET", path).raise_for_status(), paths))
        azure.request("PUT", f"{place.id}/jobs/j1", body(place)).raise_for_status()
    assert seen.sequential == 2
    assert sorted(seen.lines()) == [
        "GET Compute_Get 200",
        "GET Datastores_Get 200",
        "GET Workspaces_Get 200",
        "PUT Jobs_CreateOrUpdate 201",
    ]
    assert seen.seconds >= 0.2
    assert store is azure.blobs()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=8))
def test_the_longest_chain_is_found(rows: list[tuple[int, int]]) -> None:
    spans = [(float(start), float(start + length)) for start, length in rows]

    def longest(after: float) -> int:
        return max((1 + longest(end) for start, end in spans if start >= after), default=0)

    assert sequential(spans) == longest(-1.0)


def test_a_slow_request_holds_up_only_itself(azure: Azure, place: Place) -> None:
    azure.fault("slow", "GET Compute_List", seconds=1.5)
    order: list[str] = []

    def ask(name: str, path: str) -> None:
        azure.request("GET", path).raise_for_status()
        order.append(name)

    slow = threading.Thread(target=ask, args=("slow", f"{place.id}/computes"))
    slow.start()
    while not azure.control("traffic")["requests"]:
        pass
    while not any(one["operation"] == "Compute_List" for one in azure.control("traffic")["requests"]):
        pass
    ask("quick", place.id)
    slow.join()
    assert order == ["quick", "slow"]
