"""What the service's own old Python models make of a job body: a reading of the contract that is not ours."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

UNKNOWN_TO_IT = ("/properties/queueSettings", "/properties/notificationSetting")
"""Parts of the 2024-04-01 contract that are younger than these models."""


def lost_keys(body: Mapping[str, Any]) -> list[str]:
    """JSON pointers of what a round trip through the models loses or changes; empty for a body they know whole.

    Parts that are younger than the models are not counted, nor nulls, which the models do not send.
    """
    from azure.mgmt.machinelearningservices.models import JobBase

    # The models take the discriminators out of what they are given.
    back = JobBase.deserialize(copy.deepcopy(dict(body))).serialize()
    return [pointer for pointer in _differences(body, back, "") if _known(pointer)]


def _differences(sent: Any, back: Any, pointer: str) -> list[str]:
    if isinstance(sent, Mapping) and isinstance(back, Mapping):
        return [
            lost
            for key, value in sent.items()
            if value is not None
            for lost in _differences(value, back.get(key), f"{pointer}/{key}")
        ]
    if isinstance(sent, list) and isinstance(back, list) and len(sent) == len(back):
        return [
            lost
            for at, (one, two) in enumerate(zip(sent, back, strict=True))
            for lost in _differences(one, two, f"{pointer}/{at}")
        ]
    return [] if sent == back else [pointer]


def _known(pointer: str) -> bool:
    return not any(pointer == young or pointer.startswith(f"{young}/") for young in UNKNOWN_TO_IT)
