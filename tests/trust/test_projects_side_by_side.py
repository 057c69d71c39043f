"""Two clients, ten projects, one daemon, any order: each job once, each project's queue in its own order."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from aj.shared.errors import NotFoundError
from tests.trust.world import PATIENCE_SECONDS, TrustWorld

Make = Callable[..., TrustWorld]


def test_D11_two_clients_ten_projects_one_daemon_random_order(trust: Make) -> None:
    world = trust()
    world.client()
    pid, chance = world.pid(), random.Random(11)
    projects = [world.new_project(f"p{number}") for number in range(10)]
    calls = [(project, turn) for project in projects for turn in range(4)]
    chance.shuffle(calls)
    answers: list[tuple[int | None, str]] = []

    def one_client(mine: list[tuple[Path, int]]) -> None:
        for project, turn in mine:
            way = chance.choice([["--queue"], []])
            argv = ["run", "-t", "double", "-p", "1", *way, "true", str(turn)]
            code, document = world.aj(*argv, cwd=project, AJ_NAME=f"{project.name}-{turn}").wait()
            answers.append((code, document["status"]))

    threads = [threading.Thread(target=one_client, args=(calls[half::2],)) for half in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 40 and {answer[0] for answer in answers} == {0}, answers
    for project in projects:
        client = world.client(project)
        entries = [client.wait(entry["id"], PATIENCE_SECONDS) for entry in client.queue()]
        assert [entry["state"] for entry in entries] == ["done"] * 4
        assert {entry["name"].partition("-")[0] for entry in entries} == {project.name}
        begun = [(entry["started_at"], entry["finished_at"]) for entry in entries]
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(sorted(begun))), begun
        assert sorted(record["id"] for record in client.records()) == sorted(entry["id"] for entry in entries)
    log = (world.remote / "log").read_text().splitlines()
    sent = [line for line in log if line.startswith("submit ")]
    assert len(sent) == len(set(sent)) == 40
    assert world.pid() == pid and world.runtime.log.read_text().count("serves") == 1


def test_jobs_logs_and_events_of_another_project_cannot_be_reached(trust: Make) -> None:
    world = trust()
    code, document = world.run("mine", "local").wait()
    assert code == 0
    ours, theirs = world.client(), world.client(world.new_project("other"))
    name, ticket, root = document["azure_name"], document["ticket"], world.root
    assert ours.job(name)["azure_name"] == name and ours.wait(ticket, PATIENCE_SECONDS)["state"] == "done"
    for ref in (name, document["id"], ticket, f"../../../project/.azure_jobs/logs/{name}", f"{root}/logs/{name}"):
        for ask in (theirs.job, theirs.job_logs, theirs.cancel_job, theirs.ticket, theirs.cancel_ticket, theirs.wait):
            with pytest.raises(NotFoundError):
                ask(ref)
    assert theirs.jobs() == theirs.queue() == theirs.records() == []
