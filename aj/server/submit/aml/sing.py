"""What Singularity offers to a caller, and a job's way to the virtual cluster that is chosen from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from aj.build.effects import JobReceipt, Receipt, Sealed
from aj.server.azure.arm import ML, Arm, segment
from aj.server.submit.aml.match import Choice, Machine, Wish, choose, meant, parse_clusters, parse_machines
from aj.server.submit.aml.memory import Known, Memory, folder
from aj.server.submit.aml.submit import AmlEffects
from aj.server.submit.aml.where import PARALLEL
from aj.shared.clock import now_ns
from aj.shared.errors import AjError, AzureError, LoginError
from aj.shared.jsonio import Json, digest
from aj.shared.model import Emit, Event, JobSpec
from aj.shared.opts.sing import ALIAS, SingOpts
from aj.shared.sku import parse_sku

QUOTA_SECONDS = 300
"""Quotas that are older are read again, and after every refusal."""
TYPES_API, IMAGES_API = "2021-03-01-preview", "2020-12-01-preview"
_QUERY = (
    f"resources | where type =~ '{ML.lower()}/virtualclusters'"
    " | project id, name, subscriptionId, resourceGroup, location, properties | order by id asc"
)
Place = tuple[str, str]
"""Subscription and region."""


def cluster_rows(arm: Arm, subscription: str | None = None) -> list[dict[str, Json]]:
    """Every virtual cluster that the caller can see, with its quotas."""
    return list(arm.graph(_QUERY, subscription))


def type_rows(arm: Arm, places: Iterable[Place], emit: Emit) -> dict[Place, list[dict[str, Json]]]:
    """The instance types of each place, side by side; a place in which the caller may not look has none."""

    def read(place: Place) -> list[dict[str, Json]]:
        subscription, region = place
        path = f"/subscriptions/{segment(subscription)}/providers/{ML}/locations/{segment(region)}/instanceTypeSeries"
        try:
            return list(arm.pages(path, TYPES_API))
        except LoginError:
            raise
        except AzureError as error:
            emit(Event("warning", f"the instance types of {region} cannot be read: {error.message}"))
            return []

    wanted = sorted(set(places))
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="types") as pool:
        return dict(zip(wanted, pool.map(read, wanted), strict=True))


def image_rows(arm: Arm, subscription: str) -> list[dict[str, Json]]:
    """Singularity's own images: `names` of each, usable behind `amlt-sing/`."""
    return list(arm.pages(f"/subscriptions/{segment(subscription)}/providers/Microsoft.Singularity/images", IMAGES_API))


@dataclass(slots=True)
class SingEffects(AmlEffects):
    """As for Azure ML, but for a compute that is chosen among the virtual clusters."""

    def facts(self, spec: JobSpec, emit: Emit) -> Json:
        """Of the workspace and of what is free now, read side by side; the choice is among them, and told."""
        with ThreadPoolExecutor(1, thread_name_prefix="market") as pool:
            read = partial(self._read_market, spec, emit)
            market = pool.submit(self._market(spec).fresh, QUOTA_SECONDS, "the virtual clusters", read, emit)
            facts = AmlEffects.facts(self, spec, emit)
            offered = market.result().facts
        wish = _wish(spec)
        machines = {(sub, region): parse_machines(rows) for sub, region, rows in offered["types"]}
        choices = choose(wish, parse_clusters(offered["clusters"]), machines)
        _tell(choices, emit)
        _check_image(_opts(spec), offered["images"], emit)
        return {**facts, **_chosen(choices[0])}

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        """As for Azure ML; what was free is forgotten when it is refused."""
        try:
            receipt = AmlEffects.submit(self, sealed, receipts, emit)
        except AjError:
            self._market(sealed.spec).forget()
            raise
        properties = sealed.payload["properties"]
        tier = properties["resources"]["properties"]["AISuperComputer"]["slaTier"]
        return replace(receipt, note=f"{tier} in `{properties['computeId'].rpartition('/')[2]}`")

    def _read_market(self, spec: JobSpec, emit: Emit) -> Known:
        opts, wish, read_ns = _opts(spec), _wish(spec), now_ns()
        rows = cluster_rows(self._arm, opts.subscription_id)
        clusters = [cluster for cluster in parse_clusters(rows) if meant(wish, cluster)]
        types = type_rows(self._arm, [cluster.place for cluster in clusters], emit)
        images = image_rows(self._arm, clusters[0].subscription) if opts.image_version and clusters else []
        ids = {cluster.id for cluster in clusters}
        offered: dict[str, Json] = {
            "clusters": [row for row in rows if row["id"] in ids],
            "types": [[*place, found] for place, found in types.items()],
            "images": [name for row in images for name in row.get("names") or ()],
        }
        return Known(offered, read_ns, {})

    def _market(self, spec: JobSpec) -> Memory:
        opts = _opts(spec)
        wanted = [opts.cluster, opts.subscription_id, opts.resource_group, bool(opts.image_version), self._who()]
        return Memory(folder(self.home) / "market" / f"{digest([wanted, dict(self._arm.cloud)])[:24]}.json")


def sku_of(machine: Machine) -> str:
    """The SKU that means this machine and no other of its region, as far as SKUs can tell."""
    if not machine.gpus:
        return f"C… ({machine.cores} cores)"
    kinds = sorted(word for word in machine.accelerators)
    link = "-NvLink" if "NvLink" in machine.links else "-xGMI" if machine.links else ""
    words = "".join(f"-{kind}" for kind in kinds) + ("-IB" if machine.infiniband else "") + link
    return f"{machine.gpu_memory_gb or ''}G{machine.gpus}{words}"


def _opts(spec: JobSpec) -> SingOpts:
    assert isinstance(spec.backend_spec, SingOpts)
    return spec.backend_spec


def _wish(spec: JobSpec) -> Wish:
    opts, sku = _opts(spec), parse_sku(spec.sku or "", "jobs[0].sku")
    return Wish(sku, spec.shape.nodes, opts.tier, opts.cluster, opts.subscription_id, opts.resource_group)


def _chosen(choice: Choice) -> dict[str, Json]:
    cluster = choice.cluster
    return {
        "cluster": {"id": cluster.id, "name": cluster.name, "region": cluster.region},
        "tier": choice.tier,
        "machines": [machine.name for machine in choice.machines],
    }


def _tell(choices: Sequence[Choice], emit: Emit) -> None:
    """The choice with the one that would have been next; a tier that was lowered is a warning."""
    emit(Event("note", f"virtual cluster: {choices[0]}"))
    for remark in choices[0].remarks:
        emit(Event("warning", f"`{choices[0].cluster.name}`: {remark}"))
    emit(Event("note", f"next best: {choices[1]}" if len(choices) > 1 else "no other virtual cluster can take it"))


def _check_image(opts: SingOpts, names: Sequence[str], emit: Emit) -> None:
    if opts.image_version and names and opts.image_version not in names:
        emit(Event("warning", f"Singularity lists no image `{ALIAS}{opts.image_version}`; `aj image list` shows them"))
