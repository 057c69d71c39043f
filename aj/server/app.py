"""The daemon as an ASGI application: a value made of its life and its routes, with every error in JSON."""

from __future__ import annotations

from starlette.applications import Starlette  # noqa: TID253
from starlette.exceptions import HTTPException  # noqa: TID253
from starlette.requests import Request  # noqa: TID253
from starlette.responses import Response  # noqa: TID253

from aj.server.boundary import internal
from aj.server.life import Life
from aj.server.routes import ROUTES, refusal
from aj.shared.errors import AjError, NotFoundError, RequestError


def create_app(life: Life) -> Starlette:
    """The application of one daemon; `life` has its contexts, and they their workshop."""
    app = Starlette(
        routes=ROUTES,
        exception_handlers={AjError: _aj_error, HTTPException: _http_error, Exception: _fault},
    )
    app.state.life = life
    return app


async def _aj_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AjError)
    return refusal(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return refusal(NotFoundError(f"no route `{what}`", hint="`schemas/openapi.yaml` lists them"))
    return refusal(RequestError(f"`{what}`: {error.detail}"), error.status_code)


async def _fault(_: Request, error: Exception) -> Response:
    return refusal(internal(error))
