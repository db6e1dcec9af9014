"""Spans of OpenTelemetry for requests, by the semantic conventions for generative AI."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftlens.core.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
}
"""Of the paths that are traced."""

ASKED: Mapping[str, str] = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "length": "gen_ai.request.max_tokens",
    "stop": "gen_ai.request.stop_sequences",
}
"""Fields of a request, and their attributes."""

ANSWERED: Mapping[str, str] = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "draft_tokens": "draftlens.draft_tokens",
    "accepted_tokens": "draftlens.accepted_tokens",
    "lossless": "draftlens.lossless",
    "error": "error.type",
}
"""Words of the log's line, and their attributes."""

SECONDS: Mapping[str, str] = {
    "waiting": "gen_ai.latency.time_in_queue",
    "first_token": "gen_ai.latency.time_to_first_token",
    "total": "gen_ai.latency.e2e",
}
"""Seconds in the log's line, and vLLM's attributes for them."""


def add_tracing(app: FastAPI, model: str) -> None:
    """Add a layer that makes spans, if this process has a provider of them."""
    tracer = configured_tracer()
    if tracer is not None:
        app.add_middleware(Tracing, tracer=tracer, model=model)  # type: ignore[arg-type]


def configured_tracer() -> Tracer | None:
    """A tracer, if this process has a provider of spans, as with `opentelemetry-instrument`. The
    package is not imported for it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    tracer: Tracer = trace.get_tracer("draftlens", __version__)
    return tracer


class Tracing:
    """Makes a span of each request that is answered, from its body to the last token."""

    def __init__(self, app: ASGIApp, tracer: Tracer, model: str) -> None:
        self._app = app
        self._tracer = tracer
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = OPERATIONS.get(scope.get("path", "")) if scope["type"] == "http" else None
        if operation is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind, StatusCode, get_current_span

        status = 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        # Some versions of FastAPI have begun a span of their own.
        has_span = get_current_span().get_span_context().is_valid
        caller = None if has_span else propagate.extract(dict(Headers(scope=scope)))
        with self._tracer.start_as_current_span(operation, caller, SpanKind.SERVER) as span:
            try:
                await self._app(scope, receive, send_noted)
            finally:
                body = scope["state"].get("body")
                model = getattr(body, "model", None) or self._model
                span.update_name(f"{operation} {model}")
                span.set_attributes(
                    {
                        "gen_ai.operation.name": operation,
                        "gen_ai.provider.name": "draftlens",
                        "gen_ai.request.model": model,
                        "gen_ai.response.model": model,
                        "http.response.status_code": status,
                        **dict(_attributes(scope["state"])),
                    }
                )
                if status >= 500:
                    span.set_status(StatusCode.ERROR)


def _attributes(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is known of a request when it has ended; no text of it."""
    body, log = state.get("body"), state["log"]
    known = {
        **{attribute: getattr(body, name, None) for name, attribute in ASKED.items()},
        **{attribute: log.get(name) for name, attribute in ANSWERED.items()},
        **{attribute: log.get("seconds", {}).get(name) for name, attribute in SECONDS.items()},
    }
    if body is not None and body.n > 1:
        known["gen_ai.request.choice.count"] = body.n
    for attribute, value in known.items():
        if value not in (None, []):
            yield attribute, value
