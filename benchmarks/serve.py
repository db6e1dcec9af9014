"""The server under load, beside `transformers serve` and stock `generate`, single and in batches.

    python benchmarks/serve.py --out benchmarks/results/serve
    python benchmarks/race.py --write --folder RACE  # a pair of real text weights, 0.27B and 0.13B
    python benchmarks/serve.py --target RACE/target --draft RACE/draft --repeats 1 --longest 64 \
        --requests 12 --ways "transformers serve" "plain, int8" "default, int8" \
        --out benchmarks/results/serve_rounded  # with 16 and 64 clients --requests 32 and 64

Each of several clients sends one request after the other, with pauses of exponential length between
them, for the embedded pair or another one. `stock` and `static` answer the same requests in this
process, first come first served, `static` up to 16 together; the servers are processes of their
own. Requests have pictures or words only: `transformers serve` reads the sound of each clip for
models that may take clips, and refuses clips without. With 8 bits answers are compared with those
of `plain, int8`, since they are another model's. Writes OUT.json and OUT.md; `--resume` takes the
finished runs of OUT.runs.json.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import torch
from PIL import Image
from shared import Benchmark, Report, table
from transformers import StoppingCriteria

import draftlens
from draftlens.core.files import write_json
from draftlens.media import conversation, load_video
from draftlens.models.known_pairs import path_of

CLIPS = Path(path_of("embedded", "target")).parent / "clips"
PAUSE = 0.2
"""Mean of the pauses between an answer and the next request of its client, in seconds."""

ROWS = 16
"""Of a static batch, and those of the server by default."""

TRANSFORMERS = "transformers serve"
STOCK = {"stock": 1, "static": ROWS}
"""Ways of answering in this process, with the requests that are answered together."""

ROUNDED = ["--quantization", "int8"]
SERVED: Mapping[str, list[str]] = {
    "plain": ["--method", "plain"],
    "speculative": ["--method", "speculative"],
    "default": [],
    "plain, int8": ["--method", "plain", *ROUNDED],
    "default, int8": ROUNDED,
}
"""Options of `draftlens serve` by way."""

WAYS = (*STOCK, TRANSFORMERS, *SERVED)
USUAL = [*STOCK, TRANSFORMERS, "plain", "speculative"]


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


@cache
def pictures() -> list[str]:
    """Addresses of the picture of the package and of a frame of each of its clips."""
    contents = [(CLIPS / "shapes.png").read_bytes()]
    for name in ("shapes.mp4", "drift.mp4", "bunny.mp4"):
        file = io.BytesIO()
        Image.fromarray(load_video(CLIPS / name, num_frames=1).frames[0]).save(file, "PNG")
        contents.append(file.getvalue())
    return [f"data:image/png;base64,{base64.b64encode(each).decode()}" for each in contents]


def questions(count: int, seed: int, longest: int = 160) -> list[Ask]:
    """Pictures and words in turn, with answers of 8 to `longest` tokens."""
    chance = random.Random(seed)
    asks = []
    for number in range(count):
        content: list[dict[str, Any]] = [{"type": "text", "text": "Describe the image."}]
        if number % 5:
            url = pictures()[number % 5 - 1]
            content.insert(0, {"type": "image_url", "image_url": {"url": url}})
        messages = [{"role": "user", "content": content}]
        asks.append(Ask(messages, chance.randint(8, longest), chance.expovariate(1 / PAUSE)))
    return asks


@contextmanager
def server(way: str, args: argparse.Namespace) -> Iterator[str]:
    """The address of a server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    if way == TRANSFORMERS:
        program = str(Path(sys.executable).with_name("transformers"))
        words = [program, "serve", folder_of(args), "--device", "cpu"]
        words += ["--host", "127.0.0.1", "--log-level", "error"]
    else:
        words = [sys.executable, "-m", "draftlens", "-q", "serve", *SERVED[way]]
        words += ["--prompt-cache", "0"]  # the same questions come again in every run
        words += ["--target", args.target] if args.target else []
        words += ["--draft", args.draft] if args.draft else []
    variables = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    # transformers prints each request.
    process = subprocess.Popen([*words, "--port", port], env=variables, stdout=subprocess.DEVNULL)
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


