"""Azure Resource Manager: its addresses, how its pages and errors read, and that only reads are ever repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from aj.server.azure.token import Login
from aj.server.azure.wire import ATTEMPTS, PATIENCE_SECONDS, http_client, pause, read, send
from aj.shared.config import checked_config
from aj.shared.errors import AccessError, AjError, AzureError, LoginError, LostAnswerError, NotFoundError, recast
from aj.shared.jsonio import Json, compact, read_json
from aj.shared.model import Caller
from aj.shared.paths import Home, shipped

if TYPE_CHECKING:
    import httpx

ML = "Microsoft.MachineLearningServices"
API = "2024-04-01"
GRAPH = "/providers/Microsoft.ResourceGraph/resources"
GRAPH_API = "2021-03-01"
PAGES_AT_MOST = 1_000
"""A list that goes on longer runs in a circle."""
ROLE = "AzureML Data Scientist"


@dataclass(frozen=True, slots=True)
class Arm:
    """One caller's way to one cloud. Every method blocks and may be called from any thread."""

    cloud: Mapping[str, str]
    login: Login
    http: httpx.Client

    def get(self, path: str, api: str = API, **query: str) -> dict[str, Json]:
        """One resource; `NotFoundError` when there is none, `AzureError` for every other refusal."""
        return _document(self._read("GET", self._url(path), {"api-version": api, **query}))

    def look(self, path: str, api: str = API) -> dict[str, Json] | None:
        """One resource, or None when there is none."""
        try:
            return self.get(path, api)
        except NotFoundError:
            return None

    def pages(self, path: str, api: str = API, **query: str) -> Iterator[dict[str, Json]]:
        """All members of a list, page by page as they are asked for."""
        url, more = self._url(path), {"api-version": api, **query}
        for _ in range(PAGES_AT_MOST):
            page = _document(self._read("GET", url, more))
            yield from page.get("value") or ()
            if not page.get("nextLink"):
                return
            url, more = self._same_origin(str(page["nextLink"])), {}

    def ask(self, path: str, body: Json = None, api: str = API) -> dict[str, Json]:
        """A POST that changes nothing."""
        return _document(self._read("POST", self._url(path), {"api-version": api}, body))

    def graph(self, query: str, subscription: str | None = None) -> Iterator[dict[str, Json]]:
        """The rows of a Resource Graph query, in everything that the caller can see or in one subscription."""
        options: dict[str, Json] = {"resultFormat": "objectArray"}
        body: dict[str, Json] = {"query": query, "options": options}
        if subscription:
            body["subscriptions"] = [subscription]
        for _ in range(PAGES_AT_MOST):
            page = self.ask(GRAPH, body, GRAPH_API)
            yield from page.get("data") or ()
            if not page.get("$skipToken"):
                return
            options["$skipToken"] = page["$skipToken"]

    def put(self, path: str, body: Json) -> dict[str, Json]:
        """Write, once: only a refusal that says "later" (429) is tried again, as nothing was done.

        `LostAnswerError` when it may or may not have happened.
        """
        return _document(self._write("PUT", path, body))

    def post(self, path: str) -> int:
        """An action that answers without a document, such as cancel: the status."""
        return self._write("POST", path, None).status_code

    def service(self, url: str) -> dict[str, Json]:
        """GET from a service of a workspace, below its discovery address."""
        return _document(self._read("GET", self._of_the_cloud(url), {}))

    def _url(self, path: str) -> str:
        return self.cloud["arm"].rstrip("/") + path

    def _read(self, method: str, url: str, query: Mapping[str, str], body: Json = None) -> httpx.Response:
        return read(lambda: self._authorized(method, url, query, body))

    def _write(self, method: str, path: str, body: Json) -> httpx.Response:
        for number in range(1, ATTEMPTS + 1):
            answer = self._authorized(method, self._url(path), {"api-version": API}, body)
            wanted = answer.headers.get("Retry-After", "")
            patient = not wanted.isdigit() or int(wanted) <= PATIENCE_SECONDS
            if answer.status_code != 429 or number == ATTEMPTS or not patient:
                break
            time.sleep(pause(answer, number))
        if answer.status_code >= 500 or answer.status_code == 408:
            raise recast(error_of(answer), LostAnswerError)
        return answer

    def _authorized(self, method: str, url: str, query: Mapping[str, str], body: Json) -> httpx.Response:
        """One attempt, and another with a new token when the old one was refused: then surely nothing was done."""
        scope = self.cloud["arm_scope"]
        for last in (False, True):
            headers = {"Authorization": f"Bearer {self.login.token(scope).text}", "Accept": "application/json"}
            content = None if body is None else compact(body)
            if content is not None:
                headers["Content-Type"] = "application/json"
            answer = send(self.http, method, url, params=query or None, headers=headers, content=content)
            if answer.status_code != 401 or last:
                break
            self.login.forget(scope)
        return answer

    def _same_origin(self, url: str) -> str:
        if urlsplit(url)[:2] != urlsplit(self.cloud["arm"])[:2]:
            raise AzureError(f"a list goes on at a foreign address, `{urlsplit(url).netloc}`", where=self.cloud["arm"])
        return url

    def _of_the_cloud(self, url: str) -> str:
        """Our token goes to the cloud's own hosts only, whatever a workspace says of itself."""
        parts, arm = urlsplit(url), urlsplit(self.cloud["arm"])
        ours = parts.scheme == "https" and f".{parts.hostname}".endswith(f".{self.cloud['service_suffix']}")
        if not ours and parts.hostname != arm.hostname:
            message = f"the workspace's services are at `{parts.netloc}`, which is no host of this cloud"
            raise AzureError(message, hint="`cloud.service_suffix` in `aj_config.json` names another")
        return url


