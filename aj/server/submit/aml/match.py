"""Which virtual cluster, tier and instance types a Singularity job takes: pure, from rows as the service sends them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest

from aj.shared.errors import CapacityError
from aj.shared.jsonio import Json
from aj.shared.opts.sing import TIERS
from aj.shared.sku import Sku

TYPES_AT_MOST = 4
"""Instance types that one job may name."""
SHOWN = 20
"""Clusters whose reasons an error lists."""

_ID = re.compile(r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/.+", re.IGNORECASE)
_MEMORY = re.compile(r"(\d+)\s?GB\b", re.IGNORECASE)
_ACCELERATOR = re.compile(r"\b[A-Z]{1,3}\d{1,4}[A-Z]?\b")
_AMD = re.compile(r"\bAMD\b|\bMI\d{2,3}[A-Z]?\b|Radeon", re.IGNORECASE)
_LINKS = {"NvLink": re.compile(r"nv-?link", re.IGNORECASE), "xGMI": re.compile(r"xgmi", re.IGNORECASE)}
_INFINIBAND = re.compile(r"\bIB\b|infiniband", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance type. What its row does not say is None or empty, and fits no SKU that asks for it."""

    name: str
    """With its prefix, `Singularity.`."""
    series: str
    """Lower case."""
    gpus: int
    cores: int
    memory_gib: int
    accelerators: frozenset[str]
    """Upper case; words of its description, such as `A100`."""
    vendor: str | None
    gpu_memory_gb: int | None
    links: frozenset[str]
    infiniband: bool


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit in GPUs (or cores) and what is used of it."""

    limit: int
    used: int

    @property
    def free(self) -> int:
        return self.limit - self.used


@dataclass(frozen=True, slots=True)
class Cluster:
    """A virtual cluster in one of its regions. Quotas by lower-case series."""

    id: str
    name: str
    subscription: str
    group: str
    region: str
    user: Mapping[str, Quota]
    tiers: Mapping[str, Mapping[str, Quota]]

    @property
    def place(self) -> tuple[str, str]:
        """Subscription and region: where its instance types are listed."""
        return self.subscription, self.region


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job wants."""

    sku: Sku
    nodes: int
    tier: str
    cluster: str | None = None
    subscription: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run it."""

    cluster: Cluster
    tier: str
    machines: tuple[Machine, ...]
    """At most four, of one rank: any of them will do."""
    need: int
    """GPUs (or cores) of the whole job."""
    free: int
    """What the user and the tier have left of it, before this job."""
    remarks: tuple[str, ...] = ()
    """What was wished for and is not so."""

    def __str__(self) -> str:
        types = ", ".join(machine.name.removeprefix("Singularity.") for machine in self.machines)
        return f"`{self.cluster.name}` ({self.cluster.region}) {self.tier}, {self.need} of {self.free} free, {types}"


def parse_machines(rows: Iterable[Mapping[str, Json]]) -> tuple[Machine, ...]:
    """The instance types of a region; rows without a name are left out."""
    return tuple(_machine(row) for row in rows if row.get("name"))


def _machine(row: Mapping[str, Json]) -> Machine:
    said, gpus = str(row.get("description") or ""), _number(row.get("numberOfGPUs"))
    accelerators = frozenset(_ACCELERATOR.findall(said)) if gpus else frozenset()
    memory = _MEMORY.search(said) if gpus else None
    known = accelerators or re.search("nvidia", said, re.IGNORECASE)
    name = str(row["name"])
    return Machine(
        name=name if name.startswith("Singularity.") else f"Singularity.{name}",
        series=str(row.get("instanceTypeSeriesId") or "").lower(),
        gpus=gpus,
        cores=_number(row.get("numberOfCores")),
        memory_gib=_number(row.get("memoryGiB")),
        accelerators=accelerators,
        vendor=("AMD" if _AMD.search(said) else "NVIDIA" if known else None) if gpus else None,
        gpu_memory_gb=int(memory[1]) if memory else None,
        links=frozenset(link for link, pattern in _LINKS.items() if pattern.search(said)),
        infiniband=_INFINIBAND.search(said) is not None,
    )


def parse_clusters(rows: Iterable[Mapping[str, Json]]) -> tuple[Cluster, ...]:
    """Each cluster once for each of its regions: a region's quota says nothing of another's machines.

    Rows without the id of a resource are left out.
    """
    return tuple(_cluster(row, region) for row in rows if _ID.match(str(row.get("id"))) for region in _regions(row))


def _managed(row: Mapping[str, Json]) -> Mapping[str, Json]:
    return (row.get("properties") or {}).get("managed") or {}


def _regions(row: Mapping[str, Json]) -> list[str]:
    written = _managed(row).get("locations") or [row.get("location") or ""]
    return list(dict.fromkeys(str(region).lower().replace(" ", "") for region in written))


def _cluster(row: Mapping[str, Json], region: str) -> Cluster:
    managed = _managed(row)
    words = str(row["id"]).split("/")
    by_region = {key.lower().replace(" ", ""): value for key, value in (managed.get("quotas") or {}).items()}
    overall = (managed.get("defaultGroupPolicyOverallQuotas") or {}).get("limits") or ()
    limits = (by_region.get(region) or {}).get("limits") or ()
    tiers = {tier: _quotas(limit for limit in limits if _tier(limit) == tier) for tier in TIERS}
    return Cluster(
        id=str(row["id"]),
        name=str(row.get("name") or words[-1]),
        subscription=str(row.get("subscriptionId") or words[2]),
        group=str(row.get("resourceGroup") or words[4]),
        region=region,
        user=_quotas(limit for limit in overall if not limit.get("slaTier")),
        tiers=tiers,
    )


def _tier(limit: Mapping[str, Json]) -> str:
    return str(limit.get("slaTier") or "").capitalize()


def _quotas(limits: Iterable[Mapping[str, Json]]) -> dict[str, Quota]:
    """A row without a number is no quota."""
    known = (limit for limit in limits if limit.get("limit") is not None)
    return {
        str(limit.get("id") or limit.get("name")).lower(): Quota(_number(limit["limit"]), _number(limit.get("used")))
        for limit in known
    }


def _number(value: Json) -> int:
    """What is no number counts as none."""
    try:
        return int(value or 0)
    except (ValueError, TypeError, OverflowError):
        return 0


def choose(
    wish: Wish, clusters: Sequence[Cluster], machines: Mapping[tuple[str, str], Sequence[Machine]]
) -> list[Choice]:
    """Every cluster that can take the job, the best first; `CapacityError` with the reason of each when none can.

    `machines` are the instance types by subscription and region.
    """
    market = _market(wish.sku, machines)
    choices: list[Choice] = []
    reasons: list[str] = []
    for cluster in clusters:
        if not meant(wish, cluster):
            continue
        offer = _offer(wish, cluster, market)
        if isinstance(offer, Choice):
            choices.append(offer)
        else:
            reasons.append(f"`{cluster.name}` ({cluster.group}, {cluster.region or 'no region'}): {offer}")
    if not choices:
        raise _nothing(wish, reasons)
    return sorted(choices, key=lambda choice: _rank(wish, choice))


def _market(sku: Sku, offered: Mapping[tuple[str, str], Sequence[Machine]]) -> Callable[[Cluster], list[Machine] | str]:
    """The machines of a cluster's region that fit, or why there are none.

    They are found once for each region and, for sizes of CPUs, each set of series.
    """

    @cache
    def fitting(place: tuple[str, str]) -> list[Machine] | str:
        return _fit(sku, offered.get(place, ()))

    @cache
    def of_size(place: tuple[str, str], series: frozenset[str]) -> list[Machine] | str:
        found = fitting(place)
        return found if isinstance(found, str) else _of_size(sku, [one for one in found if one.series in series])

    if sku.family == "G":
        return lambda cluster: fitting(cluster.place)
    return lambda cluster: of_size(cluster.place, frozenset(cluster.user))


def _fit(sku: Sku, machines: Sequence[Machine]) -> list[Machine] | str:
    """The machines that are what the SKU says, or the first thing that none of them is."""
    wanted = {word.upper() for word in sku.accelerators}
    cpu = sku.family == "C"
    filters: tuple[tuple[object, str, Callable[[Machine], bool]], ...] = (
        (True, "its region offers no instance types", lambda one: True),
        (True, "no machines without GPUs" if cpu else "no GPUs", lambda one: (one.gpus == 0) == cpu),
        (sku.series, f"no series `{sku.series}`", lambda one: one.series == str(sku.series).lower()),
        (not cpu, f"no machine with {sku.count} GPUs", lambda one: one.gpus == sku.count),
        (wanted, f"no accelerator {' or '.join(sorted(wanted))}", lambda one: bool(one.accelerators & wanted)),
        (sku.vendors, f"no GPUs of {' or '.join(sku.vendors)}", lambda one: one.vendor in sku.vendors),
        (sku.memory_gb and not cpu, f"no GPUs with {sku.memory_gb} GB", lambda one: one.gpu_memory_gb == sku.memory_gb),
        (sku.infiniband, "no InfiniBand", lambda one: one.infiniband),
    )
    left = list(machines)
    for applies, reason, fits in filters:
        left = [one for one in left if fits(one)] if applies else left
        if not left:
            return reason
    return left


def _of_size(sku: Sku, machines: Sequence[Machine]) -> list[Machine] | str:
    """`Cn` is the n-th size: sizes are numbers of cores, the smallest first. Its memory is that of a machine."""
    sizes = sorted({machine.cores for machine in machines})
    if not sizes:
        return "no quota of yours for machines without GPUs"
    if sku.count > len(sizes):
        return f"no size {sku.count} of machines without GPUs, the sizes are {', '.join(map(str, sizes))} cores"
    fitting = [machine for machine in machines if machine.cores == sizes[sku.count - 1]]
    right = [machine for machine in fitting if sku.memory_gb in (None, machine.memory_gib)]
    return right or f"no machine with {sizes[sku.count - 1]} cores and {sku.memory_gb} GB"


def meant(wish: Wish, cluster: Cluster) -> bool:
    """Whether the wish's names are the cluster's; upper and lower case are the same."""
    wanted = ((wish.cluster, cluster.name), (wish.subscription, cluster.subscription), (wish.group, cluster.group))
    return all(name is None or name.lower() == is_.lower() for name, is_ in wanted)


def _offer(wish: Wish, cluster: Cluster, market: Callable[[Cluster], list[Machine] | str]) -> Choice | str:
    """The cluster's best tier and machines, or why it cannot take the job."""
    if wish.sku.regions and cluster.region not in wish.sku.regions:
        return f"not in {' or '.join(wish.sku.regions)}"
    fitting = market(cluster)
    if isinstance(fitting, str):
        return fitting
    machines = [machine for machine in fitting if machine.series in cluster.user]
    if not machines:
        return f"no quota of yours for {_series(fitting)}"
    need = wish.nodes * (machines[0].gpus or machines[0].cores)  # equal for all that fit
    allowed = [machine for machine in machines if cluster.user[machine.series].free >= need]
    if not allowed:
        free = max(cluster.user[machine.series].free for machine in machines)
        return f"your quota has {max(free, 0)} left, the job needs {need}"
    left = []
    for tier in TIERS[TIERS.index(wish.tier) :]:
        quotas = cluster.tiers[tier]
        known = [machine for machine in allowed if machine.series in quotas]
        able = [machine for machine in known if quotas[machine.series].free >= need]
        if able:
            return _best(wish, cluster, tier, able, need)
        left.append(f"{tier} {max((quotas[machine.series].free for machine in known), default=0)}")
    return f"the tiers have {', '.join(left)} left, the job needs {need}"


