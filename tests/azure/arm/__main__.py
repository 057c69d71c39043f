"""`python -m tests.azure.arm CONFIG`: serve the simulator until SIGTERM; the first line says where, as JSON."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tests.azure.arm import control
from tests.azure.arm.contract import Contract
from tests.azure.arm.refusals import arm_error
from tests.azure.arm.simulator import Simulator
from tests.azure.arm.wire import Listening

Serving = Callable[[Request], Awaitable[Response]]
METHODS = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"]


async def main(config: dict[str, str]) -> None:
    """Serve ARM over https and http, and the Blob proxy over https."""
    certificate, key = Path(config["certificate"]), Path(config["key"])
    keys = json.loads(config["keys"])
    folder = Path(config["folder"])
    world = Simulator(Contract(Path(config["contracts"])), folder, config["azurite"], keys, certificate)
    https, http, blob = Listening("https"), Listening("http"), Listening("https")
    world.arm, world.blob_url = https.url, blob.url
    serving = [
        asyncio.create_task(https.serve(arm_app(world), certificate, key)),
        asyncio.create_task(http.serve(arm_app(world), certificate, key)),
        asyncio.create_task(blob.serve(blob_app(world), certificate, key)),
    ]
    while not all(one.server is not None and one.server.started for one in (https, http, blob)):
        await asyncio.sleep(0.01)
    print(json.dumps({"arm": https.url, "arm_http": http.url, "blob": blob.url}), flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await asyncio.to_thread(world.runner.stop)
    for listening in (https, http, blob):
        assert listening.server is not None
        listening.server.should_exit = True
    await asyncio.gather(*serving)
    await world.blob.close()


def guarded(world: Simulator, serve: Serving) -> Serving:
    """`serve`, whose own faults fail the test that met them."""

    async def call(request: Request) -> Response:
        try:
            return await serve(request)
        except Exception:  # noqa: BLE001 (whatever it is, the test must hear of it)
            world.violations.append(f"{request.method} {request.url.path}: {traceback.format_exc()}")
            return JSONResponse(arm_error("SimulatorBroken", traceback.format_exc()), 500)

    return call


def arm_app(world: Simulator) -> ASGIApp:
    """ARM, run history, signed logs and the control interface."""

    async def order(request: Request) -> Response:
        return await control.serve(world, request)

    return Starlette(
        routes=[
            Route("/_control/{verb}", order, methods=["POST"]),
            Route("/{path:path}", guarded(world, world.serve), methods=METHODS),
        ]
    )


def blob_app(world: Simulator) -> ASGIApp:
    """The Blob proxy."""
    return Starlette(routes=[Route("/{path:path}", guarded(world, world.blob.serve), methods=METHODS)])


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
