"""Clients that hang up or do not read."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

import draftlens
from draftlens.scheduling import SchedulerLimits
from draftlens.serve import run
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import CHATS, WAIT, Running, ask, serving, until

LONG = {"max_tokens": 400, "repetition_penalty": 1.3, "stop": ["@@"]}
"""An answer that goes on for long."""


def post(url: str, body: dict[str, Any]) -> bytes:
    """A request as it is written to a socket."""
    content = json.dumps(body).encode()
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: {url.removeprefix('http://')}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "\r\n",
    )
    return "\r\n".join(lines).encode() + content


def connected(url: str, buffer: int | None = None) -> socket.socket:
    client = socket.socket()
    if buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    host, port = url.removeprefix("http://").split(":")
    client.settimeout(WAIT)
    client.connect((host, int(port)))
    return client


def said_to(client: socket.socket) -> bytes:
    """All that the server says before it ends the connection."""
    said = b""
    with suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            said += part
    return said


@pytest.fixture(scope="module")
def impatient(engine: draftlens.Engine) -> Iterator[Running]:
    """A server that waits for a second only."""
    options = ServeOptions(api_keys=("key",), body_seconds=1.0)
    with serving(engine, options, head_seconds=1.0) as running:
        yield running


@pytest.mark.parametrize(
    "beginning", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nX-A: b\r\n"]
)
def test_heads_that_do_not_come(impatient: Running, beginning: bytes) -> None:
    with connected(impatient.url) as client:
        client.sendall(beginning)
        assert said_to(client) == b""


def test_heads_that_come_byte_by_byte(impatient: Running) -> None:
    with connected(impatient.url) as client:
        num_sent = 0
        with suppress(ConnectionError):
            for byte in b"GET /health HTTP/1.1\r\nX-A: " + b"b" * 1000:
                client.sendall(bytes([byte]))
                num_sent += 1
                time.sleep(0.02)
        assert num_sent < 500


def test_bodies_that_do_not_come(impatient: Running) -> None:
    """One that has the key gets status 408; what one without it sends is not read."""
    head = post(impatient.url, {"messages": CHATS["words"]}).partition(b"\r\n\r\n")[0]
    for header, status in ((b"", b"401"), (b"\r\nAuthorization: Bearer key", b"408")):
        with connected(impatient.url) as client:
            client.sendall(head + header + b'\r\n\r\n{"mess')
            assert said_to(client).startswith(b"HTTP/1.1 " + status)
    until(lambda: is_idle(impatient))


def test_more_connections_than_a_server_takes(
    engine: draftlens.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent one makes room for each new one, and requests are answered."""
    monkeypatch.setattr(run, "MOST_CONNECTIONS", 20)
    with serving(engine, ServeOptions()) as server, ExitStack() as stack:
        stream = ask(server.client(), "words", stream=True, max_tokens=300)
        next(iter(stream))
        for _ in range(100):
            stack.enter_context(connected(server.url)).sendall(b"GET /hea")
            assert len(server.connections) <= 21
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert list(stream)[-1].choices[0].finish_reason in ("stop", "length")


def test_a_server_without_descriptors_does_not_fill_the_log(
    engine: draftlens.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(engine, ServeOptions()) as server:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.socket()) for _ in range(50)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            host, port = server.url.removeprefix("http://").split(":")
            try:
                for client in clients:
                    client.connect((host, int(port)))
                time.sleep(2.5)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in lines] == [
        "connections cannot be taken: Too many open files"
    ]


def test_a_socket_that_is_closed_after_a_shortage_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio listens to it again a second later; other errors of callbacks are logged."""
    loop: Any = asyncio.new_event_loop()
    server = SimpleNamespace(_noted_shortage=0.0)
    loop.set_exception_handler(partial(run.DrainingServer._note_error, server))
    closed = socket.socket()
    closed.close()
    loop.call_soon(loop._start_serving, asyncio.Protocol, closed)
    loop.call_soon(int, "no number")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no number" in line


def test_a_path_in_the_name_of_the_server(impatient: Running) -> None:
    """CVE-2026-48710 and CVE-2026-48746: such a `Host` moved the path past the check of keys."""
    for host in (b"x/health?", b"x/health#", b"127.0.0.1/health?", b"x@y/health", b"/health"):
        for target in (b"/v1/models", b"http://x/health", b"//health", b"/health/../v1/models"):
            with connected(impatient.url) as client:
                lines = b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
                client.sendall(lines % (target, host))
                assert said_to(client).startswith((b"HTTP/1.1 401", b"HTTP/1.1 400"))


def is_idle(server: Running) -> bool:
    return not (server.scheduler.num_rows or server.scheduler.num_waiting or server.state.num_open)


def test_hanging_up_frees_the_row(server: Running) -> None:
    url = f"{server.url}/v1/chat/completions"
    body = {"messages": CHATS["picture"], **LONG}
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=WAIT) as response:
        next(response.iter_lines())
        assert server.scheduler.num_rows == 1
    until(lambda: is_idle(server))
    with pytest.raises(httpx.TimeoutException):
        httpx.post(url, json=body, timeout=0.05)
    until(lambda: is_idle(server))


def test_hang_ups_leave_nothing(server: Running) -> None:
    """Twenty clients that go in the request, before the first token or after some of them."""
    process = psutil.Process()
    chance = random.Random(3)
    both = {"messages": CHATS["two pictures"], "max_tokens": 2}
    server.post(json=both)  # starts the readers of media
    threads, descriptors = process.num_threads(), process.num_fds()
    for number in range(20):
        name = chance.choice(sorted(CHATS))
        request = post(server.url, {"messages": CHATS[name], "stream": number % 3 > 0, **LONG})
        with connected(server.url) as client:
            if number % 5 == 0:
                client.sendall(request[: chance.randrange(len(request))])
                continue
            client.sendall(request)
            for _ in range(chance.randrange(3) if number % 3 else 0):
                client.recv(200)
    until(lambda: is_idle(server))
    few = 2  # of a reader of media that has started meanwhile
    until(lambda: process.num_threads() <= threads + few)
    until(lambda: process.num_fds() <= descriptors + few)


def test_a_client_that_does_not_read(engine: draftlens.Engine) -> None:
    """Others get their answers meanwhile, and its connection ends."""
    options = ServeOptions(batch=SchedulerLimits(max_rows=8))
    body = {"messages": CHATS["words"], "stream": True, "n": 6, **LONG}
    with serving(engine, options, send_seconds=1.0) as server:
        with connected(server.url, buffer=4096) as client:
            client.sendall(post(server.url, body))
            until(lambda: server.scheduler.num_rows == 6)
            assert ask(server.client(), "picture", max_tokens=3).choices
            until(lambda: server.scheduler.num_rows == 0)
            until(lambda: is_idle(server))
        assert ask(server.client(), "words", max_tokens=3).choices
