"""`aj render`, `aj snapshot`, `aj code`: what review and CI see, without daemon and network."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Here = Callable[..., Any]
OPEN = "base: null\nconfig:\n  target:\n    service: local\n"


def test_render_is_the_same_at_every_call_and_hides_secrets(here: Here, project: Any) -> None:
    project.template()
    words = ("render", "-t", "local", "--env", "TOKEN=hunter2222", "python", "train.py")
    first = here(*words)
    assert first.code == 0
    assert first.out == here(*words).out
    assert "hunter2222" not in first.out + first.err
    assert "TOKEN" in first.err
    assert "00000000" in first.out
    json.loads(first.out)
    document = here("--json", *words).document()
    assert (document["kind"], document["backend"]) == ("payload", "local")
    assert document["payload"] == json.loads(first.out)


def test_render_takes_the_real_base_name(here: Here, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.template()
    monkeypatch.setenv("AJ_NAME", "pretrain")
    assert "pretrain_00000000" in here("render", "-t", "local", "true").out


def test_render_amlt(here: Here, project: Any) -> None:
    project.template()
    ran = here("render", "-t", "local", "--format", "amlt", "--env", "TOKEN=hunter2222", "true")
    assert ran.code == 0
    assert "name: code_00000000" in ran.out
    assert "hunter2222" not in ran.out
    assert here("--json", "render", "-t", "local", "--format", "amlt", "true").document()["kind"] == "amlt_document"


def test_render_and_snapshot_start_no_daemon(here: Here, project: Any) -> None:
    project.template()
    here("render", "-t", "local", "true")
    here("snapshot", "update")
    assert not (project.folder.parent / "run").exists()
    assert not (project.home / "build").exists()


def test_snapshots_are_written_compared_and_removed(here: Here, project: Any) -> None:
    project.template("a")
    project.template("open", OPEN)
    missing = here("--json", "snapshot", "check")
    assert missing.code == 3
    assert {result["state"] for result in missing.document()["results"]} == {"missing"}
    assert here("--json", "snapshot", "update").document()["written"] == ["a", "open"]
    assert here("snapshot", "check").code == 0
    kept = json.loads((project.home / "snapshots" / "open.json").read_text())
    assert kept["assumed"] == {"nodes": 1, "processes": 1}
    assert kept["backend"] == "local"

    project.template("a", OPEN + "  jobs:\n  - instance_count: 7\n")
    (project.home / "template" / "open.yaml").unlink()
    ran = here("snapshot", "check")
    assert ran.code == 3
    assert "--- a snapshot" in ran.out
    assert "`a` changed, `open` stale" in ran.err
    states = {result["name"]: result for result in here("--json", "snapshot", "check").document()["results"]}
    assert (states["a"]["state"], states["open"]["state"]) == ("changed", "stale")
    assert "7" in states["a"]["diff"]

    update = here("--json", "snapshot", "update").document()
    assert (update["written"], update["removed"]) == (["a"], ["open"])
    assert not (project.home / "snapshots" / "open.json").exists()
    assert here("--json", "snapshot", "check").document()["results"] == [{"name": "a", "state": "same", "diff": ""}]


def test_snapshots_hold_no_secret_and_nothing_of_this_machine(here: Here, project: Any) -> None:
    project.template("s", OPEN + "  jobs:\n  - submit_args:\n      env: {API_KEY: hunter2222, PLAIN: shown}\n")
    assert here("snapshot", "update").code == 0
    text = (project.home / "snapshots" / "s.json").read_text()
    assert "hunter2222" not in text
    assert "shown" in text
    assert str(project.folder) not in text


def test_an_invalid_template_fails_the_snapshots_before_any_is_written(here: Here, project: Any) -> None:
    project.template("a")
    project.template("z", "base: null\nconfig:\n  x: 1\n")
    for command in ("update", "check"):
        ran = here("snapshot", command)
        assert ran.code == 2
        assert "z.yaml:3:3" in ran.err
    assert not (project.home / "snapshots").exists()


def test_code_stats_counts_what_would_travel(here: Here, project: Any) -> None:
    project.template("t", OPEN + "  code:\n    ignore: ['*.log']\n")
    (project.folder / "train.py").write_text("x" * 1000)
    (project.folder / "debug.log").write_text("y")
    document = here("--json", "code", "stats", "-t", "t", "--list-all").document()
    assert "train.py" in document["paths"]
    assert "debug.log" not in document["paths"]
    assert document["files"] == len(document["paths"])
    assert {"path": "train.py", "size": 1000} in document["largest"]
    assert "debug.log" in here("--json", "code", "stats", "--list-all").document()["paths"]
    text = here("code", "stats").out
    assert "1.0 kB  train.py" in text


def test_code_stats_why_names_the_rule(here: Here, project: Any) -> None:
    project.template("t", OPEN)
    (project.folder / ".codeignore").write_text("# big\ndata/\n")
    (project.folder / "data").mkdir()
    (project.folder / "data" / "x.bin").write_bytes(b"x")
    (project.folder / "train.py").write_text("")
    document = here("--json", "code", "stats", "--why", "data/x.bin").document()
    assert (document["kind"], document["packed"]) == ("code_why", False)
    assert document["rule"].startswith(".codeignore:2")
    assert here("--json", "code", "stats", "--why", "train.py").document()["packed"] is True
    assert "data/x.bin stays here" in here("code", "stats", "--why", "data/x.bin").out


def test_what_looks_like_credentials_can_be_made_an_error(here: Here, project: Any) -> None:
    project.template()
    (project.folder / "deploy.pem").write_text("x")
    assert "`deploy.pem`" in here("code", "stats").err
    assert here("config", "credential-files", "error").code == 0
    ran = here("code", "stats")
    assert (ran.code, ran.out) == (2, "")
    assert "error: what looks like credentials would travel with the code: `deploy.pem`" in ran.err
    assert "`aj config credential-files warn`" in ran.err
    (project.folder / ".amltignore").write_text("*.pem\n")
    assert here("code", "stats").code == 0
    assert here("config", "credential-files").code == 2
    (project.home / "aj_config.json").write_text('{"credential_files": "maybe"}')
    (project.folder / ".amltignore").unlink()
    assert "`maybe` is not one of `warn`, `error`" in here("code", "stats").err


def test_code_stats_uses_what_the_build_has_read_and_never_writes_it(here: Here, project: Any) -> None:
    from aj.build.select import select
    from aj.build.statcache import StatCache
    from aj.shared.model import nowhere
    from aj.shared.paths import Home

    project.template()
    (project.folder / "train.py").write_text("x")
    place = project.home / "build" / "stat.cache"
    cache = StatCache(place)
    select(project.folder, Home(project.home), (), {}, cache, nowhere)
    cache.save()
    before = place.read_bytes()
    (project.folder / "more.py").write_text("y")
    assert here("--json", "code", "stats", "--list-all").document()["paths"][-2:] == ["more.py", "train.py"]
    assert place.read_bytes() == before


def test_a_snapshot_takes_the_shape_that_a_SKU_fixes(here: Here, project: Any) -> None:
    text = "base:\nconfig:\n  target: {service: sing}\n  environment: {image: a/b}\n  jobs: [{sku: 2xG8-A100}]\n"
    project.template("gpu", text)
    assert here("snapshot", "update").code == 0
    document = json.loads((project.home / "snapshots" / "gpu.json").read_text())
    assert document["assumed"] == {"nodes": 2, "processes": 8}
    wanted = document["payload"]["properties"]["resources"]["properties"]["AISuperComputer"]
    assert (wanted["instanceCount"], wanted["instanceType"]) == (2, "Singularity.symbolic")
    assert here("snapshot", "check").code == 0
