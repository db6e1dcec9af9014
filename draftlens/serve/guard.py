"""What every request passes first: the server's name, the key, the end of the server, the log."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import logging
import re
import socket
import time
import uuid
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftlens.serve.errors import ApiError
from draftlens.serve.metrics import Metrics
from draftlens.serve.options import ServeOptions

POLICY_VIOLATION = 1008
"""Why a web socket is closed, by RFC 6455."""

_OWN_NAMES = ("localhost", socket.gethostname().lower())

_log = logging.getLogger("draftlens.serve")

MOST_FAILED = 10
"""Lines of the log in a second about requests that failed; of the others, only their number."""


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
        self._failed_second = 0
        self._num_failed = 0
        self._num_omitted = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # such as a web socket, which no path here takes
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        headers = Headers(scope=scope)
        path: str = scope["path"]
        began = time.perf_counter()
        log = {"id": _request_id(headers), "method": scope["method"][:20], "path": path[:80]}
        status = 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                response_headers = MutableHeaders(scope=message)
                response_headers["X-Request-Id"] = log["id"]
                response_headers["X-Content-Type-Options"] = "nosniff"
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
                self._note({**log, "status": status, "request_seconds": seconds})

    def _note(self, line: dict[str, Any]) -> None:
        """Log a request, unless too many have failed in this second."""
        if line["status"] >= 400:
            second = int(time.monotonic())
            if second != self._failed_second:
                self._failed_second, self._num_failed = second, 0
            self._num_failed += 1
            if self._num_failed > MOST_FAILED:
                self._num_omitted += 1
                return
        if self._num_omitted:
            line["omitted"], self._num_omitted = self._num_omitted, 0
        _log.info(json.dumps(line))

    def _refusal(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """The response to a request that goes no further."""
        name = headers.get("host", "").rpartition("@")[2]
        if not self._has_name(re.sub(r":\d*$", "", name).lower()):
            cause = "this server has another name: use its IP address, or give it an API key"
            return ApiError(400, cause).response()
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

    def _has_name(self, name: str) -> bool:
        """Whether a request may call the server by this name. Without keys, a page of another site
        could otherwise reach it under a name of its own (DNS rebinding)."""
        if self._hosts:
            return name in self._hosts
        if self._keys or name in ("", *_OWN_NAMES):
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True

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
