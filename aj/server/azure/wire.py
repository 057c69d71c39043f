"""The caller's way out to Azure: proxies, certificates, and what a request that failed may have done."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from aj.shared.errors import ConfigError, LostAnswerError, UnreachableError

if TYPE_CHECKING:
    import httpx

ATTEMPTS = 4
"""Of a read, before its failure is the caller's."""
PATIENCE_SECONDS = 20.0
"""The longest wait that a Retry-After is granted."""
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
"""Answers after which a read is tried again."""
_SECONDS = {"connect": 10.0, "read": 60.0, "write": 60.0, "pool": 60.0}
_NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
_AUTHORITIES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")


def http_client(env: Mapping[str, str]) -> httpx.Client:
    """The client for this caller's proxies and certificates, shared by all who have the same."""
    names = {name: env.get(name.lower()) or env.get(name) for name in _NETWORK}
    bundle = next((env[name] for name in _AUTHORITIES if env.get(name)), None)
    try:
        return _client(*(names[name] for name in _NETWORK), bundle)
    except (OSError, ValueError) as error:
        message = f"proxies or certificates of the environment cannot be used: {error}"
        raise ConfigError(message, where=bundle, hint="see HTTPS_PROXY, HTTP_PROXY and REQUESTS_CA_BUNDLE") from error


def send(client: httpx.Client, method: str, url: str, **how: Any) -> httpx.Response:
    """One attempt. `UnreachableError`: it was not received; `LostAnswerError`: that is not sure. No query is shown."""
    import httpx

    host = httpx.URL(url).host
    try:
        return client.request(method, url, **how)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
        hint = "is the network up? a proxy is taken from HTTPS_PROXY"
        if "CERTIFICATE" in str(error):
            hint = "REQUESTS_CA_BUNDLE names the certificates of an inspecting proxy"
        raise UnreachableError(f"cannot reach `{host}`: {_said(error)}", hint=hint) from error
    except httpx.RequestError as error:
        message = f"the answer of `{host}` to {method} was lost: {_said(error)}"
        raise LostAnswerError(message, hint="try again") from error


def read(attempt: Callable[[], httpx.Response], sleep: Callable[[float], None] = time.sleep) -> httpx.Response:
    """The answer of something that changes nothing, tried again a few times while the service or the network fails."""
    for number in range(1, ATTEMPTS):
        try:
            answer = attempt()
        except (LostAnswerError, UnreachableError):
            sleep(pause(None, number))
            continue
        if answer.status_code not in TRANSIENT:
            return answer
        sleep(pause(answer, number))
    return attempt()


def pause(answer: httpx.Response | None, number: int) -> float:
    """Seconds before the next attempt: what the service asks for, else twice as long each time; bounded."""
    asked = answer.headers.get("Retry-After", "") if answer is not None else ""
    wanted = float(asked) if asked.isascii() and asked.isdigit() else 0.25 * 2**number
    return min(wanted, PATIENCE_SECONDS)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


@lru_cache(maxsize=16)
def _client(https: str | None, http: str | None, every: str | None, no: str | None, bundle: str | None) -> httpx.Client:
    import ssl

    import httpx

    # Its lines hold whole addresses, signatures included.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    context = ssl.create_default_context(cafile=bundle) if bundle else ssl.create_default_context()
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=60)
    mounts: dict[str, httpx.BaseTransport | None] = {}
    for scheme, proxy in (("https://", https or every), ("http://", http or every)):
        if proxy:
            mounts[scheme] = httpx.HTTPTransport(verify=context, proxy=proxy, limits=limits)
    for host in filter(None, (part.strip() for part in (no or "").split(","))):
        mounts["all://" if host == "*" else f"all://{_pattern(host)}"] = None
    return httpx.Client(
        verify=context, limits=limits, mounts=mounts, timeout=httpx.Timeout(**_SECONDS), trust_env=False
    )


def _pattern(host: str) -> str:
    """NO_PROXY's `.example.com` and `example.com` mean the domain and what is below it; an address means itself."""
    bare = host.lstrip(".")
    return bare if bare.replace(".", "").isdigit() or ":" in bare or bare == "localhost" else f"*{bare}"
