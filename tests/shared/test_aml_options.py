"""What an Azure ML template may say, and where each refusal points."""

from __future__ import annotations

from pathlib import Path

import pytest

from aj.shared.errors import TemplateError
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Identity, JobSpec
from aj.shared.opts.aml import AmlOpts, image_reference, normalize_job_name
from aj.shared.paths import Home
from aj.shared.template.template import load_template

TOO_MANY = ", ".join(f"'k{number}:v'" for number in range(51))


def spec(
    folder: Path, target: str = "name: c", environment: str = "image: ubuntu", job: str = "", rest: str = ""
) -> JobSpec:
    home = Home(folder / ".azure_jobs")
    home.templates.mkdir(parents=True, exist_ok=True)
    text = f"base:\nconfig:\n  target: {{{target}}}\n  environment: {{{environment}}}\n  jobs:\n  - {{{job}}}\n{rest}"
    (home.templates / "t.yaml").write_text(text)
    call = Invocation(("echo",), folder, nodes=1, processes=1)
    return build_spec(load_template(home, "t"), call, Identity("0123abcd", "x", "2026-01-31T08:00:00+00:00")).spec


@pytest.mark.parametrize(
    ("where", "words", "given"),
    [
        ("t.yaml:3:", "`target.name` is missing", {"target": "service: aml"}),
        ("t.yaml:4:", "`environment.image` is missing", {"environment": ""}),
        ("t.yaml:4:", "is not an image's name", {"environment": "image: 'Not An Image'"}),
        ("t.yaml:4:", "`nvcr` is not a registry", {"environment": "image: a/b, registry: nvcr"}),
        ("t.yaml:6:", "more than 42 tags", {"job": f"tags: [{TOO_MANY}]"}),
        ("t.yaml:6:", "given twice", {"job": "tags: ['a:1', 'a:2']"}),
        ("t.yaml:6:", "one of aj's own", {"job": "tags: ['aj_id:1']"}),
        ("t.yaml:6:", "is too long", {"job": f"tags: ['{'k' * 101}:v']"}),
        ("t.yaml:6:", "is too long", {"job": f"tags: ['k:{'v' * 1001}']"}),
        ("t.yaml:6:", "has no key", {"job": "tags: [':v']"}),
        ("t.yaml:6:", "`64` is not a size", {"job": "submit_args: {container_args: {shm_size: 64}}"}),
        ("t.yaml:6:", "not a flag", {"job": "submit_args: {container_args: {'Bad Flag': x}}"}),
        ("t.yaml:7:", "longer than 5,000", {"rest": f"  description: {'d' * 5001}\n"}),
    ],
)
def test_a_refusal_points_at_its_line(tmp_path: Path, where: str, words: str, given: dict[str, str]) -> None:
    with pytest.raises(TemplateError) as caught:
        spec(tmp_path, **given)
    assert words in caught.value.message
    assert where in (caught.value.where or "") and caught.value.exit_code == 2


def test_options_are_what_the_template_says(tmp_path: Path) -> None:
    args = "submit_args: {container_args: {shm_size: 2GiB, capabilities: [SYS_PTRACE], ulimit: 'a b', user: 1000}}"
    found = spec(tmp_path, "name: c, workspace_name: w", job=f"identity: User, mpi: true, tags: [x, 'a:b:c'], {args}")
    docker = "--cap-add=SYS_PTRACE '--ulimit=a b' --user=1000"
    tags = (("x", ""), ("a", "b:c"))
    assert found.backend_spec == AmlOpts("c", None, None, "w", "user", True, tags, "2g", docker)


@pytest.mark.parametrize(
    ("image", "registry", "reference"),
    [
        ("ubuntu:24.04", None, "docker.io/ubuntu:24.04"),
        ("team/x@sha256:" + "0" * 64, "a.azurecr.io", "a.azurecr.io/team/x@sha256:" + "0" * 64),
        ("nvcr.io/nvidia/pytorch:24.10", None, "nvcr.io/nvidia/pytorch:24.10"),
        ("nvcr.io/nvidia/pytorch:24.10", "nvcr.io", "nvcr.io/nvidia/pytorch:24.10"),
        ("localhost:5000/x", None, "localhost:5000/x"),
    ],
)
def test_an_image_has_a_registry(image: str, registry: str | None, reference: str) -> None:
    assert image_reference(image, registry) == reference


def test_a_name_that_is_too_long_keeps_its_id() -> None:
    name = normalize_job_name("n" * 400 + "_0123abcd")
    assert len(name) == 255 and name.endswith("_0123abcd")
