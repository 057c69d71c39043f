"""Which environment values are secret, and documents and texts without them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from aj.shared.jsonio import Json, sha256
from aj.shared.model import JobSpec

_SECRET_NAME = re.compile(
    r"(TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|CONNSTR)(_|\Z)"
    r"|(^|_)(PW|PWD|PASS|PAT|SAS|SIG|KEY|KEYS|AUTH|COOKIE|CREDS|PRIVATE|CONNECTION_STRING)(_|\Z)",
    re.IGNORECASE,
)
ENVIRONMENTS = ("env", "env_defaults", "environmentVariables")
"""The keys under which templates, specs and payloads write an environment."""
STABLE_PREFIX = "AJ_"
"""Variables of aj's own: identity and shape, never secret."""


def looks_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret by the field's habits of naming."""
    return not name.startswith(STABLE_PREFIX) and _SECRET_NAME.search(name) is not None


def variables(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Name and value of everything in the job's environment, and in others that the template writes."""
    yield from spec.env.items()
    yield from _written(spec.template.raw)


def _written(document: Json) -> Iterator[tuple[str, str]]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            if key in ENVIRONMENTS and isinstance(value, Mapping):
                yield from ((name, text) for name, text in value.items() if isinstance(text, str))
            else:
                yield from _written(value)
    if isinstance(document, list | tuple):
        for item in document:
            yield from _written(item)


def secret_names(spec: JobSpec) -> frozenset[str]:
    """Variables hidden in what people read: those that look secret, and every `--env`."""
    return frozenset(name for name, _ in variables(spec) if name in spec.secret_env or looks_secret(name))


def env_names(spec: JobSpec) -> frozenset[str]:
    """Variables hidden in what is kept on disk: all but aj's own."""
    return frozenset(name for name, _ in variables(spec) if not name.startswith(STABLE_PREFIX))


def hide(value: str) -> str:
    """A stand-in that differs when the value differs: 12 hex digits of its SHA-256."""
    return f"<hidden {sha256(value.encode('utf-8', 'surrogatepass'))[:12]}>"


def redact(document: Json, names: Collection[str]) -> Json:
    """A copy in which the values of `names` are hidden wherever an environment is written, and nowhere else.

    An environment is a mapping, or a list of `{name, value}`, under one of `ENVIRONMENTS`.
    """
    if isinstance(document, Mapping):
        return {
            key: _redact_environment(value, names) if key in ENVIRONMENTS else redact(value, names)
            for key, value in document.items()
        }
    if isinstance(document, list | tuple):
        return [redact(item, names) for item in document]
    return document


def _redact_environment(env: Json, names: Collection[str]) -> Json:
    if isinstance(env, Mapping):
        return {name: hide(value) if name in names and isinstance(value, str) else value for name, value in env.items()}
    if isinstance(env, list | tuple):
        return [
            {**item, "value": hide(item["value"])}
            if isinstance(item, Mapping) and item.get("name") in names and isinstance(item.get("value"), str)
            else item
            for item in env
        ]
    return env


def redact_text(text: str, values: Iterable[str]) -> str:
    """`text` without any of `values`; values under 4 characters are left, as they would hide half the text."""
    for value in sorted({value for value in values if len(value) >= 4}, key=len, reverse=True):
        text = text.replace(value, "<hidden>")
    return text
