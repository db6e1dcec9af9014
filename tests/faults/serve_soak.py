"""A server under thousands of requests of 64 clients, and what they leave behind.

    python -m tests.faults.serve_soak --requests 10000 --compare 2000
    python -m tests.faults.serve_soak --siege

First come requests until so many answers are compared: greedy ones, whole, streamed or up to a stop
text, with those of stock `generate`, and seeded ones with those that they have alone, all among
clients that leave. The other requests are short, and many of them are malformed, have pictures that
are none, or come from clients that leave or never read, while processes that decode media are
killed. At the end come more requests at once than may wait. Rows, threads, descriptors, processes
and objects of an answer must be what they were after the first part.

`--siege` runs another part instead: 300 connections that send a head byte by byte, 100 kills of
decoders, 1,000 streams and 500 odd requests at the same time, beside clients whose answers are
compared. Descriptors, threads, rows and temporary files must be what they were before, and the log
must stay short.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, product, takewhile
from pathlib import Path
from typing import Any

import httpx
import torch

import draftlens
from draftlens.scheduling import SchedulerLimits
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import CHATS, Running, data_url, image, png, said, serving, text, until
from tests.faults.soak import Held

CLIENTS = 64
ROWS = 16
PATH = "/v1/chat/completions"
LONGEST = 24
LONG = {"max_tokens": 60, "repetition_penalty": 1.3, "stream": True}
PROMPTS = {
    **CHATS,
    **{
        f"picture {seed}": said(image(data_url(png(seed=seed), "image/png")), text("What is it?"))
        for seed in range(6)
    },
}
SEEDS = range(4)
NUM_SLOW = 8
"""Clients that send a request and read nothing."""

SEND_SECONDS = 5.0
HEAD_SECONDS = 5.0

NUM_SILENT, NUM_STREAMS, NUM_ODD, NUM_NEIGHBOURS = 300, 1000, 500, 4
STREAMS_A_KILL = 10
MOST_LOG = 2_000_000
"""Bytes of the log of a siege."""

ODD = (
    b"GET /v1/models HTTP/1.1\r\nHost: x/health?\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET http://x/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x--\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 5\r\nContent-Type: application/json\r\n\r\nffffffffff\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"G" * 100_000,
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
    b"GET /%00/..%2f..%2fetc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
)


@dataclass
class Load:
    """The requests of all clients, and what became of them.

    Attributes:
        num_lost: answers to good requests that are an error, since a decoding process was killed.
    """

    engine: draftlens.Engine
    server: Running
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    seeded: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    num_compared: int = 0
    num_different: int = 0
    num_kills: int = 0
    num_lost: int = 0

    def __post_init__(self) -> None:
        self.expected = {name: self._by_stock(name) for name in PROMPTS}

    def _by_stock(self, name: str) -> list[str]:
        """The text of the answer after each number of tokens."""
        inputs = self.engine.read(messages=PROMPTS[name]).target
        model = self.engine.target.backbone.model
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=LONGEST)
        tokens = ids[0, inputs["input_ids"].shape[1] :].tolist()
        decode = self.engine.target.processor.tokenizer.decode
        return [decode(tokens[:end], skip_special_tokens=True) for end in range(LONGEST + 1)]

    async def draw_alone(self) -> None:
        """The seeded answers, one after the other."""
        async with self._client() as http:
            for name, seed in product(CHATS, SEEDS):
                self.seeded[name, seed] = await self._post(http, _drawn(name, seed))

    async def compare(self, answers: int) -> int:
        """Send requests until so many answers are compared; returns their number."""
        return await self._send(
            self._exact, takewhile(lambda _: self.num_compared < answers, count())
        )

    async def strain(self, requests: int, kills: int) -> None:
        every = max(requests // kills, 1) if kills else requests + 1

        async def one(http: httpx.AsyncClient, number: int) -> None:
            if number % every == every - 1:
                self._kill()
            await self._faulty(http, number)

        with self._slow_clients():
            await self._send(one, iter(range(requests)))

    async def overfill(self) -> Counter[int]:
        """The statuses of more requests at once than may wait."""
        statuses: Counter[int] = Counter()
        async with self._client(httpx.Limits(max_connections=None)) as http:

            async def one() -> None:
                body = {"messages": PROMPTS["words"], "max_tokens": 8}
                statuses[(await http.post(PATH, json=body)).status_code] += 1

            await asyncio.gather(*(one() for _ in range(4 * CLIENTS)))
        return statuses

    async def _send(
        self, one: Callable[[httpx.AsyncClient, int], Awaitable[None]], numbers: Iterator[int]
    ) -> int:
        """One request of a client after the other; returns their number."""
        num_sent = 0

        async def client() -> None:
            nonlocal num_sent
            async with self._client() as http:
                for number in numbers:  # shared: each takes the next one
                    num_sent += 1
                    await one(http, number)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return num_sent

    def _client(self, limits: httpx.Limits | None = None) -> httpx.AsyncClient:
        limits = limits or httpx.Limits()
        return httpx.AsyncClient(base_url=self.server.url, timeout=300, limits=limits)

    async def _exact(self, http: httpx.AsyncClient, number: int) -> None:
        """A request whose answer is compared, or a client that leaves."""
        name = self.chance.choice(sorted(PROMPTS))
        length = self.chance.randint(1, LONGEST)
        body: dict[str, Any] = {"messages": PROMPTS[name], "max_tokens": length}
        match number % 8:
            case 0:
                await self._leave(http, {"messages": PROMPTS[name], **LONG})
            case 1 | 2:
                name, seed = self.chance.choice(sorted(self.seeded))
                texts = await self._post(http, _drawn(name, seed))
                self._check("seeded", texts, self.seeded[name, seed])
            case 3:
                stop = " ".join(self.expected[name][length].split(" ")[-2:])
                expected = self.expected[name][LONGEST]
                if stop.strip():
                    body |= {"stop": stop, "max_tokens": LONGEST}
                    expected = expected[: expected.index(stop)]
                else:
                    expected = self.expected[name][length]
                self._check("stopped", await self._post(http, body), [expected])
            case 4 | 5:
                began = time.monotonic()
                texts = await self._post(http, body)
                self.seconds.append(time.monotonic() - began)
                self._check("greedy", texts, [self.expected[name][length]])
            case _:
                texts = [await self._stream(http, body)]
                self._check("streamed", texts, [self.expected[name][length]])

    async def _faulty(self, http: httpx.AsyncClient, number: int) -> None:
        """A short request, often one that fails."""
        name = self.chance.choice(sorted(PROMPTS))
        length = 1 + number % 4
        body: dict[str, Any] = {"messages": PROMPTS[name], "max_tokens": length}
        match number % 8:
            case 0:
                await self._leave(http, {"messages": PROMPTS[name], **LONG})
            case 1 | 2:
                self.kinds["malformed"] += 1
                await self._post(http, self._malformed(body))
            case 3:
                self.kinds["no picture"] += 1
                part = image(data_url(self.chance.randbytes(60), "image/png"))
                await self._post(http, {"messages": said(part)})
            case _:
                texts = await self._post(http, body)
                self._check("short", texts, [self.expected[name][length]])

    async def _post(self, http: httpx.AsyncClient, body: dict[str, Any] | str) -> list[str]:
        content = body if isinstance(body, str) else json.dumps(body)
        headers = {"content-type": "application/json"}
        response = await http.post(PATH, content=content, headers=headers)
        self.statuses[response.status_code] += 1
        choices = response.json().get("choices", [])
        return [choice["message"]["content"] for choice in choices]

    async def _stream(self, http: httpx.AsyncClient, body: dict[str, Any]) -> str:
        text = ""
        async with http.stream("POST", PATH, json={**body, "stream": True}) as response:
            self.statuses[response.status_code] += 1
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
        return text

    async def _leave(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        """Read a few lines of a stream."""
        self.kinds["left"] += 1
        async with http.stream("POST", PATH, json=body) as response:
            lines = response.aiter_lines()
            for _ in range(self.chance.randrange(4)):
                await anext(lines, None)  # an error has one line
        self.statuses[response.status_code] += 1

    def _malformed(self, body: dict[str, Any]) -> str:
        content = json.dumps(body | {"max_tokens": self.chance.choice([0, -1, "x", [], 2**70])})
        place = self.chance.randrange(len(content))
        return self.chance.choice([content, content[:place], content[:place] + "{" + content])

    def _check(self, kind: str, texts: Sequence[str], expected: Sequence[str]) -> None:
        if not texts:
            self.num_lost += 1
            return
        self.kinds[kind] += 1
        self.num_compared += 1
        self.num_different += texts != expected

    def _kill(self) -> None:
        """End one of the processes that decode media."""
        readers = self.server.app.state.answering.media._readers._all
        processes = [each._process for each in readers if each._process is not None]
        alive = [process for process in processes if process.poll() is None]
        if alive:
            self.chance.choice(alive).kill()
            self.num_kills += 1

    async def besiege(self, num_streams: int) -> None:
        """All at the same time; the neighbours ask until the others have ended."""
        silent = [asyncio.create_task(self._silent()) for _ in range(NUM_SILENT)]
        streams = asyncio.create_task(self._send(self._streamed, iter(range(num_streams))))
        odd = asyncio.create_task(self._send_odd())
        kills = asyncio.create_task(self._kill_often(num_streams // STREAMS_A_KILL))
        others = asyncio.gather(streams, odd, kills, *silent)
        async with self._client() as http:

            async def neighbour() -> None:
                while not others.done():
                    await self._exact(http, 4)

            await asyncio.gather(others, *(neighbour() for _ in range(NUM_NEIGHBOURS)))

    async def _streamed(self, http: httpx.AsyncClient, number: int) -> None:
        name = self.chance.choice(sorted(PROMPTS))
        length = 1 + number % LONGEST
        body = {"messages": PROMPTS[name], "max_tokens": length}
        expected = self.expected[name][length]
        text = await self._stream(http, body)
        # Without a text its decoder was killed, which is status 422.
        self._check("streamed", [text] if text or not expected else [], [expected])

    async def _silent(self) -> None:
        """A head that comes byte by byte until the server ends the connection."""
        with suppress(ConnectionError):
            _, writer = await asyncio.open_connection(*self._address())
            while True:
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.2)
        self.kinds["silent ones that were ended"] += 1

    async def _send_odd(self) -> None:
        for number in range(NUM_ODD):
            said = b""
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(*self._address())
                writer.write(ODD[number % len(ODD)])
                writer.write_eof()
                said = await asyncio.wait_for(reader.read(100), 60)
                writer.close()
            self.kinds[f"odd: {said[9:12].decode() or 'ended'}"] += 1

    async def _kill_often(self, kills: int) -> None:
        while self.num_kills < kills:
            await asyncio.sleep(self.chance.uniform(0.1, 0.5))
            self._kill()

    def _address(self) -> tuple[str, int]:
        host, port = self.server.url.removeprefix("http://").split(":")
        return host, int(port)

    @contextmanager
    def _slow_clients(self) -> Iterator[None]:
        content = json.dumps({"messages": PROMPTS["words"], **LONG, "max_tokens": 400}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        clients = []
        for _ in range(NUM_SLOW):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(self._address())
            client.sendall(request)
            clients.append(client)
        yield
        for client in clients:
            client.close()


def _drawn(name: str, seed: int) -> dict[str, Any]:
    sampling = {"temperature": 1.5, "seed": seed, "n": 1 + seed % 2, "max_tokens": 8}
    return {"messages": PROMPTS[name], **sampling}


def is_idle(server: Running) -> bool:
    return not (server.scheduler.num_rows or server.scheduler.num_waiting or server.state.num_open)


def siege(folder: Path, num_streams: int) -> int:
    """The part of `--siege`; returns the exit status."""
    log, temporary = folder / "log", folder / "temporary"
    temporary.mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
    logging.basicConfig(filename=log, level=logging.WARNING)
    logging.getLogger("draftlens.serve").setLevel(logging.INFO)
    engine = draftlens.load(device="cpu")
    batch = SchedulerLimits(max_rows=ROWS, max_waiting=2 * CLIENTS)
    options = ServeOptions(batch=batch, prompt_cache="20MB")
    with serving(engine, options, SEND_SECONDS, HEAD_SECONDS) as server:
        load = Load(engine, server)
        asyncio.run(load.draw_alone())
        asyncio.run(load.compare(20))
        until(lambda: is_idle(server) and not server.connections, 120.0)
        before, num_files = Held.now(), len(list(temporary.iterdir()))
        began = time.monotonic()
        asyncio.run(load.besiege(num_streams))
        took = time.monotonic() - began
        until(lambda: is_idle(server) and not server.connections, 120.0)
        asyncio.run(load.compare(load.num_compared + 20))  # starts decoders that were killed
        until(lambda: is_idle(server) and not server.connections, 120.0)
        after, left = Held.now(), len(list(temporary.iterdir())) - num_files
        rows = server.scheduler.num_rows
    remains = list(temporary.iterdir())
    size = log.stat().st_size
    grown = after.grown(before)
    print(f"{took:.0f} s; statuses {dict(load.statuses)}; {dict(load.kinds)}")
    print(f"{load.num_compared} answers compared, {load.num_different} differ")
    print(f"{load.num_kills} kills, {load.num_lost} answers lost")
    print(f"descriptors {before.descriptors} and {after.descriptors}, ", end="")
    print(f"threads {before.threads} and {after.threads}, {rows} rows, ", end="")
    print(f"{left} more temporary files, {len(remains)} after the end, log {size} bytes")
    print(f"memory {before.memory >> 20} MiB before, {after.memory >> 20} MiB after")
    print("\n".join(grown) or "nothing is left")
    ended = load.kinds["silent ones that were ended"] == NUM_SILENT
    failed = load.statuses.keys() - {200, 422} or load.num_lost > load.num_kills
    flat = not (grown or left > 0 or remains or rows or size > MOST_LOG)
    return 0 if flat and ended and not failed and not load.num_different else 1


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="of both parts")
    parser.add_argument("--compare", type=int, default=2_000, help="answers of the first part")
    parser.add_argument("--kills", type=int, default=20, help="of decoding processes")
    parser.add_argument("--siege", action="store_true", help="the other part, instead of these")
    parser.add_argument("--streams", type=int, default=NUM_STREAMS, help="of a siege")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        if args.siege:
            return siege(Path(folder), args.streams)
        engine = draftlens.load(device="cpu")
        batch = SchedulerLimits(max_rows=ROWS, max_waiting=2 * CLIENTS)
        options = ServeOptions(batch=batch, prompt_cache="20MB")
        with serving(engine, options, SEND_SECONDS) as server:
            load = Load(engine, server)
            asyncio.run(load.draw_alone())
            began = time.monotonic()
            num_sent = asyncio.run(load.compare(args.compare))
            until(lambda: is_idle(server), 120.0)
            middle, before = time.monotonic(), Held.now()
            num_short = max(args.requests - num_sent, 0)
            asyncio.run(load.strain(num_short, args.kills))
            took = time.monotonic() - middle
            burst = asyncio.run(load.overfill())
            until(lambda: is_idle(server), 120.0)
            after = Held.now()
    grown = after.grown(before)
    load.seconds.sort()
    print(f"{num_sent} requests, {num_sent / (middle - began):.1f}/s; then {num_short}, ", end="")
    print(f"{num_short / took:.1f}/s; statuses {dict(load.statuses)}; {dict(load.kinds)}")
    print(f"{load.num_compared} answers compared, {load.num_different} differ")
    print(f"{load.num_kills} kills, {load.num_lost} answers lost; a burst: {dict(burst)}")
    p99 = load.seconds[int(0.99 * len(load.seconds))]
    longest = load.seconds[-1]
    print(f"greedy: p50 {statistics.median(load.seconds):.2f} s, p99 {p99:.2f} s, {longest:.2f} s")
    print(f"memory {before.memory >> 20} MiB before, {after.memory >> 20} MiB after")
    print("\n".join(grown) or "nothing is left")
    failed = load.statuses.keys() - {200, 400, 422} or burst.keys() != {200, 429}
    lost = load.num_lost > load.num_kills
    return 1 if grown or failed or lost or load.num_different else 0


if __name__ == "__main__":
    sys.exit(main())
