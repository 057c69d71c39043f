"""An API server's stand-in: objects in memory, pods that are ready at once, exec that really runs, faults on demand.

It answers real kubectl and the real client as the recorded server does, for what aj asks of a cluster; where there is
a real server the same tests hold the two against each other.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = {
    "": (
        "v1",
        {
            "namespaces": "Namespace",
            "pods": "Pod",
            "secrets": "Secret",
            "persistentvolumeclaims": "PersistentVolumeClaim",
            "resourcequotas": "ResourceQuota",
        },
    ),
    "batch.volcano.sh": ("v1alpha1", {"jobs": "Job"}),
    "scheduling.volcano.sh": ("v1beta1", {"queues": "Queue"}),
    "authorization.k8s.io": ("v1", {"selfsubjectaccessreviews": "SelfSubjectAccessReview"}),
}
UNSCOPED = {"namespaces", "queues", "selfsubjectaccessreviews"}
SHORT = {"persistentvolumeclaims": ["pvc"]}
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass
class Fault:
    """What happens to requests of a method whose path matches, `times` times.

    `do`: `lose` carries out and drops the answer, `drop` only drops, a number answers with that status and `text`, in
    which `{body}` is what was sent; `hang` waits.
    """

    method: str
    path: str
    do: str | int
    times: int = 1
    text: str = "the webhook denied the request"


@dataclass
class Double:
    """The cluster's state, which a test reads and changes at will."""

    volume: Path
    """What pods see as /volume."""
    objects: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    """Verb and resource that the caller may not."""
    pod_status: dict[str, Any] = field(
        default_factory=lambda: {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    )
    cut_exec: bool = False
    """Whether exec ends in the middle of what is sent to it."""
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    execs: list[list[str]] = field(default_factory=list)
    url: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, resource: str, name: str, namespace: str = "", **body: Any) -> None:
        """An object that somebody else has made."""
        self.objects[resource, namespace, name] = {"metadata": {"name": name, "namespace": namespace}, **body}

    def names(self, resource: str) -> list[str]:
        """What there is of a kind."""
        return [name for kind, _, name in self.objects if kind == resource]

    def kubeconfig(self, path: Path) -> Path:
        """Its kubeconfig, with the contexts `admin` and `other`."""
        contexts = [{"name": name, "context": {"cluster": "c", "user": "u", **more}} for name, more in CONTEXTS.items()]
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "admin",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": contexts,
        }
        path.write_text(json.dumps(document))
        return path


CONTEXTS: dict[str, dict[str, str]] = {"admin": {}, "team": {"namespace": "research"}}


