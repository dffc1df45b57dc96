"""The application: one table of route families, behind one guard."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from localllm import __version__
from localllm.errors import LocalLLMError
from localllm.server import errors, watchdog
from localllm.server.errors import RequestError
from localllm.server.lanes import ClientLeftError
from localllm.server.manager import Manager
from localllm.server.request_log import LoopFaults, Recorded
from localllm.server.routes import chat, completions, control, models, operations, session, tokens
from localllm.server.security import Access, Guard
from localllm.server.state import ServerState

FAMILIES = (
    chat.router,
    completions.router,
    models.router,
    tokens.router,
    operations.router,
    control.router,
    session.router,
)

log = logging.getLogger("localllm.server")


def build(models: Manager, access: Access, *, strict: bool = False) -> FastAPI:
    """The application over some models. It closes them when it ends."""
    state = ServerState(models, strict)
    models.unloading = state.metrics.unloaded

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(LoopFaults())
        await models.open()
        watching = asyncio.ensure_future(watchdog.watch(models.states))
        yield
        watching.cancel()
        state.lanes.close()
        await models.close()

    app = FastAPI(
        title="localllm",
        version=__version__,
        docs_url=None,  # FastAPI's own page loads from elsewhere: routes/operations has ours
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.server = state
    for router in FAMILIES:
        app.include_router(router)
    app.add_exception_handler(LocalLLMError, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(Exception, _fault)
    routes = [route for family in FAMILIES for route in family.routes if isinstance(route, Route)]
    app.add_middleware(Guard, access=access)
    # The outermost: added last.
    app.add_middleware(Recorded, metrics=state.metrics, access=access, routes=routes)
    return app


async def _refused(http: HttpRequest, error: Exception) -> Response:
    kind = errors.kind_of(error)
    http.state.error = kind.code
    is_refusal = isinstance(error, RequestError)  # as /health's, which is asked again and again
    if isinstance(error, ClientLeftError):
        http.app.state.server.metrics.disconnects += 1
    if kind.status >= 500 and isinstance(error, LocalLLMError) and not is_refusal:
        log.error("%s", error)
    return Response(
        errors.body(error), kind.status, errors.headers(error), media_type="application/json"
    )


async def _no_route(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{http.method} {http.url.path[:200]!a}"
    refusal = RequestError(
        f"there is no {what} here" if error.status_code == 404 else f"{what}: {error.detail}",
        "GET /docs lists what there is.",
        code="not_found" if error.status_code == 404 else "bad_request",
        status=error.status_code,
        headers=error.headers,
    )
    return await _refused(http, refusal)


async def _not_valid(http: HttpRequest, error: Exception) -> Response:
    return await _refused(http, RequestError("the address is not valid", code="bad_request"))


async def _fault(http: HttpRequest, error: Exception) -> Response:
    log.error("a fault in %s", http.url.path[:200], exc_info=error)
    return await _refused(http, error)
