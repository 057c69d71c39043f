"""Saved plans: the file of `aj plan -o` holds a plan with the very job that it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aj.shared.errors import InputError, NotFoundError
from aj.shared.jsonio import Json, canonical, read_json, sha256, write_file
from aj.shared.paths import Home

if TYPE_CHECKING:
    from aj.shared.model import JobSpec

FORMAT = 1
_KIND = "saved_plan"


class PlanMovedError(InputError):
    """A saved plan no longer says what would be submitted."""


def write_saved(path: Path, plan: Mapping[str, Json], spec: JobSpec) -> None:
    """Keep plan and job in a private file: environment values are in it."""
    from aj.shared.spec import spec_to_json

    write_file(path, canonical({"kind": _KIND, "format": FORMAT, "plan": plan, "spec": spec_to_json(spec)}))


def read_saved(home: Home, path: Path, aj_id: str) -> tuple[JobSpec, str]:
    """The job of a saved plan under a new identity, and the payload digest that the daemon must find again.

    `PlanMovedError` when a template file has changed; what else moves changes the payload, which the daemon compares.
    """
    from aj.shared.clock import now_utc
    from aj.shared.model import Identity
    from aj.shared.spec import seal, spec_from_json

    document = _document(path)
    spec = spec_from_json(document["spec"])
    for source in spec.template.sources:
        file = home.root / source.path
        if not file.is_file() or sha256(file.read_bytes()) != source.sha256:
            text = f"`{source.path}` has changed since the plan was made"
            raise PlanMovedError(text, where=str(path), hint="run `aj plan` again and look at it")
    identity = Identity(aj_id, spec.identity.base, now_utc())
    return seal(spec, identity), str(document["plan"]["payload_sha256"])


def _document(path: Path) -> Mapping[str, Any]:
    from aj.shared.schema import check

    hint = "`aj plan -o FILE` saves one"
    try:
        document = read_json(path)
    except FileNotFoundError as error:
        raise NotFoundError("no such plan", where=str(path), hint=hint) from error
    except ValueError as error:
        raise InputError(f"not a saved plan: {error}", where=str(path), hint=hint) from error
    if not isinstance(document, dict) or document.get("kind") != _KIND or document.get("format") != FORMAT:
        raise InputError("not a saved plan of this version", where=str(path), hint=hint)
    check(document, "saved-plan", f"the saved plan `{path}`")
    check(document["spec"], "jobspec", f"the job of the saved plan `{path}`")
    return document
