"""GET /health, /metrics and /docs: for those who run the server."""

from __future__ import annotations

import html
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse

from localllm.server import metrics, watchdog
from localllm.server.errors import RequestError
from localllm.server.schema import fields
from localllm.server.state import state_of

router = APIRouter()


@router.get("/", include_in_schema=False)
async def root(http: HttpRequest) -> RedirectResponse:
    return RedirectResponse("/docs")


@router.head("/health", include_in_schema=False)
@router.get("/health", summary="200 while the engine makes progress.")
@router.get("/v1/health", include_in_schema=False)
async def health(http: HttpRequest) -> dict[str, str]:
    if found := watchdog.stuck(state_of(http).models.states()):
        what = ", ".join(f"{name} for {seconds:.1f} s" for name, seconds in found.items())
        raise RequestError(
            f"no progress, though there is work: {what}",
            code="stalled",
            status=503,
            type="server_error",
        )
    return {"status": "ok"}


@router.get("/metrics", summary="Figures for Prometheus.", response_class=PlainTextResponse)
async def page(http: HttpRequest) -> PlainTextResponse:
    state = state_of(http)
    text = state.metrics.page(state.models.states())
    return PlainTextResponse(text, media_type=metrics.CONTENT_TYPE)


_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.2em .8em;"
    "border-bottom:1px solid #ccc;vertical-align:top}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@router.get("/docs", include_in_schema=False)
async def docs(http: HttpRequest) -> HTMLResponse:
    """A page that loads nothing from anywhere."""
    parts = ["<h1>localllm</h1><p>The description for programs: <a href='/openapi.json'>", ""]
    parts[1] = "openapi.json</a></p><h2>Routes</h2>"
    rows = [
        (method.upper(), path, operation.get("summary", ""))
        for path, operations in http.app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    parts.append(_table(("Method", "Path", ""), rows))
    for path, table in (
        ("/v1/chat/completions", fields.CHAT),
        ("/v1/completions", fields.COMPLETIONS),
    ):
        parts.append(f"<h2>Fields of {path}</h2>")
        ordered = sorted(table.values(), key=lambda row: _ORDER.index(row.effect))
        parts.append(_table(("Field", "Here", ""), [(r.name, r.effect, r.note) for r in ordered]))
    page = f"<!doctype html><meta charset=utf-8><title>localllm</title><style>{_STYLE}</style>"
    headers = {"content-security-policy": _POLICY, "x-frame-options": "DENY"}
    return HTMLResponse(page + "".join(parts), headers=headers)


_ORDER = (fields.ACTED, fields.WITHOUT_EFFECT, fields.REFUSED)


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(each, 'td') for each in rows)}</table>"
