"""What a template for Singularity may say: options, their defaults, and every refusal at its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aj.shared.errors import InputError
from aj.shared.job.build import Built, Invocation, build_spec
from aj.shared.model import Identity
from aj.shared.opts.sing import SingOpts
from aj.shared.paths import Home
from aj.shared.template.template import load_template

IDENTITY = Identity("0123abcd", "vision", "2026-01-31T08:00:00+00:00")
UAI = "/subscriptions/s/resourcegroups/g/providers/microsoft.managedidentity/userAssignedIdentities/me"


def build(folder: Path, job: str = "", target: str = "", image: str = "pytorch/pytorch:2.5.1", **shape: Any) -> Built:
    """Lines of the job and of the target go in; the SKU is on line 5."""
    home = Home(folder / ".azure_jobs")
    home.templates.mkdir(parents=True, exist_ok=True)
    text = f"""\
base:
config:
  environment: {{image: {image}}}
  jobs:
  - sku: {shape.pop("sku", "G8")}
    instance_count: 1
{job}  target:
    service: sing
    gpus_per_node: 8
{target}"""
    (home.templates / "t.yaml").write_text(text)
    return build_spec(load_template(home, "t"), Invocation(("true",), folder, **shape), IDENTITY)


def opts(built: Built) -> SingOpts:
    assert isinstance(built.spec.backend_spec, SingOpts)
    return built.spec.backend_spec


def test_the_defaults(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert opts(built) == SingOpts(
        cluster=None, subscription_id=None, resource_group=None, workspace=None, workspace_subscription_id=None,
        workspace_resource_group=None, tier="Premium", priority="High", image_version=None, identity=None,
        group_policy=None, azml_int=False, mpi=False, tags=(), shm_size=None,
    )  # fmt: skip
    assert built.warnings == ()


def test_everything_at_once(tmp_path: Path) -> None:
    job = (
        "    sla_tier: STANDARD\n    priority: low\n    mpi: true\n    azml_int: true\n    tags: ['a:b', c]\n"
        f"    submit_args: {{container_args: {{shm_size: 64G}}, env: {{_AZUREML_SINGULARITY_JOB_UAI: {UAI}}}}}\n"
    )
    target = (
        "    name: vc\n    subscription_id: s\n    resource_group: g\n    workspace_name: w\n"
        "    workspace_subscription_id: ws\n    workspace_resource_group: wg\n    group_policy_name: p\n"
    )
    built = build(tmp_path, job, target, image="amlt-sing/pytorch-1.12.1")
    assert opts(built) == SingOpts(
        cluster="vc", subscription_id="s", resource_group="g", workspace="w", workspace_subscription_id="ws",
        workspace_resource_group="wg", tier="Standard", priority="Low", image_version="pytorch-1.12.1", identity=UAI,
        group_policy="p", azml_int=True, mpi=True, tags=(("a", "b"), ("c", "")), shm_size="64g",
    )  # fmt: skip
    assert built.warnings == ()


def test_preemptible_is_the_Basic_tier(tmp_path: Path) -> None:
    assert opts(build(tmp_path, "    preemptible: true\n    sla_tier: Premium\n")).tier == "Basic"
    assert opts(build(tmp_path, "    preemptible: false\n    sla_tier: Standard\n")).tier == "Standard"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sku": "80G4"}, "asks for 4 GPUs per node, but `-p` or `target.gpus_per_node` says 8"),
        ({"sku": "2xG8"}, "asks for 2 nodes, but the job has 1"),
        ({"sku": "G8 -IB"}, "is not a SKU"),
        ({"sku": "null"}, "`jobs[0].sku` is missing"),
        ({"image": "amlt-sing/"}, "names no image"),
        ({"image": "amlt-sing/a b"}, "names no image"),
        ({"image": "null"}, "`environment.image` is missing"),
        (
            {"job": "    submit_args: {env: {_AZUREML_SINGULARITY_JOB_UAI: trainer}}\n"},
            "is not the ARM id of an identity",
        ),
        ({"job": "    submit_args: {container_args: {shm_size: big}}\n"}, "`big` is not a size"),
        ({"job": "    sla_tier: Gold\n"}, "`Premium`, `Standard` or `Basic`"),
    ],
)
def test_refusals_name_the_line(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(tmp_path, **how)
    assert message in f"{caught.value.message} {caught.value.hint}"
    assert ".azure_jobs/template/t.yaml:" in str(caught.value.where)


def test_what_has_no_effect_is_told(tmp_path: Path) -> None:
    job = "    identity: user\n    submit_args: {container_args: {ipc: host, shm_size: 1g}}\n"
    said = [notice.message for notice in build(tmp_path, job, "    queue: q\n    memory: 64Gi\n").warnings]
    assert len(said) == 4
    assert all("has no effect" in message for message in said)
    assert not any("no effect" in notice.message for notice in build(tmp_path, job, via="amlt").warnings)


def test_a_CPU_size_is_what_p_gives(tmp_path: Path) -> None:
    assert build(tmp_path, sku='"{nodes}xC{processes}"', processes=3, nodes=2).spec.sku == "2xC3"
