"""What the journal says of an attempt, and the result that a failed one leaves: never a value of its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aj import __version__
from aj.server.child import Child, run
from aj.shared.errors import AjError, to_wire
from aj.shared.jsonio import Json
from aj.shared.model import Caller, JobResult, JobSpec, Status
from aj.shared.redact import env_names, secret_names, variables

if TYPE_CHECKING:
    from aj.server.submission import Frozen

GIT_SECONDS = 2.0
"""A slow git costs the record its commit, not the user their time."""
_OF_THE_CODE = ("archive", "archive_sha256", "git_commit", "git_dirty")
_KNOWN_LATER = ("azure_name", "portal_url", "note", "payload_sha256", *_OF_THE_CODE)
LONG = 8
"""Characters from which any value of a job's environment is hidden in texts; secret ones always are."""


def record_of(spec: JobSpec) -> dict[str, Json]:
    """What is known when a submission is accepted; `archive` is for results only."""
    return {
        "id": spec.identity.id,
        "name": spec.name,
        "template": spec.template.name,
        "backend": spec.backend,
        "nodes": spec.shape.nodes,
        "processes": spec.shape.processes,
        "processes_per_node": spec.shape.processes_per_node,
        "submitted_at": spec.identity.submitted_at,
        **dict.fromkeys(_KNOWN_LATER),
    }


def with_frozen(record: Mapping[str, Json], frozen: Frozen) -> dict[str, Json]:
    """The same once archive and payload exist."""
    known = {**record, "payload_sha256": frozen.payload_sha256}
    packed = frozen.archive
    if packed is None:
        return known
    archive = {"sha256": packed.sha256, "size": packed.size, "files": packed.files, "reused": frozen.reused}
    return {**known, "archive_sha256": packed.sha256, "archive": archive}


def with_result(record: Mapping[str, Json], result: JobResult) -> dict[str, Json]:
    """The finished line."""
    error = result.error and {"type": result.error["type"], "message": result.error["message"]}
    ended = {key: getattr(result, key) for key in ("azure_name", "status", "portal_url", "note")}
    return {**{key: value for key, value in record.items() if key != "archive"}, **ended, "error": error}


def result_of(record: Mapping[str, Json], status: Status, error: AjError | None, note: str | None = None) -> JobResult:
    """The result of a submission that has no receipt."""
    shape = {key: record[key] for key in ("nodes", "processes", "processes_per_node")}
    names = {key: record[key] for key in ("id", "name", "backend", "template")}
    built = {key: record[key] for key in ("archive", "payload_sha256")}
    return JobResult(status=status, error=to_wire(error) if error else None, note=note, **names, **shape, **built)


def hidden_values(spec: JobSpec) -> frozenset[str]:
    """The values that no event, error, log or record may show."""
    secret, kept = secret_names(spec), env_names(spec)
    found = ((name, value) for name, value in variables(spec) if name in kept)
    return frozenset(value for name, value in found if name in secret or len(value) >= LONG)


def provenance(caller: Caller) -> dict[str, str]:
    """Where a job comes from: the commit of its folder, whether that was changed since, and this version of aj."""
    state = git_state(caller)
    git = {"git_commit": str(state["git_commit"]), "git_dirty": str(state["git_dirty"]).lower()}
    return {"aj_version": __version__, **(git if state["git_commit"] else {})}


def git_state(caller: Caller) -> dict[str, Json]:
    """`git_commit` and `git_dirty` of the caller's folder; None outside a repository, or where git is slow."""
    words = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch")
    env = {name: caller.env[name] for name in ("PATH", "HOME") if name in caller.env}
    try:
        child = Child((*words, "--untracked-files=no"), {**env, "LC_ALL": "C"}, Path(caller.cwd), GIT_SECONDS)
        lines = run(child).stdout.splitlines()
    except AjError:
        return {"git_commit": None, "git_dirty": None}
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    known = commit is not None and commit != "(initial)"
    return {"git_commit": commit if known else None, "git_dirty": any(not line.startswith("#") for line in lines)}
