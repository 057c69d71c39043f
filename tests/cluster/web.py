"""A web server of one folder, with faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Asked:
    """What was asked for, and what goes wrong next: a status, or `torn`."""

    paths: list[str] = field(default_factory=list)
    faults: list[int | str] = field(default_factory=list)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, Asked]]:
    """Its address, and what it was asked for."""
    asked = Asked()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked.paths.append(self.path)
            content = (folder / urlsplit(self.path).path.lstrip("/")).read_bytes()
            fault = asked.faults.pop(0) if asked.faults else None
            self.send_response(fault if isinstance(fault, int) else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if fault == "torn" else content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
