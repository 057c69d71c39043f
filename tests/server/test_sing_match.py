"""Which virtual cluster a job takes: a table of wishes over rows as the service sends them, one rule a row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from aj.server.submit.aml.match import Choice, Wish, choose, parse_clusters, parse_machines
from aj.shared.errors import CapacityError
from aj.shared.sku import parse_sku

SUB, OTHER = "sub-1", "sub-2"


def type_row(name: str, series: str, gpus: int, cores: int, memory: int, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "instanceTypeSeriesId": series,
        "numberOfGPUs": gpus,
        "numberOfCores": cores,
        "memoryGiB": memory,
        "description": description,
    }


TYPES = [
    type_row("A100x8", "NDA", 8, 96, 1900, "Accelerator: NVIDIA A100 80GB GPU x 8, NVLink, IB"),
    type_row("A100x8pcie", "NCA", 8, 96, 1900, "Accelerator: NVIDIA A100 80GB GPU x 8"),
    type_row("A100x4", "NDA", 4, 48, 900, "Accelerator: NVIDIA A100 80GB GPU x 4, NVLink"),
    type_row("A100s", "NDS", 8, 96, 900, "Accelerator: NVIDIA A100 40GB GPU x 8, NVLink, IB"),
    type_row("H100x8", "NDH", 8, 96, 1900, "Accelerator: NVIDIA H100 80GB GPU x 8, NVLink, IB"),
    type_row("MI300x8", "NDM", 8, 96, 1850, "Accelerator: AMD MI300X 192GB GPU x 8, xGMI, IB"),
    type_row("V100x1", "NCV", 1, 6, 112, "Accelerator: NVIDIA V100 16GB GPU x 1"),
    type_row("Mystery", "NDX", 8, 96, 900, ""),
    type_row("D2", "D", 0, 2, 8, "2 cores, 8 GiB"),
    type_row("D4", "D", 0, 4, 16, "4 cores, 16 GiB"),
    type_row("D16", "D", 0, 16, 64, "16 cores, 64 GiB"),
    type_row("E4", "E", 0, 4, 32, "4 cores, 32 GiB"),
    type_row("F8", "F", 0, 8, 16, "8 cores, 16 GiB"),
]
"""`name` is short here; the service's prefix is put before it."""


@dataclass(frozen=True)
class VC:
    """A cluster in the table: user limits and tier limits as `series: (limit, used)`."""

    name: str
    user: dict[str, Any]
    tiers: dict[str, dict[str, Any]]
    region: str = "westus2"
    sub: str = SUB
    group: str = "g"

    def row(self) -> dict[str, Any]:
        def rows(limits: dict[str, Any], **more: str) -> list[dict[str, Any]]:
            pairs = {series: each if isinstance(each, tuple) else (each, 0) for series, each in limits.items()}
            return [
                {"id": series, "name": series, "limit": limit, "used": used, **more}
                for series, (limit, used) in pairs.items()
            ]

        return {
            "id": f"/subscriptions/{self.sub}/resourceGroups/{self.group}/providers/x/virtualclusters/{self.name}",
            "name": self.name,
            "subscriptionId": self.sub,
            "resourceGroup": self.group,
            "properties": {
                "managed": {
                    "locations": [self.region],
                    "defaultGroupPolicyOverallQuotas": {"limits": rows(self.user)},
                    "quotas": {
                        self.region: {
                            "limits": [row for tier, limits in self.tiers.items() for row in rows(limits, slaTier=tier)]
                        }
                    },
                }
            },
        }


def vc(name: str, series: str = "NDA", user: Any = 64, region: str = "westus2", sub: str = SUB, **tiers: Any) -> VC:
    """One series in one cluster; without tiers, 64 in Premium."""
    return VC(
        name, {series: user}, {tier: {series: limit} for tier, limit in (tiers or {"Premium": 64}).items()}, region, sub
    )


def both(name: str, *series: str, limit: Any = 64, tier: str = "Premium") -> VC:
    """Several series with equal limits."""
    return VC(name, dict.fromkeys(series, limit), {tier: dict.fromkeys(series, limit)})


