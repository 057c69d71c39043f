"""Which variables of the caller's environment travel to the daemon, and why each does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote, unquote

from aj.shared.errors import ConfigError, RequestError
from aj.shared.jsonio import Json, compact
from aj.shared.model import Caller, to_json

CALLER_HEADER = "X-AJ-Caller"
"""Carries who looks at a cache or a remote."""

_TRAVEL_FOR = {
    "names the job": "AJ_NAME",
    "asks for home keys in the archive": "AJ_SHIP_SSH",
    "children that call aj again find the same project": "AJ_HOME",
    "which store holds the archives, and its default place": "AJ_CACHE_HOME XDG_CACHE_HOME",
    "home keys, logins of az and kubectl, `~` in paths": "HOME",
    "who the children act as": "USER LOGNAME",
    "a local job's commands may start it": "SHELL",
    "where children (git, kubectl, amlt, az, uv) are found": "PATH",
    "the language and character set of children": "LANG LC_*",
    "times in the output of local jobs": "TZ",
    "scratch space of children": "TMPDIR",
    "which cluster; relative paths are taken from the caller's folder": "KUBECONFIG",
    "the cluster's own address, for a caller inside a pod": "KUBERNETES_SERVICE_*",
    "which login, cloud and tenant azure-identity uses": "AZURE_*",
    "how amlt is set up": "AMLT_*",
    "managed identity on an Azure machine": "IDENTITY_ENDPOINT IDENTITY_HEADER MSI_ENDPOINT MSI_SECRET",
    "the way out of the network": "HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy",
    "what needs no proxy": "NO_PROXY no_proxy",
    "certificates of an inspecting proxy": "REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SSL_CERT_FILE SSL_CERT_DIR",
    "which GPUs a local job may use": "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES",
    "libraries that a local job links": "LD_LIBRARY_PATH",
    "the Python that a local job runs in": "VIRTUAL_ENV CONDA_PREFIX",
    "how `uv run` of a local job finds Pythons, indexes and its cache": "UV_*",
}
"""Reason → names, or prefixes with `*`. Everything else stays at home."""
TRAVELS = {name: reason for reason, names in _TRAVEL_FOR.items() for name in names.split()}

_REMOTE = (
    *("AJ_CACHE_HOME", "XDG_CACHE_HOME", "PATH", "HOME", "USER", "LOGNAME"),
    *("AMLT_*", "AZURE_*", "UV_*", "IDENTITY_*", "MSI_*"),
    *("*_PROXY", "*_proxy", "*_CA_BUNDLE", "SSL_*"),
)
"""What a look at cache or remote needs: who asks, and by which way; and every secret that entries may need again."""

SIZE_LIMIT = 256 * 1024
"""Bytes of all names and values together."""


def travels(name: str) -> bool:
    """Whether a variable of this name is on the allow-list."""
    return name in TRAVELS or any(rule[-1] == "*" and name.startswith(rule[:-1]) for rule in TRAVELS)


def caller(env: Mapping[str, str], cwd: Path) -> Caller:
    """The caller's world: `cwd` made absolute, and the part of `env` that travels.

    `ConfigError` when a value is not valid UTF-8, because it could not arrive unchanged.
    """
    kept = {name: value for name, value in env.items() if travels(name)}
    folder = str(cwd.absolute())
    for what, text in {**kept, "the current folder": folder}.items():
        if not _encodes(text):
            raise ConfigError(f"`{what}` is not valid UTF-8", hint="unset it or spell it in UTF-8")
    return Caller(cwd=folder, env=kept)


def caller_from_json(document: Json) -> Caller:
    """The caller of a request; `RequestError` when it is malformed. Names that do not travel are dropped."""
    if not isinstance(document, Mapping):
        raise RequestError("`caller` is not an object", hint="send `cwd` and `env`")
    cwd, env = document.get("cwd"), document.get("env")
    if not isinstance(cwd, str) or not Path(cwd).is_absolute() or "\0" in cwd:
        raise RequestError("`caller.cwd` is not an absolute path")
    if not isinstance(env, Mapping) or not all(_is_variable(name, value) for name, value in env.items()):
        raise RequestError("`caller.env` does not map names to texts")
    if sum(len(name) + len(value) for name, value in env.items()) > SIZE_LIMIT:
        raise RequestError(f"`caller.env` is larger than {SIZE_LIMIT} bytes")
    return Caller(cwd=cwd, env={name: value for name, value in env.items() if travels(name)})


def to_header(env: Mapping[str, str], root: Path) -> str:
    """The caller of a request without a body: who looks, percent-encoded."""
    kept = {name: value for name, value in env.items() if any(fnmatchcase(name, rule) for rule in _REMOTE)}
    return quote(compact(to_json(caller(kept, root))))


def from_header(text: str | None) -> Caller:
    """The inverse of `to_header`; without one, a caller who has nothing. `RequestError` when it is malformed."""
    if text is None:
        return Caller(cwd="/", env={})
    try:
        return caller_from_json(json.loads(unquote(text, errors="strict")))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"`{CALLER_HEADER}` is not a caller") from error


def _is_variable(name: Json, value: Json) -> bool:
    texts = isinstance(name, str) and isinstance(value, str)
    return texts and "\0" not in name + value and "=" not in name and _encodes(name + value)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
