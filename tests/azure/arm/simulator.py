"""The simulator's front: every request is counted, disturbed as ordered, checked, answered, and its answer checked."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from tests.azure.arm import graph, history, jobs, platform, resources
from tests.azure.arm.blob import BlobProxy, broken
from tests.azure.arm.contract import Contract, Operation
from tests.azure.arm.faults import Fault, Faults
from tests.azure.arm.refusals import BLOB_REFUSALS, Refused, arm_error, blob_error
from tests.azure.arm.resources import Answer, Call
from tests.azure.arm.runner import Runner
from tests.azure.arm.tokens import check_bearer, token
from tests.azure.arm.traffic import Exchange, Surface
from tests.azure.arm.world import PUBLIC, World

Answering = Callable[["Simulator", Call], Answer]

ANSWERS: Mapping[str, Answering] = {
    "Workspaces_Get": resources.get_workspace,
    "Compute_List": resources.list_computes,
    "Compute_Get": resources.get_compute,
    "Datastores_List": resources.list_datastores,
    "Datastores_Get": resources.get_datastore,
    "Datastores_CreateOrUpdate": resources.put_datastore,
    "Datastores_ListSecrets": resources.list_secrets,
    "EnvironmentVersions_List": resources.list_environments,
    "EnvironmentVersions_Get": resources.get_environment,
    "EnvironmentVersions_CreateOrUpdate": resources.put_environment,
    "Jobs_List": jobs.list_jobs,
    "Jobs_Get": jobs.get_job,
    "Jobs_CreateOrUpdate": jobs.put_job,
    "Jobs_Cancel": jobs.cancel_job,
    "Jobs_Delete": jobs.delete_job,
}


class Simulator:
    """One simulated Azure in memory. `arm` and `blob` are the addresses it is served at."""

    def __init__(self, contract: Contract, folder: Path, azurite: str, keys: Mapping[str, str], ca_file: Path) -> None:
        self.contract = contract
        self.keys = keys
        self.suffix = PUBLIC
        self.arm = self.blob_url = ""
        self.state = World()
        self.faults = Faults()
        self.exchanges: list[Exchange] = []
        self.refusals: list[str] = []
        self.violations: list[str] = []
        self.blob = BlobProxy(self, azurite, ca_file)
        self._folder = folder
        self._jobs_made = 0
        self._loop = asyncio.get_running_loop()
        self.runner = Runner(lambda: self.state.settings, self._download)
        self.ssl = ssl.create_default_context(cafile=str(ca_file))

    @property
    def discovery(self) -> str:
        """The workspaces' discoveryUrl."""
        return f"{self.arm}/discovery"

    def job_folder(self, name: str) -> Path:
        """A new folder for a job."""
        self._jobs_made += 1
        folder = self._folder / f"{self._jobs_made}"
        folder.mkdir()
        return folder

    def note(self, surface: Surface, request: Request, operation: str) -> Exchange:
        """Begin to count a request."""
        query = dict(request.query_params)
        exchange = Exchange(surface, request.method, request.url.path, operation, time.monotonic(), query)
        self.exchanges.append(exchange)
        return exchange

    async def disturb(self, request: Request, surface: Surface, line: str) -> Fault | None:
        """Wait as ordered, and give the fault that the caller has to carry out, if any."""
        await asyncio.sleep(self.state.settings.latency_ms / 1000)
        fault = self.faults.next(surface, line)
        if fault is not None and fault.kind == "slow":
            if surface == "arm":
                await request.body()  # it has arrived: a caller who leaves meanwhile has asked all the same
            await asyncio.sleep(fault.seconds)
            return None
        if fault is not None and fault.kind == "barrier":
            await fault.meet()
            return None
        return fault

    def refusal(self, fault: Fault) -> Refused:
        """What a `refuse` or `throttle` says."""
        wait = {"Retry-After": f"{fault.retry_after:g}"}
        if fault.kind == "throttle":
            return Refused(429, "TooManyRequests", "The request is being throttled.", wait)
        headers = wait if fault.retry_after else {}
        if fault.surface == "blob" and fault.code in BLOB_REFUSALS:
            return Refused(*BLOB_REFUSALS[fault.code], headers)
        return Refused(fault.status, fault.code, fault.message, headers)

    async def serve(self, request: Request) -> Response:
        """Answer one request to ARM, the run history or a signed URL."""
        if request.url.path.startswith("/_logs/"):
            return await self._log(request)
        named = self._name(request)
        exchange = self.note("arm", request, named)
        line = f"{request.method} {named} {request.url.path}?{request.url.query}"
        fault = await self.disturb(request, "arm", line)
        if fault is not None and fault.kind in ("lose_before", "lose_during"):
            exchange.ended = time.monotonic()
            return broken(request)
        try:
            check_bearer(request.headers.get("authorization"))
            if fault is not None and fault.kind in ("refuse", "throttle"):
                raise self.refusal(fault)
            self._check_role(request)
            answer = self._answer(request, await request.body())
        except Refused as refused:
            if fault is None:
                self.refusals.append(f"{line}: {refused}")
            answer = Answer(refused.status, refused.body(), refused.headers)
            if refused.status == 401:
                answer = Answer(401, refused.body(), {"WWW-Authenticate": 'Bearer error="invalid_token"'})
        exchange.ended = time.monotonic()
        if fault is not None and fault.kind == "lose_after":
            return broken(request)
        exchange.status = answer.status
        return _response(answer)

    def _name(self, request: Request) -> str:
        """The operation a request means, as far as it can be told."""
        path = request.url.path
        if path == graph.PATH:
            return "ResourceGraph_Query"
        found = platform.find(request.method, path)
        if found is not None:
            return found[0]
        for method, name, pattern in history.ROUTES:
            if method == request.method and pattern.fullmatch(path):
                return name
        try:
            return self.contract.find(request.method, path)[0].name
        except Refused:
            return "Unknown"

    def _answer(self, request: Request, body: bytes) -> Answer:
        path, query = request.url.path, dict(request.query_params)
        url = f"{self.arm}{path}"
        if body and request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise Refused(
                415, "UnsupportedMediaType", "The content media type is not supported: only application/json is."
            )
        if path.lower() == graph.PATH.lower() and request.method == "POST":
            return graph.answer(self, query, body)
        if re.fullmatch(r"/discovery(/workspaces/[^/]+)?", path):
            return Answer(
                200, {"api": self.arm, "history": self.arm, "artifact": self.arm, "studio": "https://ml.azure.com"}
            )
        found = platform.find(request.method, path)
        if found is not None:
            return platform.serve(self, found[0], Call(found[1], query, None, url))
        for method, name, pattern in history.ROUTES:
            hit = pattern.fullmatch(path)
            if hit is not None and method == request.method:
                return history.serve(self, name, Call({**hit.groupdict(default="")}, query, None, url))
        operation, parameters = self.contract.find(request.method, path)
        document = self.contract.check_request(operation, parameters, query, body)
        if operation.name not in ANSWERS:
            raise Refused(501, "NotImplemented", f"The simulator does not answer `{operation.name}`.")
        return self._checked(operation, ANSWERS[operation.name](self, Call(parameters, query, document, url)))

    def _checked(self, operation: Operation, answer: Answer) -> Answer:
        problems = self.contract.answer_problems(operation, answer.status, answer.document)
        if not problems:
            return answer
        said = f"the simulator's own answer to {operation.name} breaks the contract: {problems}"
        self.violations.append(said)
        return Answer(500, arm_error("SimulatorBroken", said))

    def _check_role(self, request: Request) -> None:
        path = request.url.path.lower()
        if any(part in path for part in self.state.denied):
            action = "read" if request.method == "GET" else "write"
            who = "The client 'somebody@example.org' does not have authorization to perform action"
            action = f"'Microsoft.MachineLearningServices/workspaces/{action}'"
            message = f"{who} {action} over scope '{request.url.path}' or the scope is invalid."
            raise Refused(403, "AuthorizationFailed", message)

    async def _log(self, request: Request) -> Response:
        path = urllib.parse.unquote(request.url.path)
        exchange = self.note("arm", request, "Log_Read")
        fault = await self.disturb(request, "arm", f"GET Log_Read {path}?{request.url.query}")
        try:
            if fault is not None and fault.kind in ("refuse", "throttle"):
                raise self.refusal(fault)
            file = history.open_log(self, path, dict(request.query_params), request.headers.get("authorization"))
            wanted = request.headers.get("x-ms-range") or request.headers.get("range")
            status, content, headers = history.read_range(file, wanted)
            answer = Response(content, status, headers, media_type="application/octet-stream")
        except Refused as refused:
            headers = {"x-ms-error-code": refused.code, **refused.headers}
            answer = Response(blob_error(refused.code, refused.message), refused.status, headers, "application/xml")
        exchange.status, exchange.ended = answer.status_code, time.monotonic()
        return broken(request) if fault is not None and fault.kind.startswith("lose") else answer

    def _download(self, account: str, container: str, blob: str, target: Path) -> None:
        reading = self.blob.fetch(account, container, blob, target, token("https://storage.azure.com"))
        asyncio.run_coroutine_threadsafe(reading, self._loop).result(120)


def _response(answer: Answer) -> Response:
    content = None if answer.document is None else json.dumps(answer.document)
    headers = {"x-ms-request-id": str(uuid.uuid4()), "x-ms-correlation-request-id": str(uuid.uuid4()), **answer.headers}
    return Response(content, answer.status, headers, media_type="application/json" if content else None)
