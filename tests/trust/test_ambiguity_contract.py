"""Every registered backend when the answer to a submission is lost: one job or none, and what aj says of it is true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aj.server.submit import services
from tests.trust.world import PATIENCE_SECONDS, TrustWorld, check_files, check_truth

HERE = ("double", "local")
"""Services whose remote is a folder of this machine."""
ELSEWHERE = {
    "aml": "tests/aml/test_aml_submit.py",
    "sing": "tests/aml/test_aml_submit.py",
    "volcano": "tests/server/test_volcano_submit.py",
    "amlt": "tests/client/test_cli_amlt.py",
}
"""Services whose remote needs a simulator → the tests that prove the same cases with it."""
FAULTS = [f"{fault} {when}" for fault in ("lost", "time-out", "crash") for when in ("before", "after")]
PROJECT = Path(__file__).parents[2]
Make = Callable[..., TrustWorld]


def test_every_registered_backend_is_under_this_contract() -> None:
    for service in set(services()) - set(HERE):
        proof = PROJECT / ELSEWHERE[service]
        assert "unknown" in proof.read_text(), f"nothing shows what becomes of a lost answer of {service}"


@pytest.mark.parametrize("service", HERE)
def test_U10_D09_a_lost_answer_is_looked_up_and_told_truly(trust: Make, service: str) -> None:
    """`before` and `after`: whether the remote had taken the job when the answer was lost, late or cut off by a death."""
    world = trust()
    for fault in FAULTS:
        base = fault.replace(" ", "-")
        client = world.client()
        code, document = world.run(base, service, "--env", f"FAULT={fault}").wait()
        client = world.client()
        check_truth(world, client, base, service)
        exists = fault.endswith("after")
        assert len(world.jobs(base)) == exists
        if fault.startswith("crash"):
            assert (code, document["status"]) == (4, "unknown"), document
            assert f"aj queue show {document['id']}" in document["error"]["hint"]
        else:
            assert (code, document["status"]) == ((0, "submitted") if exists else (1, "failed")), document
        if exists:
            (entry,) = (entry for entry in client.queue() if entry["name"].startswith(base))
            assert "adopted" in entry["result"]["note"]
    world.client().shutdown()
    check_files(world)


@pytest.mark.parametrize("service", HERE)
def test_U10_where_looking_fails_too_the_outcome_is_unknown_and_nothing_is_sent_again(
    trust: Make, service: str
) -> None:
    world = trust()
    for fault in FAULTS:
        base = "blind-" + fault.replace(" ", "-")
        world.client()
        code, document = world.run(base, service, "--env", f"FAULT={fault}", "--env", "FAULT_FIND=blind").wait()
        assert (code, document["status"]) == (4, "unknown"), document
        client = world.client()
        (entry,) = (entry for entry in client.queue() if entry["name"].startswith(base))
        entry = client.wait(entry["id"], PATIENCE_SECONDS)
        assert entry["state"] == ("failed" if fault.startswith("crash") else "unknown")
        assert entry["result"]["status"] == "unknown"
        assert entry["result"]["error"]["type"] == "OutcomeUnknownError"
        assert entry["id"] in entry["result"]["error"]["hint"]
        assert client.records()[0]["status"] == "unknown"
    world.kill_daemon()
    world.client().queue()
    for fault in FAULTS:
        assert len(world.jobs("blind-" + fault.replace(" ", "-"))) == fault.endswith("after")
    world.client().shutdown()
    check_files(world)