@contextmanager
def serving(volume: Path) -> Iterator[Double]:
    """The double on a free port."""
    state = Double(volume)
    for name in ("default", "research"):
        state.put("namespaces", name, status={"phase": "Active"})
    state.put("queues", "default", spec={}, status={"state": "Open"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"double": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    double: Double
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        self.double.requests.append((method, url.path, body))
        fault = self._fault(method, url.path)
        if fault and isinstance(fault.do, int):
            return self._status(fault.do, fault.text.replace("{body}", json.dumps(body)))
        if fault and fault.do in ("drop", "hang"):
            time.sleep(30 if fault.do == "hang" else 0)
            return self._drop()
        if url.path.endswith("/exec"):
            return self._exec(query["command"])
        with self.double.lock:
            status, answer = self._answer(method, url.path, query, body)
        if fault and fault.do == "lose":
            return self._drop()
        return self._send(status, answer)

    def _fault(self, method: str, path: str) -> Fault | None:
        with self.double.lock:
            for fault in self.double.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _send(self, status: int, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(content)

    def _status(self, code: int, message: str, reason: str = "") -> None:
        self._send(code, _status(code, message, reason))

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if (found := _discovery(path)) is not None:
            return 200, found
        match = _PATH.fullmatch(path)
        if match is None or (match["group"] or "") not in KINDS:
            return 404, _status(404, f"no {path}", "NotFound")
        group, namespace = match["group"] or "", match["namespace"] or ""
        resource, name = match["resource"], match["name"]
        version, kinds = KINDS[group]
        verb = {"GET": "get" if name else "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
        if resource == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            part = f"/{asked['subresource']}" if asked.get("subresource") else ""
            allowed = (asked["verb"], asked["resource"] + part) not in self.double.forbidden
            return 201, {**body, "status": {"allowed": allowed}}
        if (verb, resource) in self.double.forbidden:
            return 403, _status(403, f'{resource}.{group} is forbidden: User "bob" cannot {verb} it', "Forbidden")
        api = {"apiVersion": f"{group}/{version}" if group else version, "kind": kinds[resource]}
        return self._object(verb, api, (resource, namespace, name or ""), query, body)

    def _object(
        self, verb: str, api: dict[str, str], key: tuple[str, str, str], query: dict[str, list[str]], body: Any
    ) -> tuple[int, Any]:
        resource, namespace, name = key
        objects = self.double.objects
        if verb == "list":
            wanted = dict(pair.split("=", 1) for pair in ",".join(query.get("labelSelector", [])).split(",") if pair)
            items = [
                {**api, **each}
                for (kind, place, _), each in objects.items()
                if kind == resource
                and namespace in ("", place)
                and wanted.items() <= each["metadata"].get("labels", {}).items()
            ]
            return 200, {**api, "kind": api["kind"] + "List", "metadata": {"resourceVersion": "1"}, "items": items}
        if verb == "create":
            made = copy.deepcopy(body)
            metadata = made["metadata"]
            name = metadata.setdefault("name", metadata.get("generateName", "")[:58] + uuid.uuid4().hex[:5])
            if (resource, namespace, name) in objects:
                return 409, _status(409, f'{resource} "{name}" already exists', "AlreadyExists")
            metadata |= {"uid": str(uuid.uuid4()), "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
            if resource == "pods":
                made["status"] = self.double.pod_status
            objects[resource, namespace, name] = made
            return 201, {**api, **made}
        if key not in objects:
            return 404, _status(404, f'{resource} "{name}" not found', "NotFound")
        if verb == "delete":
            del objects[key]
            return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        if verb == "patch":
            _merge(objects[key], body)
        return 200, {**api, **objects[key]}

    def _exec(self, command: list[str]) -> None:
        self.double.execs.append(command)
        accept = hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + _ACCEPT).digest()
        self.send_response(101, "Switching Protocols")
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
            self.send_header(name, value)
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(accept).decode())
        self.send_header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        self.end_headers()
        self.close_connection = True
        words = [re.sub(r"\A/volume(?=/|\Z)", str(self.double.volume), word) for word in command]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdin and child.stdout and child.stderr
        feeder = threading.Thread(target=self._feed, args=(child,), daemon=True)
        feeder.start()
        errors = threading.Thread(target=self._pass_on, args=(child.stderr, 2), daemon=True)
        errors.start()
        self._pass_on(child.stdout, 1)
        errors.join()
        status = child.wait()
        end: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if status:
            causes = [{"reason": "ExitCode", "message": str(status)}]
            end |= {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
            end["message"] = f"command terminated with non-zero exit code: exit status {status}"
        if self.double.cut_exec and not status:
            return
        self._frame(b"\3" + json.dumps(end).encode())
        self._frame(struct.pack(">H", 1000), opcode=8)

    def _pass_on(self, stream: Any, channel: int) -> None:
        while block := stream.read1(4096):
            self._frame(bytes([channel]) + block)

    def _frame(self, content: bytes, opcode: int = 2) -> None:
        size = len(content)
        head = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
        try:
            with self.double.lock:
                self.wfile.write(bytes([0x80 | opcode]) + head + content)
        except OSError:
            pass

    def _feed(self, child: subprocess.Popen[bytes]) -> None:
        """Channel 0 is the input, 255 tells that a channel is closed."""
        assert child.stdin
        passed = 0
        try:
            for content in self._frames():
                if content[:1] == b"\xff":
                    break
                if content[:1] == b"\0":
                    child.stdin.write(content[1:])
                    passed += len(content) - 1
                if self.double.cut_exec and passed > 1000:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    break
        except (OSError, ValueError):  # the other side has closed what we read
            pass
        finally:
            try:
                child.stdin.close()
            except OSError:
                pass

    def _frames(self) -> Iterator[bytes]:
        while head := self.rfile.read(2):
            size = head[1] & 0x7F
            if size >= 126:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask = self.rfile.read(4)
            content = self.rfile.read(size)
            if head[0] & 0x0F == 8:
                return
            pad = mask * (size // 4 + 1)
            yield (int.from_bytes(content, "big") ^ int.from_bytes(pad[:size], "big")).to_bytes(size, "big")


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value


def _status(code: int, message: str, reason: str = "") -> dict[str, Any]:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code}
    return {**body, "reason": reason} if reason else body


def _discovery(path: str) -> Any:
    groups = {group: version for group, (version, _) in KINDS.items() if group}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
    if path == "/openapi/v3":
        places = [f"apis/{group}/{version}" if group else "api/v1" for group, (version, _) in KINDS.items()]
        return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}
    if path.startswith("/openapi/v3/"):
        return _openapi(path.removeprefix("/openapi/v3"))
    if path == "/apis":
        listed = [
            {
                "name": group,
                "versions": [each := {"groupVersion": f"{group}/{version}", "version": version}],
                "preferredVersion": each,
            }
            for group, version in groups.items()
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    for group, (version, kinds) in KINDS.items():
        if path == (f"/apis/{group}/{version}" if group else "/api/v1"):
            return {
                "kind": "APIResourceList",
                "groupVersion": f"{group}/{version}".lstrip("/"),
                "resources": _resources(kinds),
            }
    return None


def _resources(kinds: dict[str, str]) -> Sequence[dict[str, Any]]:
    verbs = ["create", "delete", "get", "list", "patch", "watch"]
    return [
        {
            "name": name,
            "singularName": kind.lower(),
            "namespaced": name not in UNSCOPED,
            "kind": kind,
            "verbs": verbs,
            "shortNames": SHORT.get(name, []),
        }
        for name, kind in kinds.items()
    ]


def _openapi(place: str) -> Any:
    """Just enough for kubectl to see that fields are checked on this side."""
    group = place.split("/")[2] if place.startswith("/apis") else ""
    version, kinds = KINDS[group]
    paths: dict[str, Any] = {}
    for name, kind in kinds.items():
        gvk = {"group": group, "version": version, "kind": kind}
        verb = {"parameters": [{"name": "fieldValidation", "in": "query"}], "x-kubernetes-group-version-kind": gvk}
        where = f"{place}/{name}" if name in UNSCOPED else f"{place}/namespaces/{{namespace}}/{name}"
        paths |= {where: {"post": verb}, f"{where}/{{name}}": {"patch": verb}}
    return {"openapi": "3.0.0", "info": {"title": "double", "version": "1"}, "paths": paths}
