"""The server under load, beside stock `generate` that answers one request after another.

    python benchmarks/serve.py --out benchmarks/results/serve

Each of several clients sends one request after the other, with pauses of exponential length between
them, for the embedded pair. `stock` answers the same requests in this process, first come first
served; the servers are processes of their own. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save
from transformers import TextStreamer

import draftlens
from draftlens.models.known_pairs import path_of

PREDICTION = """Written before the first run: with one client the server with a draft is 1.8 times
as fast as stock generate, and plain decoding 1.1 times; with 16 clients it reaches 4 times, and
plain decoding 3 times, since a round of 16 rows of this small model costs about as much as 3 of one
row. No load is slower with the draft than without."""

CLIPS = Path(path_of("embedded", "target")).parent / "clips"
PAUSE = 0.2
"""Mean of the pauses between an answer and the next request of its client, in seconds."""


@dataclass(frozen=True)
class Ask:
    messages: list[dict[str, Any]]
    max_tokens: int
    pause: float


@dataclass
class Told:
    """One answer: seconds to the first token and to the last, its tokens and its text."""

    first: float
    whole: float
    tokens: int
    text: str


Answer = Callable[[Ask], Awaitable[Told]]


def questions(count: int, seed: int) -> list[Ask]:
    """Pictures, clips and words in turn, with answers of 8 to 160 tokens."""
    chance = random.Random(seed)
    asks = []
    for number in range(count):
        name = ("shapes.png", "shapes.mp4", "drift.mp4", "bunny.mp4", "")[number % 5]
        words = {"type": "text", "text": "Describe the image." if "png" in name else "Describe it."}
        content: list[dict[str, Any]] = [words]
        if name:
            kind = "image" if name.endswith("png") else "video"
            encoded = base64.b64encode((CLIPS / name).read_bytes()).decode()
            url = f"data:{kind}/any;base64,{encoded}"
            content.insert(0, {"type": f"{kind}_url", f"{kind}_url": {"url": url}})
        messages = [{"role": "user", "content": content}]
        asks.append(Ask(messages, chance.randint(8, 160), chance.expovariate(1 / PAUSE)))
    return asks


@contextmanager
def server(method: str) -> Iterator[str]:
    """The address of a server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-m", "draftlens", "-q", "serve", "--method", method, "--port", str(port)]
    words += ["--prompt-cache", "0"]  # the same questions come again in every run
    process = subprocess.Popen([sys.executable, *words])
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def over_http(client: httpx.AsyncClient, url: str) -> Answer:
    async def answer(ask: Ask) -> Told:
        body = {
            "messages": ask.messages,
            "max_tokens": ask.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.perf_counter()
        first, text, tokens = 0.0, "", 0
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                first = first or time.perf_counter() - began
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                if event["usage"]:
                    tokens = event["usage"]["completion_tokens"]
        return Told(first, time.perf_counter() - began, tokens, text)

    return answer


class _FirstToken(TextStreamer):  # type: ignore[misc]
    """Notes when the first token comes; the prompt comes before it."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def by_stock(engine: draftlens.Engine) -> Answer:
    """Stock `generate`, one request after another."""
    lock = asyncio.Lock()
    model = engine.target.backbone.model
    tokenizer = engine.target.processor.tokenizer

    def run(ask: Ask, began: float) -> Told:
        inputs = engine.read(messages=ask.messages).target
        streamer = _FirstToken()
        length = inputs["input_ids"].shape[1]
        ids = model.generate(
            **inputs, do_sample=False, max_new_tokens=ask.max_tokens, streamer=streamer
        )[0, length:]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        whole = time.perf_counter() - began
        return Told(streamer.times[1] - began, whole, len(ids), text)

    async def answer(ask: Ask) -> Told:
        began = time.perf_counter()
        async with lock:
            return await asyncio.to_thread(run, ask, began)

    return answer


async def load(answer: Answer, asks: list[Ask], clients: int) -> tuple[float, list[Told]]:
    """Seconds of all requests together, and their answers in order."""
    told: list[Told | None] = [None] * len(asks)
    numbers = iter(range(len(asks)))

    async def client() -> None:
        for number in numbers:  # shared: each takes the next one
            await asyncio.sleep(asks[number].pause)
            told[number] = await answer(asks[number])

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began, [each for each in told if each is not None]


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(seconds: float, told: list[Told]) -> dict[str, float]:
    per_token = [(each.whole - each.first) / max(each.tokens - 1, 1) for each in told]
    first = [each.first for each in told]
    return {
        "tokens_per_second": sum(each.tokens for each in told) / seconds,
        "first_p50": statistics.median(first),
        "first_p99": quantile(first, 0.99),
        "token_p50": statistics.median(per_token),
        "token_p99": quantile(per_token, 0.99),
    }


async def measure(args: argparse.Namespace, engine: draftlens.Engine) -> list[dict[str, Any]]:
    """One row for each load and each way to answer, which take turns: noise of the machine affects
    all of them."""
    rows: list[dict[str, Any]] = []
    async with httpx.AsyncClient(timeout=600) as client:
        with server("plain") as plain, server("speculative") as speculative:
            ways = {
                "stock": by_stock(engine),
                "plain": over_http(client, plain),
                "speculative": over_http(client, speculative),
            }
            for answer in ways.values():
                await load(answer, questions(5, seed=0), 1)  # fills caches
            for clients in args.clients:
                asks = questions(max(8, 3 * clients), seed=clients)
                runs: dict[str, list[tuple[float, list[Told]]]] = {name: [] for name in ways}
                for _ in range(args.repeats):
                    for name, answer in ways.items():
                        runs[name].append(await load(answer, asks, clients))
                expected = [each.text for each in runs["stock"][0][1]]
                for name, own in runs.items():
                    differ = sum(
                        each.text != text
                        for _, told in own
                        for each, text in zip(told, expected, strict=True)
                    )
                    each_run = [figures(*run) for run in own]
                    medians = {
                        key: statistics.median(run[key] for run in each_run) for key in each_run[0]
                    }
                    rows.append({"who": name, "clients": clients, **medians, "differ": differ})
    return rows


def main() -> None:
    parser = argument_parser(__doc__, "serve", 3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    args = parser.parse_args()
    configure(args.threads)
    rows = asyncio.run(measure(args, draftlens.load(device="cpu")))
    facts = environment(args)
    by_stock_rate = {
        row["clients"]: row["tokens_per_second"] for row in rows if row["who"] == "stock"
    }
    lines = markdown_table(
        (
            "clients",
            "who",
            "tokens/s",
            "of stock",
            "first token p50, p99 (s)",
            "per token p50, p99 (ms)",
            "answers that differ",
        ),
        [
            (
                str(row["clients"]),
                row["who"],
                f"{row['tokens_per_second']:.0f}",
                f"{row['tokens_per_second'] / by_stock_rate[row['clients']]:.2f}",
                f"{row['first_p50']:.2f}, {row['first_p99']:.2f}",
                f"{1000 * row['token_p50']:.0f}, {1000 * row['token_p99']:.0f}",
                str(row["differ"]),
            )
            for row in sorted(rows, key=lambda row: row["clients"])
        ],
    )
    table = "\n".join(lines)
    page = f"# The server under load\n\n{environment_line(facts)}\n\n{PREDICTION}\n\n{table}\n"
    save(args.out, {"environment": facts, "prediction": PREDICTION, "rows": rows}, page)
    print(table)


if __name__ == "__main__":
    main()
