"""How long the choice of a virtual cluster takes once the facts are there."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from aj.server.submit.aml.match import Wish, choose, parse_clusters, parse_machines
from aj.shared.sku import parse_sku

CLUSTERS, TYPES, REGIONS, ROUNDS = 200, 300, 12, 15
TARGET_MS = 50
TIERS = ("Premium", "Standard", "Basic")


def run() -> list[str]:
    """A line for each kind of wish: milliseconds of the match alone, and with the reading of all rows."""
    chance = random.Random(1)
    clusters = [_cluster(number, chance) for number in range(CLUSTERS)]
    types = {f"region{region}": [_type(number, chance) for number in range(TYPES)] for region in range(REGIONS)}
    lines = []
    for sku in ("G8", "4x80G8-A100-IB-NvLink", "C3"):
        wish = Wish(parse_sku(sku, "sku"), 4, "Premium")
        rows = parse_clusters(clusters)
        machines = {("s", region): parse_machines(found) for region, found in types.items()}
        match = _median_ms(lambda wish=wish, rows=rows, machines=machines: choose(wish, rows, machines))
        whole = _median_ms(
            lambda wish=wish: choose(
                wish,
                parse_clusters(clusters),
                {("s", region): parse_machines(found) for region, found in types.items()},
            )
        )
        lines.append(
            f"match `{sku}` over {CLUSTERS} clusters × {TYPES} types of {REGIONS} regions: {match:.1f} ms"
            f" (target ≤ {TARGET_MS}); with all rows parsed: {whole:.1f} ms"
        )
    return lines


def _median_ms(work: Any) -> float:
    took = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1000


def _type(number: int, chance: random.Random) -> dict[str, Any]:
    gpus = chance.choice([0, 1, 4, 8, 8])
    accelerator = chance.choice(["NVIDIA A100 80GB", "NVIDIA H100 80GB", "AMD MI300X 192GB", "NVIDIA V100 32GB"])
    said = f"Accelerator: {accelerator} GPU x {gpus}, NVLink, IB" if gpus else "64 cores, 256 GiB"
    cores = chance.choice([4, 8, 16, 32, 96])
    size = {"numberOfGPUs": gpus, "numberOfCores": cores, "memoryGiB": 4 * cores}
    return {"name": f"T{number}", "instanceTypeSeriesId": f"S{number % 60}", "description": said, **size}


def _cluster(number: int, chance: random.Random) -> dict[str, Any]:
    region = f"region{number % REGIONS}"
    series = [f"S{chance.randrange(60)}" for _ in range(12)]
    user = [{"id": one, "limit": 640, "used": chance.randrange(640)} for one in series]
    tiers = [{**limit, "slaTier": tier, "used": chance.randrange(640)} for limit in user for tier in TIERS]
    quotas = {"defaultGroupPolicyOverallQuotas": {"limits": user}, "quotas": {region: {"limits": tiers}}}
    place = f"/subscriptions/s/resourceGroups/g{number % 9}/providers/x/virtualclusters/vc{number}"
    return {"id": place, "name": f"vc{number}", "properties": {"managed": {"locations": [region], **quotas}}}
