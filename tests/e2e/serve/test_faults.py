"""Clients that hang up or do not read."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import httpx
import psutil
import pytest

import draftlens
from draftlens.scheduling import SchedulerLimits
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
