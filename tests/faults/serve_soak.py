"""A server under thousands of requests of every kind, and what they leave behind.

    python -m tests.faults.serve_soak --requests 10000

Sixteen clients send chats with pictures, clips and words, greedy and seeded ones, streams that they
read or leave, malformed bodies and pictures that are none. Every greedy answer is compared with
that of stock `generate`, every seeded one with the same request before. Rows, threads, descriptors
and objects of an answer must be what they were after the first tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import torch

import draftlens
from draftlens.scheduling import SchedulerLimits
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import CHATS, Running, data_url, image, said, serving, until
from tests.faults.soak import Held

CLIENTS = 16
PATH = "/v1/chat/completions"
LONGEST = 12
LONG = {"max_tokens": 60, "repetition_penalty": 1.3, "stream": True}


@dataclass
class Load:
    """The requests of all clients, and what became of them."""

    engine: draftlens.Engine
    server: Running
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    seeded: dict[str, str] = field(default_factory=dict)
    num_compared: int = 0
    num_different: int = 0

    def __post_init__(self) -> None:
        self.expected = {name: self._by_stock(name) for name in CHATS}

    def _by_stock(self, name: str) -> list[str]:
        """The text of the answer after each number of tokens."""
        inputs = self.engine.read(messages=CHATS[name]).target
        model = self.engine.target.backbone.model
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=LONGEST)
        tokens = ids[0, inputs["input_ids"].shape[1] :].tolist()
        decode = self.engine.target.processor.tokenizer.decode
        return [decode(tokens[:end], skip_special_tokens=True) for end in range(LONGEST + 1)]

    async def send(self, requests: int) -> None:
        numbers = iter(range(requests))

        async def client() -> None:
            async with httpx.AsyncClient(base_url=self.server.url, timeout=300) as http:
                for number in numbers:  # shared: each takes the next one
                    await self._one(http, number)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))

    async def _one(self, http: httpx.AsyncClient, number: int) -> None:
        name = self.chance.choice(sorted(CHATS))
        body: dict[str, Any] = {"messages": CHATS[name], "max_tokens": 1 + number % LONGEST}
        began = time.monotonic()
        match number % 10:
            case 0:
                await self._leave(http, {"messages": CHATS[name], **LONG})
            case 1:
                await self._post(http, self._malformed(body))
            case 2:
                part = image(data_url(self.chance.randbytes(60), "image/png"))
                await self._post(http, json.dumps({"messages": said(part)}))
            case 3 | 4:
                body |= {"temperature": 1.5, "seed": number % 7, "n": 1 + number % 2}
                key = json.dumps([name, body["max_tokens"], number % 7, body["n"]])
                texts = json.dumps(await self._post(http, json.dumps(body)))
                self._compare(texts, self.seeded.setdefault(key, texts))
            case _:
                texts = await self._post(http, json.dumps(body))
                self._compare(texts[0], self.expected[name][body["max_tokens"]])
                self.seconds.append(time.monotonic() - began)

    async def _post(self, http: httpx.AsyncClient, body: str) -> list[str]:
        headers = {"content-type": "application/json"}
        response = await http.post(PATH, content=body, headers=headers)
        self.statuses[response.status_code] += 1
        choices = response.json().get("choices", [])
        return [choice["message"]["content"] for choice in choices]

    async def _leave(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        """Read a few lines of a stream."""
        async with http.stream("POST", PATH, json=body) as response:
            lines = response.aiter_lines()
            for _ in range(self.chance.randrange(4)):
                await anext(lines)
        self.statuses[response.status_code] += 1

    def _malformed(self, body: dict[str, Any]) -> str:
        content = json.dumps(body | {"max_tokens": self.chance.choice([0, -1, "x", [], 2**70])})
        place = self.chance.randrange(len(content))
        return self.chance.choice([content, content[:place], content[:place] + "{" + content])

    def _compare(self, text: str, expected: str) -> None:
        self.num_compared += 1
        self.num_different += text != expected


def is_idle(server: Running) -> bool:
    return not (server.scheduler.num_rows or server.scheduler.num_waiting or server.state.num_open)


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    requests = parser.parse_args().requests
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        engine = draftlens.load(device="cpu")
        options = ServeOptions(batch=SchedulerLimits(max_rows=CLIENTS), prompt_cache="20MB")
        with serving(engine, options) as server:
            load = Load(engine, server)
            asyncio.run(load.send(requests // 10))
            until(lambda: is_idle(server))
            before, began = Held.now(), time.monotonic()
            asyncio.run(load.send(requests - requests // 10))
            took = time.monotonic() - began
            until(lambda: is_idle(server))
            after = Held.now()
    grown = after.grown(before)
    load.seconds.sort()
    print(f"{requests} requests, {0.9 * requests / took:.1f}/s; statuses {dict(load.statuses)}")
    print(f"{load.num_compared} answers compared, {load.num_different} differ")
    p99 = load.seconds[int(0.99 * len(load.seconds))]
    longest = load.seconds[-1]
    print(f"greedy: p50 {statistics.median(load.seconds):.2f} s, p99 {p99:.2f} s, {longest:.2f} s")
    print(f"memory {before.memory >> 20} MiB before, {after.memory >> 20} MiB after")
    print("\n".join(grown) or "nothing is left")
    failed = load.statuses.keys() - {200, 400, 422}
    return 1 if grown or failed or load.num_different else 0


if __name__ == "__main__":
    sys.exit(main())
