"""What the server shows beside answers: its page, its state, its figures and its model."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse, JSONResponse, Response

from draftlens.core.version import __version__
from draftlens.models.known_pairs import EMBEDDED
from draftlens.serve.answering import Answering
from draftlens.serve.errors import ApiError
from draftlens.serve.guard import ServerState
from draftlens.serve.metrics import Metrics


def add_pages(
    app: FastAPI, answerings: Mapping[str, Answering], state: ServerState, metrics: Metrics
) -> None:
    created = int(time.time())
    cards = {name: _card(answering, created) for name, answering in answerings.items()}
    page = (files("draftlens.serve") / "page.html").read_text(encoding="utf-8")
    page_headers = {"Content-Security-Policy": _policy_of(page), "Referrer-Policy": "no-referrer"}

    @app.get("/", response_class=HTMLResponse)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers=page_headers)

    @app.get("/health")
    async def health() -> Response:
        alive = all(answering.scheduler.alive for answering in answerings.values())
        if state.closing or not state.warm or not alive:
            return ApiError(503, "the server does not answer now", code="not_ready").response()
        return JSONResponse({"status": "ok"})

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": list(cards.values())}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name not in cards:
            raise ApiError(404, "there is no such model here", "model", "model_not_found")
        return cards[name]


def _card(answering: Answering, created: int) -> dict[str, Any]:
    engine = answering.engine
    return {
        "id": answering.model,
        "object": "model",
        "created": created,
        "owned_by": "draftlens",
        "max_model_len": answering.max_positions,
        "draftlens": {
            "draft": None if engine.draft is None else engine.draft.name,
            "modalities": sorted(engine.target.backbone.modalities),
            "embedded": engine.target.name == EMBEDDED,
            "max_new_tokens": answering.options.max_new_tokens,
        },
    }


def _policy_of(page: str) -> str:
    """The Content-Security-Policy of a page, which runs its own script and style only."""

    def own(tag: str) -> str:
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{own('script')}'; "
        f"style-src 'sha256-{own('style')}'; img-src data: blob:; media-src data: blob:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
