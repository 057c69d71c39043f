"""`aj ws`, `exp`, `quota`, `sku`, `image` and `auth`: what the caller can see in Azure, and the project's workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from aj.client.call import Call
from aj.client.commands import Group, UsageError
from aj.client.console import Answer
from aj.client.show import show_fields, show_rows
from aj.shared.config import change_config
from aj.shared.errors import NotFoundError

_WORKSPACES = ("name", "resource_group", "subscription_id", "location", "configured")
_CLUSTERS = ("cluster", "region", "series", "free", "premium", "standard", "basic")
_CLUSTER_DETAILS = ("resource_group", "subscription_id", "limit", "used")
_SKUS = ("name", "sku", "series", "gpus", "cores", "memory_gib", "regions")
_COMPUTES = ("name", "size", "priority", "nodes", "max_nodes", "state")


@click.group(cls=Group)
def ws() -> None:
    """List Azure ML workspaces, and choose the one of this project."""


@ws.command("list")
@click.pass_obj
def list_workspaces(call: Call) -> Answer:
    """List the workspaces that you can see."""
    return _rows(
        "workspaces", call.connect().azure("workspaces"), "workspaces", _WORKSPACES, "you can see no workspace"
    )


@ws.command("set")
@click.argument("name", required=False)
@click.option("-g", "--resource-group", metavar="NAME", help="Where several are called alike.")
@click.option("-s", "--subscription", metavar="ID", help="Where several are called alike.")
@click.option("--unset", is_flag=True, help="Forget it: every template names its own.")
@click.pass_obj
def set_workspace(
    call: Call, name: str | None, resource_group: str | None, subscription: str | None, unset: bool
) -> Answer:
    """Use a workspace for every template that names none."""
    if (name is None) != unset:
        raise UsageError("give either NAME or `--unset`", where="aj ws set", hint="`aj ws list` shows their names")
    chosen = _chosen(call, {"name": name, "resource_group": resource_group, "subscription_id": subscription})
    config = change_config(call.home, {"workspace": chosen})
    document = {"kind": "config", "home": str(call.home.root), "config": config}
    said = f"templates use workspace `{name}` unless they name another" if name else "no workspace is set"
    return Answer(document, lambda out: out.say(said))


@ws.command()
@click.pass_obj
def show(call: Call) -> Answer:
    """Show the configured workspace as Azure knows it."""
    found = call.connect().azure("workspace")
    return Answer({"kind": "workspaces", "workspaces": [found]}, lambda out: show_fields(out, found))


@click.group(cls=Group)
def exp() -> None:
    """See the experiments of the configured workspace."""


@exp.command("list")
@click.pass_obj
def list_experiments(call: Call) -> Answer:
    """List the experiments of the latest 1,000 jobs."""
    found = call.connect().azure("experiments")
    return _rows("experiments", found, "experiments", ("name", "jobs", "last_job_at"), "no jobs yet")


@click.group(cls=Group)
def quota() -> None:
    """See what there is to run on."""


@quota.command("list")
@click.option("--aml", is_flag=True, help="The computes of the configured Azure ML workspace; the default.")
@click.option("--sing", is_flag=True, help="Your quotas in the virtual clusters of Singularity.")
@click.option("--all", "everything", is_flag=True, help="With --sing: those too in which you have no quota.")
@click.option("--full", is_flag=True, help="With --sing: subscription, resource group, limit and use too.")
@click.pass_obj
def list_quota(call: Call, aml: bool, sing: bool, everything: bool, full: bool) -> Answer:
    """List computes with their machines and how many there can be, or the quotas of virtual clusters.

    Quotas count GPUs, or cores of machines without GPUs: what is free to you, and what each tier has left.
    """
    if sing and aml:
        raise UsageError("`--aml` and `--sing` exclude each other", where="aj quota list", hint="leave one of them out")
    if not sing:
        if everything or full:
            raise UsageError("`--all` and `--full` belong to `--sing`", where="aj quota list", hint="add `--sing`")
        return _rows("quota", call.connect().azure("quota"), "computes", _COMPUTES, "the workspace has no computes")
    found = call.connect().azure("clusters")
    rows = [row for row in found["clusters"] if everything or row["limit"] > 0]
    columns = (*_CLUSTERS[:2], *_CLUSTER_DETAILS, *_CLUSTERS[2:]) if full else _CLUSTERS
    return _rows("quota", {"clusters": rows}, "clusters", columns, "you have no quota in any virtual cluster")


@click.group(cls=Group)
def sku() -> None:
    """See the machines of Singularity."""


@sku.command("list")
@click.pass_obj
def list_skus(call: Call) -> Answer:
    """List the instance types of the regions of your virtual clusters, each with a SKU that means it."""
    return _rows("skus", call.connect().azure("skus"), "skus", _SKUS, "no virtual cluster that you can see has any")


@click.group(cls=Group)
def image() -> None:
    """See the images of Singularity."""


@image.command("list")
@click.pass_obj
def list_images(call: Call) -> Answer:
    """List the images that `environment.image` may name without a registry."""
    return _rows("images", call.connect().azure("images"), "images", ("image", "aliases"), "there are none")


@click.group(cls=Group)
def auth() -> None:
    """See whom Azure takes you for."""


@auth.command()
@click.pass_obj
def status(call: Call) -> Answer:
    """Ask for a token, and show whose it is."""
    found = call.connect().azure("login")
    return Answer({"kind": "auth_status", **found}, lambda out: show_fields(out, found))


def _rows(kind: str, found: Mapping[str, Any], key: str, columns: Sequence[str], empty: str) -> Answer:
    return Answer({"kind": kind, **found}, lambda out: show_rows(out, found[key], columns, empty))


def _chosen(call: Call, wanted: Mapping[str, str | None]) -> dict[str, str] | None:
    if wanted["name"] is None:
        return None
    known = call.connect().azure("workspaces")["workspaces"]
    found = [row for row in known if all(row[key].lower() == value.lower() for key, value in wanted.items() if value)]
    if len(found) != 1:
        places = [
            f"`{row['name']}` in `{row['resource_group']}` of `{row['subscription_id']}`" for row in found or known
        ]
        message = f"{len(found) or 'no'} workspace{'s are' if found else ' is'} called `{wanted['name']}`"
        way = "say which by `-g` and `-s`: " if found else "there are " if known else "you can see none"
        raise NotFoundError(message, where="aj ws set", hint=way + ", ".join(places))
    row = found[0]
    names = {"subscription_id": "subscription_id", "resource_group": "resource_group", "workspace_name": "name"}
    return {key: row[source] for key, source in names.items()}