def _best(wish: Wish, cluster: Cluster, tier: str, machines: Sequence[Machine], need: int) -> Choice:
    """The best machines, and those that are as good but for what is left of them."""
    user, quotas = cluster.user, cluster.tiers[tier]
    free = {name: min(user[name].free, quotas[name].free) for name in {machine.series for machine in machines}}
    merits = [_merit(wish, machine) for machine in machines]
    best = min(merits)
    like = [machine for machine, merit in zip(machines, merits, strict=True) if merit == best]
    chosen = nsmallest(TYPES_AT_MOST, like, key=lambda machine: (-free[machine.series], machine.name))
    remarks = [f"{wish.tier} has no room for it: {tier} is taken"] if tier != wish.tier else []
    if best[1]:
        remarks.append(f"it has no {' or '.join(wish.sku.links)}")
    return Choice(cluster, tier, tuple(chosen), need, free[chosen[0].series], tuple(remarks))


def _merit(wish: Wish, machine: Machine) -> tuple[bool, bool]:
    """Smaller is better: not of the preferred vendor, none of the wished links."""
    sku = wish.sku
    any_vendor = sku.family == "G" and not sku.accelerators and not sku.vendors
    return any_vendor and machine.vendor != "NVIDIA", bool(sku.links) and machine.links.isdisjoint(sku.links)