def folder_of(args: argparse.Namespace) -> str:
    """The folder of the target."""
    return str(args.target or path_of("embedded", "target"))


def over_http(client: httpx.AsyncClient, url: str, model: str | None) -> Answer:
    async def answer(ask: Ask) -> Told:
        body = {
            "model": model,
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
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                if text:  # an event with the role may come at once
                    first = first or time.perf_counter() - began
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
        whole = time.perf_counter() - began
        return Told(first or whole, whole, tokens, text)

    return answer


class _FirstStep(StoppingCriteria):  # type: ignore[misc]
    """Stops nothing; notes when the first tokens come."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.at = self.at or time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def by_stock(engine: draftlens.Engine, rows: int) -> Answer:
    """Stock `generate` for up to so many requests that wait; they end with the longest of them."""
    lock = asyncio.Lock()
    waiting: list[tuple[Ask, float, asyncio.Future[Told]]] = []
    model = engine.target.backbone.model
    tokenizer = engine.target.processor.tokenizer
    eos = model.generation_config.eos_token_id

    def run(asks: Sequence[tuple[Ask, float]]) -> list[Told]:
        inputs = engine.process([conversation.read(ask.messages, 8) for ask, _ in asks]).target
        first = _FirstStep()
        most = max(ask.max_tokens for ask, _ in asks)
        ids = model.generate(
            **inputs, do_sample=False, max_new_tokens=most, stopping_criteria=[first]
        )[:, inputs["input_ids"].shape[1] :]
        ended = time.perf_counter()
        told = []
        for (ask, began), row in zip(asks, ids.tolist(), strict=True):
            own = row[: ask.max_tokens]
            own = own[: own.index(eos) + 1] if eos in own else own
            text = tokenizer.decode(own, skip_special_tokens=True)
            told.append(Told(first.at - began, ended - began, len(own), text))
        return told

    async def answer(ask: Ask) -> Told:
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        waiting.append((ask, time.perf_counter(), future))
        async with lock:  # in the order of coming, so that one without an answer is the first
            if not future.done():
                batch = [waiting.pop(0) for _ in range(min(rows, len(waiting)))]
                told = await asyncio.to_thread(run, [(ask, began) for ask, began, _ in batch])
                for (_, _, one), each in zip(batch, told, strict=True):
                    one.set_result(each)
        return await future

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


class Ways:
    """Answers in each way; a server starts when it is first needed."""

    def __init__(
        self, engine: draftlens.Engine, client: httpx.AsyncClient, args: argparse.Namespace
    ) -> None:
        self._engine = engine
        self._client = client
        self._args = args
        self._made: dict[str, Answer] = {}
        self.servers = ExitStack()

    async def of(self, way: str) -> Answer:
        if way not in self._made:
            if way in STOCK:
                self._made[way] = by_stock(self._engine, STOCK[way])
            else:
                url = self.servers.enter_context(server(way, self._args))
                model = folder_of(self._args) if way == TRANSFORMERS else None
                self._made[way] = over_http(self._client, url, model)
            await load(self._made[way], questions(5, seed=0), 1)  # fills caches
        return self._made[way]


Runs = dict[str, dict[str, Any]]
"""By clients, way and number of a repeat: `seconds`, and `told` as lists of fields."""


def num_asks(args: argparse.Namespace, clients: int) -> int:
    return int(args.requests or max(8, 3 * clients))


def runs_of(args: argparse.Namespace) -> Path:
    return Path(args.out).with_suffix(".runs.json")


def reference_of(way: str) -> str:
    """The way whose answers a way has to give."""
    return "plain, int8" if way.endswith("int8") else "stock"


def rows_of(args: argparse.Namespace, runs: Runs) -> list[dict[str, Any]]:
    """Medians over repeats, and how many answers differ from those of the reference."""
    rows = []
    for clients in args.clients:
        for way in args.ways:
            reference = runs.get(f"{clients} {reference_of(way)} 0")
            own = [runs[f"{clients} {way} {repeat}"] for repeat in range(args.repeats)]
            told = [[Told(**each) for each in run["told"]] for run in own]
            each_run = [figures(run["seconds"], each) for run, each in zip(own, told, strict=True)]
            medians = {key: statistics.median(run[key] for run in each_run) for key in each_run[0]}
            differ = None
            if reference is not None:
                differ = sum(
                    each.text != expected["text"]
                    for answers in told
                    for each, expected in zip(answers, reference["told"], strict=True)
                )
            counts = {"answers": sum(map(len, told)), "differ": differ}
            rows.append({"who": way, "clients": clients, **medians, **counts})
    return rows


async def load_in_turn(args: argparse.Namespace, engine: draftlens.Engine, runs: Runs) -> None:
    """Run what `runs` lacks. The ways take turns: noise of the machine affects all of them."""
    async with httpx.AsyncClient(timeout=1800, limits=httpx.Limits(max_connections=None)) as client:
        ways = Ways(engine, client, args)
        with ways.servers:
            for clients in args.clients:
                asks = questions(num_asks(args, clients), clients, args.longest)
                for repeat in range(args.repeats):
                    for way in args.ways:
                        key = f"{clients} {way} {repeat}"
                        if key in runs:
                            continue
                        seconds, told = await load(await ways.of(way), asks, clients)
                        runs[key] = {"seconds": seconds, "told": [asdict(each) for each in told]}
                        write_json(runs_of(args), runs, indent=None)
                        print(f"{key}: {figures(seconds, told)}", flush=True)


def measure(args: argparse.Namespace) -> Report:
    """Rows by clients and way."""
    runs: Runs = {}
    if args.resume and runs_of(args).exists():
        runs = json.loads(runs_of(args).read_text())
    engine = draftlens.load(folder_of(args), device="cpu", dtype="float32", compile=False)
    asyncio.run(load_in_turn(args, engine, runs))
    return {"rows": rows_of(args, runs)}


def page(report: Report) -> list[str]:
    """Rates and latencies by clients and way."""
    rows = sorted(report["rows"], key=lambda row: row["clients"])
    stock = {row["clients"]: row["tokens_per_second"] for row in rows if row["who"] == "stock"}
    for row in rows:
        if row["clients"] in stock:
            row["of stock"] = row["tokens_per_second"] / stock[row["clients"]]
    columns = {
        "clients": "{clients}",
        "who": "{who}",
        "tokens/s": "{tokens_per_second:.0f}",
        "of stock": "{of stock:.2f}",
        "first token p50, p99 (s)": "{first_p50:.2f}, {first_p99:.2f}",
        "per token p50, p99 (ms)": "{token_p50:.0ms}, {token_p99:.0ms}",
        "answers that differ": "{differ}",
    }
    return [table(rows, columns)]


BENCHMARK = Benchmark(
    "serve",
    __doc__,
    "The server under load",
    measure,
    page,
    {
        "--repeats": 2,
        "--clients": [1, 4, 16, 64],
        "--ways": {
            "nargs": "+",
            "choices": WAYS,
            "default": [*STOCK, TRANSFORMERS, "plain", "speculative"],
        },
        "--target": {"help": "folder of the target [default: the embedded one]"},
        "--draft": {"help": "folder of its draft"},
        "--requests": {"type": int, "help": "of each run [default: 8, or 3 for a client]"},
        "--longest": {"type": int, "default": 160, "help": "tokens of the longest answer"},
        "--resume": {"action": "store_true", "help": "keep the runs of OUT.runs.json"},
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
