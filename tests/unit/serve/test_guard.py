"""What every request passes first."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import draftlens
from draftlens.media import Limits
from draftlens.serve.guard import MOST_FAILED, Guard, ServerState
from draftlens.serve.options import ServeOptions


class Figures:
    """In place of `Metrics`."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def count_request(self, status: int) -> None:
        self.statuses.append(status)


def answered(
    options: ServeOptions,
    state: ServerState,
    path: str = "/v1/models",
    method: str = "GET",
    **headers: str,
) -> dict[str, Any]:
    """The start of the response; the application's own has status 200."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["state"]["log"]["path"] == path
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    figures = Figures()
    guard = Guard(app, state, options, figures)  # type: ignore[arg-type]
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": given}
    asyncio.run(guard(scope, receive, send))
    assert figures.statuses == [sent[0]["status"]]
    assert state.num_open == 0
    return sent[0]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer one", 200),
        ("bearer  two", 200),
        ("Basic eDp0d28=", 200),  # x:two
        ("Bearer One", 401),
        ("Bearer", 401),
        ("Basic !", 401),
        ("Digest one", 401),
        ("", 401),
    ],
)
def test_keys(header: str, status: int) -> None:
    options = ServeOptions(api_keys=("one", "two"))
    assert answered(options, ServerState(), authorization=header)["status"] == status
    assert answered(options, ServerState(), path="/health")["status"] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("[::1]:8000", 200), ("LOCALHOST", 200), ("evil.example", 400)],
)
def test_names_of_the_server(host: str, status: int) -> None:
    options = ServeOptions(hosts=("localhost", "[::1]"))
    assert answered(options, ServerState(), host=host)["status"] == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("192.168.1.5:8000", 200),
        ("[fd00::5]:8000", 200),
        (socket.gethostname(), 200),
        ("evil.example:8000", 400),
        ("127.0.0.1.evil.example", 400),
        ("127.0.0.1@evil.example", 400),
        ("[evil.example]", 400),
    ],
)
def test_names_of_a_server_without_keys(host: str, status: int) -> None:
    """Whatever it listens on: a page of another site has that site's name."""
    assert answered(ServeOptions(), ServerState(), host=host)["status"] == status
    key = {"host": host, "authorization": "Bearer one"}
    assert answered(ServeOptions(api_keys=("one",)), ServerState(), **key)["status"] == 200


def test_headers_of_every_response() -> None:
    for options in (ServeOptions(), ServeOptions(api_keys=("one",))):
        headers = dict(answered(options, ServerState())["headers"])
        assert headers[b"x-content-type-options"] == b"nosniff"


@pytest.mark.parametrize("kind", ["websocket", "webtransport"])
def test_what_is_not_http_is_refused(kind: str) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    guard = Guard(app, ServerState(), ServeOptions(), Figures())  # type: ignore[arg-type]
    asyncio.run(guard({"type": kind, "path": "/", "headers": []}, app, send))  # type: ignore[arg-type]
    expected = [{"type": "websocket.close", "code": 1008}] if kind == "websocket" else []
    assert sent == expected


def test_the_log_of_refused_requests_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand requests without the key in one second; the next line counts those left out."""
    clock = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    caplog.set_level(logging.INFO, "draftlens.serve")
    figures = Figures()

    async def nothing(*_: Any) -> None:
        pass

    options = ServeOptions(api_keys=("one",))
    guard = Guard(nothing, ServerState(), options, figures)  # type: ignore[arg-type]
    scope = {"type": "http", "path": "/" + "x" * 9999, "method": "G" * 9999, "headers": []}

    async def refuse(number: int) -> None:
        for _ in range(number):
            await guard(dict(scope), nothing, nothing)  # type: ignore[arg-type]

    asyncio.run(refuse(1000))
    assert figures.statuses == [401] * 1000
    assert len(caplog.messages) == MOST_FAILED
    clock[0] += 1
    asyncio.run(refuse(2))
    lines = [json.loads(line) for line in caplog.messages]
    assert [line.get("omitted") for line in lines[MOST_FAILED:]] == [1000 - MOST_FAILED, None]
    assert max(map(len, caplog.messages)) < 300


def test_a_server_that_closes() -> None:
    closing = ServerState(closing=True)
    assert answered(ServeOptions(), closing, method="POST")["status"] == 503
    assert answered(ServeOptions(), closing, path="/metrics")["status"] == 200


def test_ids_of_requests() -> None:
    def identity(**headers: str) -> bytes:
        return dict(answered(ServeOptions(), ServerState(), **headers)["headers"])[b"x-request-id"]

    assert identity(x_request_id="mine-1") == b"mine-1"
    assert identity(x_request_id="a b\tc") != b"a b\tc"
    assert identity() != identity()


def test_the_default_limits_read_public_hosts_of_a_list_only() -> None:
    limits = ServeOptions().limits
    assert limits.hosts == ()
    assert not limits.private_addresses
    assert limits.common_formats
    assert limits.max_output_bytes < Limits().max_output_bytes


def test_no_module_on_the_way_of_a_request_unpickles() -> None:
    """But for the process that decodes, which gets its requests from the server."""
    root = Path(draftlens.__file__).parent
    found = [
        (path.name, word)
        for folder in ("serve", "media", "documents")
        for path in sorted((root / folder).rglob("*.py"))
        for word in re.findall(
            r"import pickle|pickle\.load|torch\.load|marshal|shelve|\.recv\(\)", path.read_text()
        )
    ]
    assert found == [("reader.py", ".recv()")]