def azure_of(home: Home, caller: Caller) -> Arm:
    """The caller's way to the cloud that the project has configured; no request is made."""
    cloud = cloud_of(checked_config(home))
    return Arm(cloud, Login(caller.env, cloud["login"]), http_client(caller.env))


def cloud_of(config: Mapping[str, Json]) -> Mapping[str, str]:
    """The endpoints of the configured cloud, the project's own ones in front."""
    chosen = config.get("cloud", "public")
    own = chosen if isinstance(chosen, dict) else {"name": chosen}
    return {**_clouds()[own.get("name", "public")], **own}


def workspace_id(subscription: str, group: str, name: str) -> str:
    """The ARM id of a workspace."""
    place = f"/subscriptions/{segment(subscription)}/resourceGroups/{segment(group)}"
    return f"{place}/providers/{ML}/workspaces/{segment(name)}"


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def error_of(answer: httpx.Response) -> AjError:
    """What a refusal says, with its class."""
    code, message = _refusal(answer)
    status = answer.status_code
    text = f"Azure says {status} {code or ''}".rstrip() + (f": {message}" if message else "")
    kind: type[AjError] = {401: LoginError, 403: AccessError, 404: NotFoundError}.get(status, AzureError)
    hint = {
        401: "run `az login`, with `--tenant` when it is another tenant's",
        403: f"ask for the role `{ROLE}` on the workspace, or for what the message names",
        429: f"try again in {answer.headers.get('Retry-After') or 60} s",
    }.get(status)
    return kind(text, hint=hint, status_code=status, azure_code=code)


def _refusal(answer: httpx.Response) -> tuple[str | None, str]:
    try:
        error = json.loads(answer.content)["error"]
        details = [str(each.get("message")) for each in error.get("details") or () if each.get("message")]
        words = [str(error.get("message") or ""), *details]
        return error.get("code"), "; ".join(dict.fromkeys(filter(None, words)))[:2000]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None, answer.text.strip()[:300]


def _document(answer: httpx.Response) -> dict[str, Json]:
    if not answer.is_success:
        raise error_of(answer)
    try:
        document = json.loads(answer.content) if answer.content else {}
    except ValueError as error:
        raise LostAnswerError("Azure's answer is not JSON", status_code=answer.status_code) from error
    if not isinstance(document, dict):
        raise LostAnswerError("Azure's answer is no JSON object", status_code=answer.status_code)
    return document


@cache
def _clouds() -> Mapping[str, Mapping[str, str]]:
    clouds: Mapping[str, Mapping[str, str]] = read_json(shipped("backends") / "aml" / "clouds.json")
    return clouds
