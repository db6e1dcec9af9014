"""What every request passes first: the server's name, the key, the end of the server, the log."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import re
import time
import uuid
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftlens.serve.errors import ApiError
from draftlens.serve.metrics import Metrics
from draftlens.serve.options import ServeOptions

_log = logging.getLogger("draftlens.serve")


@dataclass
class ServerState:
    """Whether the server answers.

    Attributes:
        warm: a first request has been answered.
        closing: new requests are refused.
        num_open: requests whose answers have not ended.
    """

    warm: bool = False
    closing: bool = False
    num_open: int = 0


class Guard:
    """Refuses requests without a key, and logs the others without what they say."""

    def __init__(
        self, app: ASGIApp, state: ServerState, options: ServeOptions, metrics: Metrics
    ) -> None:
        self._app = app
        self._state = state
        self._hosts = options.hosts
        self._keys = [_digest(key) for key in options.api_keys]
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path: str = scope["path"]
        began = time.perf_counter()
        log = {"id": _request_id(headers), "method": scope["method"], "path": path[:80]}
        status = 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = log["id"]
            await send(message)

        scope.setdefault("state", {})["log"] = log
        refusal = None if path == "/health" else self._refusal(scope, headers)
        answers = scope["method"] == "POST"
        self._state.num_open += answers
        try:
            if refusal is None:
                await self._app(scope, receive, send_noted)
            else:
                await refusal(scope, receive, send_noted)
        finally:
            self._state.num_open -= answers
            self._metrics.count_request(status)
            if path != "/health" and (answers or status >= 400):
                seconds = round(time.perf_counter() - began, 4)
                _log.info(json.dumps({**log, "status": status, "request_seconds": seconds}))

    def _refusal(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """The response to a request that goes no further."""
        name = headers.get("host", "").rpartition("@")[2]
        name = re.sub(r":\d*$", "", name).lower()
        if self._hosts and name not in self._hosts:
            return ApiError(400, "this server has another name").response()
        client = self._client(headers)
        if client is None:
            # A browser asks its user for the key, as the password of any name.
            page = "text/html" in headers.get("accept", "")
            ways = {"WWW-Authenticate": 'Basic realm="draftlens"' if page else "Bearer"}
            error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
            return error.response(ways)
        scope["state"]["client"] = client
        if self._state.closing and scope["method"] == "POST":
            return ApiError(503, "the server is closing", code="closing").response()
        return None

    def _client(self, headers: Headers) -> str | None:
        """A name for the key of a request, which does not tell the key; empty without keys, None if
        the key is wrong."""
        if not self._keys:
            return ""
        digest = _digest(_key_of(headers.get("authorization", "")))
        matches = [hmac.compare_digest(digest, key) for key in self._keys]
        return digest.hex() if any(matches) else None


def _digest(key: str) -> bytes:
    """Of one length, so that a comparison takes the same time for every key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _key_of(authorization: str) -> str:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""


def _request_id(headers: Headers) -> str:
    request_id = headers.get("x-request-id", "")
    return request_id if re.fullmatch(r"[\w.-]{1,64}", request_id, re.ASCII) else uuid.uuid4().hex
