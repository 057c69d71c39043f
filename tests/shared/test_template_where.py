"""Where a template says that something stands, whatever is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Identity
from aj.shared.paths import Home
from aj.shared.template.template import Template, load_template


def home_with(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> Home:
    monkeypatch.chdir(folder)
    home = Home(folder / ".azure_jobs")
    for name, text in files.items():
        path = home.root / name.replace("__", "/")
        path = path.with_name(path.name + ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return home


def test_a_template_without_provenance_names_its_file(tmp_path: Path) -> None:
    bare = Template("t", tmp_path / "t.yaml", {}, {}, (), ())
    assert bare.where("jobs", 0, "sku") == str(tmp_path / "t.yaml")


def test_items_that_come_twice_are_named_as_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = home_with(
        tmp_path,
        monkeypatch,
        template__t="base: [set.a, set.b]\nconfig: {target: {service: local}}\n",
        set__a="base: set.tags\nconfig: {}\n",
        set__b="base: set.tags\nconfig: {}\n",
        set__tags="config:\n  jobs:\n  - tags: [x]\n",
    )
    (notice,) = load_template(home, "t").notices
    assert "`jobs[0].tags` holds items twice" in notice.message


def test_a_name_that_a_local_job_does_not_take_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "base:\nconfig:\n  target: {service: local, gpus_per_node: 1}\n  jobs:\n  - name: mine\n    instance_count: 1\n"
    )
    home = home_with(tmp_path, monkeypatch, template__t=text)
    built = build_spec(load_template(home, "t"), Invocation(("true",), tmp_path), Identity.symbolic("t"))
    (warning,) = built.warnings
    assert warning.message.startswith("`jobs[0].name` has no effect: ")
    assert warning.where == ".azure_jobs/template/t.yaml:5:5"
