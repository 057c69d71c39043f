"""Which workspace is meant: by name, by configuration, or as the only visible one that has the compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from aj.server.azure.arm import ML, Arm, segment, workspace_id
from aj.shared.config import checked_config
from aj.shared.errors import AzureError, ConflictError, LoginError, NotFoundError
from aj.shared.jsonio import Json
from aj.shared.paths import Home

PARALLEL = 32
Look = Callable[[str], "Future[dict[str, Json] | None]"]
"""Asks for a resource, once; the answer comes later."""
SHOWN = 12
"""Candidates that an error lists."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which workspace a job means, and the compute that it must have; None where the template leaves it open."""

    subscription_id: str | None
    resource_group: str | None
    workspace: str | None
    compute: str | None


def find_workspace(home: Home, opts: Place, arm: Arm) -> str:
    """The ARM id of the workspace: the template's, the configured one, or the only visible one that has the compute."""
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="find") as pool:
        look: Look = cache(lambda path: pool.submit(arm.look, path))
        return the_one(candidates(home, opts, arm), opts, arm, look)


def candidates(home: Home, opts: Place, arm: Arm) -> list[str]:
    """ARM ids of the workspaces that may be meant; nothing is asked where the names suffice."""
    configured = configured_workspace(home)
    if opts.workspace and opts.subscription_id and opts.resource_group:
        return [workspace_id(opts.subscription_id, opts.resource_group, opts.workspace)]
    wanted = {
        "subscriptions": opts.subscription_id,
        "resourceGroups": opts.resource_group,
        "workspaces": opts.workspace,
    }

    def fits(workspace: str) -> bool:
        return all(_part(workspace, kind) == name.lower() for kind, name in wanted.items() if name)

    if configured and fits(configured):
        return [configured]
    return [row for row in (str(row["id"]) for row in workspaces(arm, opts.subscription_id)) if fits(row)]


def the_one(rows: list[str], opts: Place, arm: Arm, look: Look) -> str:
    """The one that has the compute; errors list the candidates."""
    if opts.compute and not opts.workspace and len(rows) > 1:
        asked = [(row, look(path)) for row in rows for path in machine_paths(row, opts)]
        rows = [row for row, compute in asked if _visible(compute)]
        if not rows:
            message = f"no workspace that you can see has a compute `{opts.compute}`"
            raise NotFoundError(message, hint=seen(arm))
    if len(rows) > 1:
        name = f"the workspace `{opts.workspace}`" if opts.workspace else f"the compute `{opts.compute}`"
        what = f"{name} exists" if opts.workspace or opts.compute else "no workspace is named, and one exists"
        hint = "set `target.workspace_name` (and `resource_group`, `subscription_id`), or choose one by `aj ws set`"
        raise ConflictError(f"{what} more than once: {_listed(rows)}", hint=hint)
    if not rows:
        named = f"no workspace `{opts.workspace}`" if opts.workspace else "no workspace"
        raise NotFoundError(f"{named} that you can see", hint=seen(arm))
    return rows[0]


def workspaces(arm: Arm, subscription: str | None = None) -> list[dict[str, Json]]:
    """Every workspace that the caller can see, by name."""
    query = (
        f"resources | where type =~ '{ML}/workspaces' | project id, name, resourceGroup, subscriptionId, location, kind"
        " | order by name asc"
    )
    return [row for row in arm.graph(query, subscription) if str(row.get("kind") or "Default").lower() != "hub"]


def configured_workspace(home: Home) -> str | None:
    """The ARM id of the project's workspace."""
    place = checked_config(home).get("workspace")
    return workspace_id(place["subscription_id"], place["resource_group"], place["workspace_name"]) if place else None


def machine_paths(workspace: str, opts: Place) -> list[str]:
    """The compute that must be there, as the list of its one path, or of none."""
    return [f"{workspace}/computes/{segment(opts.compute)}"] if opts.compute else []


def seen(arm: Arm) -> str:
    """For a hint: what the caller can see."""
    rows = [str(row["id"]) for row in workspaces(arm)]
    return f"you can see {_listed(rows)}" if rows else "you can see none; `az account list` shows your subscriptions"


def _listed(rows: Sequence[str]) -> str:
    shown = [f"`{last_of(row)}` (resource group `{_part(row, 'resourceGroups')}`)" for row in rows[:SHOWN]]
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return ", ".join(shown) + more


def _visible(answer: Future[dict[str, Json] | None]) -> Mapping[str, Json] | None:
    """A workspace in which we may not look is none of ours."""
    try:
        return answer.result()
    except LoginError:
        raise
    except AzureError:
        return None


def _part(resource: str, kind: str) -> str:
    """The name behind `/<kind>/` of an ARM id, lower-case, as ARM compares them."""
    words = resource.lower().split("/")
    return words[words.index(kind.lower()) + 1] if kind.lower() in words else ""


def last_of(path: str) -> str:
    """The resource's own name."""
    return path.rstrip("/").rpartition("/")[2]