def decide(sku: str, clusters: Sequence[VC], tier: str = "Premium", nodes: int = 1, **wish: Any) -> list[Choice]:
    rows = parse_clusters([cluster.row() for cluster in clusters])
    machines = {(sub, region): parse_machines(TYPES) for sub in (SUB, OTHER) for region in ("westus2", "eastus")}
    return choose(Wish(parse_sku(sku, "sku"), nodes, tier, **wish), rows, machines)


GPU = [vc("one"), vc("two", "NDH"), vc("three", "NDM")]

FITS: list[tuple[str, str, list[VC], dict[str, Any], str]] = [
    # what it shows, SKU, clusters, wish → the choice: name, tier, types
    ("one cluster", "G8", [vc("one")], {}, "one Premium A100x8"),
    ("GPU count is exact", "G4", [vc("one")], {}, "one Premium A100x4"),
    ("one GPU", "G1", [vc("v", "NCV")], {}, "v Premium V100x1"),
    ("accelerator", "G8-H100", GPU, {}, "two Premium H100x8"),
    ("accelerator in lower case", "G8-h100", GPU, {}, "two Premium H100x8"),
    ("any of several accelerators", "G8-V100-MI300X", GPU, {}, "three Premium MI300x8"),
    ("memory of a GPU", "192G8", GPU, {}, "three Premium MI300x8"),
    ("memory tells equal accelerators apart", "40G8-A100", [vc("one"), vc("s", "NDS")], {}, "s Premium A100s"),
    ("the other memory", "80G8-A100", [vc("one"), vc("s", "NDS")], {}, "one Premium A100x8"),
    ("vendor AMD", "G8-AMD", GPU, {}, "three Premium MI300x8"),
    ("vendor NVIDIA", "G8-NVIDIA", [vc("three", "NDM"), vc("two", "NDH")], {}, "two Premium H100x8"),
    ("either vendor takes the larger rest", "G8-NVIDIA-AMD", [vc("n", user=16), vc("m", "NDM", 32)], {}, "m Premium MI300x8"),
    ("NVIDIA is preferred where none is named", "G8", [vc("m", "NDM", 64), vc("n", user=8)], {}, "n Premium A100x8"),
    ("an unknown vendor is not NVIDIA", "G8", [both("x", "NDX"), vc("n", user=8)], {}, "n Premium A100x8"),
    ("an unknown machine fits what asks for nothing", "G8", [both("x", "NDX")], {}, "x Premium Mystery"),
    ("a better tier beats the vendor", "G8", [vc("m", "NDM"), vc("n", Standard=64)], {}, "m Premium MI300x8"),
    ("InfiniBand", "G8-A100-IB", [both("b", "NCA", "NDA")], {}, "b Premium A100x8"),
    ("series", "NCA:G8", [both("b", "NCA", "NDA")], {}, "b Premium A100x8pcie"),
    ("series in another case", "nca:G8-A100", [both("b", "NCA", "NDA")], {}, "b Premium A100x8pcie"),
    ("NVLink is preferred", "G8-A100-NvLink", [vc("a", "NCA"), vc("z", "NDA", 8)], {}, "z Premium A100x8"),
    ("NVLink is soft", "G8-A100-NvLink", [vc("a", "NCA")], {}, "a Premium A100x8pcie"),
    ("NVLink before what is left, tier before NVLink", "G8-NvLink", [vc("a", "NCA"), vc("z", Standard=64)], {}, "a Premium A100x8pcie"),
    ("xGMI", "G8-AMD-xGMI", GPU, {}, "three Premium MI300x8"),
    ("either link", "G8-MI300X-NvLink-xGMI", GPU, {}, "three Premium MI300x8"),
    ("without a wish NVLink is no rank", "G8-A100", [vc("a", "NCA"), vc("z", "NDA", 8)], {}, "a Premium A100x8pcie"),
    ("region", "G8@eastus", [vc("w"), vc("e", region="eastus")], {}, "e Premium A100x8"),
    ("any of several regions", "G8@westus2,eastus", [vc("e", region="eastus")], {}, "e Premium A100x8"),
    ("a region as people write it", "G8@eastus", [vc("e", region="East US")], {}, "e Premium A100x8"),
    ("what is left ranks", "G8", [vc("a", user=16), vc("b", user=32)], {}, "b Premium A100x8"),
    ("the tier's rest counts too", "G8", [vc("a", Premium=16), vc("b", Premium=32)], {}, "b Premium A100x8"),
    ("used is subtracted", "G8", [vc("a", user=(64, 40)), vc("b", user=(64, 30))], {}, "b Premium A100x8"),
    ("the name decides between equals", "G8", [vc("b"), vc("a")], {}, "a Premium A100x8"),
    ("then the subscription", "G8", [vc("a", sub=OTHER), vc("a")], {}, "a Premium A100x8"),
    ("exactly enough", "G8", [vc("one", user=16, Premium=16)], {"nodes": 2}, "one Premium A100x8"),
    ("nodes multiply", "G8", [vc("one", user=8), vc("two", user=32)], {"nodes": 4}, "two Premium A100x8"),
    ("Standard", "G8", [vc("one", Standard=8)], {"tier": "Standard"}, "one Standard A100x8"),
    ("a lower tier where the wished one is full", "G8", [vc("one", Premium=(64, 60), Standard=64)], {}, "one Standard A100x8"),
    ("down to Basic", "G8", [vc("one", Premium=0, Standard=4, Basic=8)], {}, "one Basic A100x8"),
    ("a tier that is not there is full", "G8", [vc("one", Basic=8)], {}, "one Basic A100x8"),
    ("never a higher tier", "G8", [vc("one", Premium=64, Basic=8)], {"tier": "Basic"}, "one Basic A100x8"),
    ("the better tier beats what is left", "G8", [vc("a", Premium=8), vc("b", Standard=640)], {}, "a Premium A100x8"),
    ("tiers in another case", "G8", [vc("one", premium=8)], {}, "one Premium A100x8"),
    ("several types of one rank", "G8", [both("b", "NDA", "NDH")], {}, "b Premium A100x8,H100x8"),
    ("an AMD type is no alternative", "G8", [both("b", "NDA", "NDM")], {}, "b Premium A100x8"),
    ("at most four types", "G8", [both("b", "NDA", "NCA", "NDS", "NDH", "NDX")], {}, "b Premium A100s,A100x8,A100x8pcie,H100x8"),
    ("only types with quota", "G8-A100", [vc("one", "NDS")], {}, "one Premium A100s"),
    ("C1 is the smallest", "C1", [both("c", "D")], {}, "c Premium D2"),
    ("C2 is the next", "C2", [both("c", "D")], {}, "c Premium D4"),
    ("C3 of one series", "C3", [both("c", "D")], {}, "c Premium D16"),
    ("sizes of all series with quota", "C3", [both("c", "D", "E", "F")], {}, "c Premium F8"),
    ("equal sizes are alternatives", "C2", [both("c", "D", "E")], {}, "c Premium D4,E4"),
    ("memory of a CPU machine", "32C2", [both("c", "D", "E")], {}, "c Premium E4"),
    ("cores are counted", "C2", [both("c", "D", limit=8)], {"nodes": 2}, "c Premium D4"),
    ("CPU jobs ask for no vendor", "C1", [both("c", "F"), both("d", "F", limit=65)], {}, "d Premium F8"),
    ("explicit cluster", "G8", [vc("a", user=640), vc("b")], {"cluster": "b"}, "b Premium A100x8"),
    ("explicit cluster in another case", "G8", [vc("a"), vc("b")], {"cluster": "B"}, "b Premium A100x8"),
    ("explicit cluster, lower tier", "G8", [vc("a"), vc("b", Basic=8)], {"cluster": "b"}, "b Basic A100x8"),
    ("subscription", "G8", [vc("a"), vc("b", sub=OTHER)], {"subscription": OTHER}, "b Premium A100x8"),
    ("resource group", "G8", [vc("a"), VC("b", {"NDA": 8}, {"Premium": {"NDA": 8}}, group="h")], {"group": "H"}, "b Premium A100x8"),
    ("nodes in the SKU", "2xG8", [vc("one")], {"nodes": 2}, "one Premium A100x8"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sku", "clusters", "wish", "expected"), [row[1:] for row in FITS], ids=[row[0] for row in FITS]
)
def test_the_choice(sku: str, clusters: list[VC], wish: dict[str, Any], expected: str) -> None:
    for order in (clusters, clusters[::-1]):
        choice = decide(sku, order, **wish)[0]
        types = ",".join(machine.name.removeprefix("Singularity.") for machine in choice.machines)
        assert f"{choice.cluster.name} {choice.tier} {types}" == expected


REFUSED: list[tuple[str, str, list[VC], dict[str, Any], str]] = [
    # what it shows, SKU, clusters, wish → the reason
    ("no such GPU count", "G3", [vc("one")], {}, "no machine with 3 GPUs"),
    ("no such accelerator", "G8-B200", [vc("one")], {}, "no accelerator B200"),
    ("no such memory", "24G8", [vc("one")], {}, "no GPUs with 24 GB"),
    ("no such series", "NDZ:G8", [vc("one")], {}, "no series `NDZ`"),
    ("no such vendor", "G1-AMD", [vc("v", "NCV")], {}, "no GPUs of AMD"),
    ("InfiniBand is hard", "NCA:G8-IB", [vc("a", "NCA")], {}, "no InfiniBand"),
    ("another region", "G8@eastus", [vc("one")], {}, "not in eastus"),
    ("a region without types", "G8", [vc("one", region="moon")], {}, "its region offers no instance types"),
    ("no quota for the series", "G8-H100", [vc("one")], {}, "no quota of yours for `ndh`"),
    ("the user's quota is used up", "G8", [vc("one", user=(64, 60))], {}, "your quota has 4 left, the job needs 8"),
    ("more used than the limit", "G8", [vc("one", user=(8, 12))], {}, "your quota has 0 left"),
    ("the tiers are used up", "G8", [vc("one", Premium=4, Standard=(8, 8))], {}, "Premium 4, Standard 0, Basic 0 left"),
    ("only the tiers from the wished one down", "G8", [vc("one", Premium=64)], {"tier": "Standard"}, "Standard 0, Basic 0 left"),
    ("too many nodes", "G8", [vc("one", user=15)], {"nodes": 2}, "your quota has 15 left, the job needs 16"),
    ("no limit is no quota", "G8", [vc("one", user=(None, 0))], {}, "no quota of yours"),
    ("an unknown machine is no A100", "G8-A100", [both("x", "NDX")], {}, "no quota of yours"),
    ("no size so large", "C4", [both("c", "D")], {}, "no size 4 of machines without GPUs, the sizes are 2, 4, 16 cores"),
    ("no CPU quota", "C1", [vc("one")], {}, "no quota of yours for machines without GPUs"),
    ("no such memory of a CPU machine", "64C1", [both("c", "D")], {}, "no machine with 2 cores and 64 GB"),
    ("too many cores", "C3", [both("c", "D", limit=31)], {"nodes": 2}, "has 31 left, the job needs 32"),
    ("no such cluster", "G8", [vc("one")], {"cluster": "two"}, "no virtual cluster `two` that you can see"),
    ("the explicit cluster's own reason", "G8", [vc("a"), vc("b", user=4)], {"cluster": "b"}, "`b` (g, westus2): your quota has 4"),
    ("no cluster at all", "G8", [], {}, "no virtual cluster that you can see"),
    ("another subscription", "G8", [vc("one")], {"subscription": OTHER}, "no virtual cluster that you can see"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sku", "clusters", "wish", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_the_reason(sku: str, clusters: list[VC], wish: dict[str, Any], reason: str) -> None:
    with pytest.raises(CapacityError) as caught:
        decide(sku, clusters, **wish)
    assert reason in caught.value.message
    assert caught.value.hint


def test_the_error_has_the_reason_of_each_cluster() -> None:
    with pytest.raises(CapacityError) as caught:
        decide("G8-H100", [vc("one"), vc("two", "NDH", user=(8, 8)), vc("three", "NDH", Premium=0)])
    lines = caught.value.message.splitlines()
    assert lines[0] == "no virtual cluster can take 1 × `G8-H100` in Premium or Standard or Basic"
    assert lines[1:] == [
        "  `one` (g, westus2): no quota of yours for `ndh`",
        "  `two` (g, westus2): your quota has 0 left, the job needs 8",
        "  `three` (g, westus2): the tiers have Premium 0, Standard 0, Basic 0 left, the job needs 8",
    ]


def test_many_reasons_are_cut() -> None:
    with pytest.raises(CapacityError, match="and 30 more"):
        decide("G8-H100", [vc(f"vc-{number}") for number in range(50)])


def test_a_lower_tier_and_a_missing_link_are_remarks() -> None:
    choice = decide("G8-A100-NvLink", [vc("a", "NCA", Standard=64)])[0]
    assert choice.remarks == ("Premium has no room for it: Standard is taken", "it has no NvLink")
    assert decide("G8-A100", [vc("one")])[0].remarks == ()
    assert (choice.need, choice.free) == (8, 64)
    assert str(choice) == "`a` (westus2) Standard, 8 of 64 free, A100x8pcie"


def test_the_runner_up_follows() -> None:
    names = [choice.cluster.name for choice in decide("G8", [vc("b", user=16), vc("c", Standard=8), vc("a", user=32)])]
    assert names == ["a", "b", "c"]


def test_regions_are_not_added_up() -> None:
    """8 in each of two regions are no 16 for machines of one region."""
    row = vc("one").row()
    managed = row["properties"]["managed"]
    limit = {"id": "NDA", "limit": 8, "used": 0, "slaTier": "Premium"}
    managed |= {
        "locations": ["westus2", "eastus"],
        "quotas": {"westus2": {"limits": [limit]}, "eastus": {"limits": [limit]}},
    }
    clusters = parse_clusters([row])
    assert [cluster.region for cluster in clusters] == ["westus2", "eastus"]
    machines = {(SUB, region): parse_machines(TYPES) for region in ("westus2", "eastus")}
    wish = Wish(parse_sku("G8", "sku"), 2, "Premium")
    with pytest.raises(CapacityError, match="Premium 8, Standard 0, Basic 0 left, the job needs 16"):
        choose(wish, clusters, machines)
    assert choose(Wish(wish.sku, 1, "Premium"), clusters, machines)[0].cluster.region == "eastus"


def test_rows_with_nothing_in_them_are_read() -> None:
    bare = {"id": "/subscriptions/s/resourceGroups/g/providers/x/virtualclusters/bare"}
    (cluster,) = parse_clusters([bare])
    assert (cluster.name, cluster.subscription, cluster.group, cluster.user) == ("bare", "s", "g", {})
    assert parse_clusters([{}, {"id": None}, {"id": "/subscriptions/s"}]) == ()
    odd: dict[str, Any] = {"id": "NDA", "limit": "many", "used": [], "slaTier": None}
    (cluster,) = parse_clusters(
        [{**bare, "properties": {"managed": {"defaultGroupPolicyOverallQuotas": {"limits": [odd]}}}}]
    )
    assert cluster.user["nda"].free == 0
    assert parse_machines([{"name": "x", "numberOfGPUs": "8", "memoryGiB": float("inf")}])[0].gpus == 8
    empty = {"properties": {"managed": {"locations": None, "quotas": None, "defaultGroupPolicyOverallQuotas": None}}}
    assert parse_clusters([{**bare, **empty}])[0].region == ""
    assert (
        parse_machines([{}, {"name": "x"}, {"name": "Singularity.y", "description": None}])[1].name == "Singularity.y"
    )


def test_the_order_of_the_rows_does_not_matter() -> None:
    chance = random.Random(7)
    clusters = [
        vc(
            f"vc-{number % 40}",
            chance.choice(["NDA", "NDH", "NDM"]),
            (64, chance.randrange(64)),
            sub=chance.choice([SUB, OTHER]),
        )
        for number in range(80)
    ]
    first = [str(choice) + choice.cluster.id for choice in decide("G8", clusters)]
    for _ in range(5):
        chance.shuffle(clusters)
        again = [str(choice) + choice.cluster.id for choice in decide("G8", clusters)]
        assert again[0] == first[0] and sorted(again) == sorted(first)