def _rank(wish: Wish, choice: Choice) -> tuple[object, ...]:
    """Tier, merit, what is left, and then names, so that equal facts give an equal choice."""
    cluster = choice.cluster
    names = (cluster.name.lower(), cluster.subscription.lower(), cluster.group.lower(), cluster.region)
    return TIERS.index(choice.tier), *_merit(wish, choice.machines[0]), -choice.free, *names


def _series(machines: Iterable[Machine]) -> str:
    return " or ".join(f"`{series}`" for series in sorted({machine.series for machine in machines}))


def _nothing(wish: Wish, reasons: Sequence[str]) -> CapacityError:
    if not reasons:
        named = f"no virtual cluster `{wish.cluster}`" if wish.cluster else "no virtual cluster"
        return CapacityError(f"{named} that you can see", hint="`aj quota list --sing` shows those that you can see")
    lower = TIERS[TIERS.index(wish.tier) :]
    what = f"{wish.nodes} × `{wish.sku}` in {' or '.join(lower)}"
    more = [f"and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else []
    text = "\n".join([f"no virtual cluster can take {what}", *(f"  {line}" for line in (*reasons[:SHOWN], *more))])
    return CapacityError(
        text, where="jobs[0].sku", hint="`aj quota list --sing` shows what is free, `aj sku list` what there is"
    )
