"""How `aj_config.json` is changed: atomically, and keys that aj does not know are never lost."""

from __future__ import annotations

from collections.abc import Mapping

from aj.shared.config import read_config
from aj.shared.jsonio import Json, canonical, write_file
from aj.shared.paths import Home


def change_config(home: Home, changes: Mapping[str, Json]) -> dict[str, Json]:
    """Write `changes` over the configuration, atomically; None removes a key. The new configuration."""
    document = {key: value for key, value in {**read_config(home), **changes}.items() if value is not None}
    write_file(home.config, canonical(document), mode=0o644)
    return document
