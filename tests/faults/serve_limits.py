"""What one request of a client costs the others: their longest wait, and the server's memory.

    python -m tests.faults.serve_limits --repeats 3

Starts `draftlens serve` in a process of its own with two keys. For each oversized request of the
first key it prints the statuses, the longest time that the second key waits for `/health`, for an
answer to a text and for one to a small picture meanwhile, the longest of these without the request
("alone"), and the memory of the server and its children: the peak that is added, and what is left
two seconds afterwards. The figures are medians
of the repeats. `PYTHONPATH` decides which draftlens is measured.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import psutil
from PIL import Image

CHAT = "/v1/chat/completions"
PROMPT = "/v1/completions"
ATTACKER, NEIGHBOUR = "attacker", "neighbour"
MIB = 2**20
WAIT = 180.0
LEFT_SECONDS = 2.0


def url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def image(content: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(content, "image/png")}}


def said(*parts: Any) -> dict[str, Any]:
    text = {"type": "text", "text": "What is it?"}
    return {"messages": [{"role": "user", "content": [*parts, text]}], "max_tokens": 4}


def long_png(width: int, height: int) -> bytes:
    """A black picture, compressed without its pixels in memory."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    rows = row * max(1, min(height, 10_000_000 // len(row)))
    left = len(row) * height
    packed = b""
    while left:
        packed += packer.compress(rows[:left])
        left -= min(left, len(rows))
    packed += packer.flush()
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )


def photo(side: int) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((side, side), 40).convert("RGB").save(file, "JPEG", quality=50)
    return file.getvalue()


def slow_clip() -> bytes:
    """A clip that takes long to decode: its format has no index."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as output:
        stream = output.add_stream("mpeg4", Fraction(25))
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        pixels = np.zeros((720, 1280, 3), np.uint8)
        for number in range(600):
            pixels[:, number % 1280] = number % 256
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        output.mux(stream.encode())
    return file.getvalue()


@dataclass(frozen=True)
class Case:
    """Requests that are sent at the same time.

    Args:
        bodies: a path and the content of each.
        held: all but their last byte is sent first by all of them.
    """

    bodies: Callable[[], list[tuple[str, bytes]]]
    held: bool = False


def chat(**fields: Any) -> tuple[str, bytes]:
    return CHAT, json.dumps(fields).encode()


def _words(size: int) -> str:
    words = ("the square is above a red circle and ", "it 7 blue, ", "triangles (left) of ")
    text = "".join(words[number * number % 3] for number in range(size // 10))
    return text[:size]


def _messages(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4}


def _numbers(size: int) -> bytes:
    return b'{"prompt":[' + b"11," * (size // 3) + b'11],"max_tokens":4}'


CASES: dict[str, Case] = {
    "stop text of 1 MB": Case(lambda: [chat(**_messages("Hello"), stop=_words(1_000_000))]),
    "9.4 MB of [],": Case(lambda: [(CHAT, b'{"messages":[' + b"[]," * 3_133_000 + b"[]]}")]),
    "19 MB of integers": Case(lambda: [(PROMPT, _numbers(19_000_000))]),
    "integers of 4300 digits, 20 MB": Case(
        lambda: [(PROMPT, b'{"prompt":[' + (b"9" * 4300 + b",") * 4650 + b"1]}")]
    ),
    "PNG of 2 x 10,000,000": Case(lambda: [chat(**said(image(long_png(2, 10_000_000))))]),
    "two of them, one turned": Case(
        lambda: [
            chat(**said(image(long_png(2, 10_000_000)), image(long_png(10_000_000, 2)))),
        ]
    ),
    "7.6 MB of text": Case(lambda: [chat(**_messages(_words(7_600_000)))]),
    "4 texts of 260,000 characters": Case(lambda: [chat(**_messages(_words(260_000)))] * 4),
    "20,000 prompts": Case(
        lambda: [(PROMPT, json.dumps({"prompt": ["Hello"] * 20_000, "max_tokens": 4}).encode())]
    ),
    "100,000 messages": Case(
        lambda: [chat(messages=[{"role": "user", "content": "a"}] * 100_000, max_tokens=4)]
    ),
    "12 bodies of 60 MB": Case(
        lambda: [chat(**_messages("Hello"), user="a" * 60_000_000)] * 12, held=True
    ),
    "8 slow clips": Case(
        lambda: (
            [
                chat(
                    **said(
                        {"type": "video_url", "video_url": {"url": url(slow_clip(), "video/mp2t")}}
                    )
                )
            ]
            * 8
        )
    ),
    "8 requests of 5 large pictures": Case(lambda: [chat(**said(*[image(photo(4000))] * 5))] * 8),
}


@dataclass
class Server:
    """`draftlens serve` in a process of its own."""

    process: subprocess.Popen[str]
    address: str = ""

    @property
    def memory(self) -> int:
        """Resident bytes of the process and its children."""
        total = 0
        with suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.Error):
                    total += process.memory_info().rss
        return total


@contextmanager
def serving() -> Iterator[Server]:
    command = [sys.executable, "-m", "draftlens", "serve", "--port", "0", "--no-calibrate"]
    with tempfile.TemporaryDirectory() as folder:
        keys = {"DRAFTLENS_API_KEY": f"{ATTACKER} {NEIGHBOUR}", "XDG_CACHE_HOME": folder}
        environment = os.environ | keys
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        server = Server(process)
        try:
            assert process.stderr is not None
            for line in process.stderr:
                found = re.search(r"http://[\d.]+:\d+", line)
                if found:
                    server.address = found[0]
                    break
            threading.Thread(target=process.stderr.read, daemon=True).start()
            with httpx.Client(base_url=server.address) as http:
                while http.get("/health").status_code != 200:
                    time.sleep(0.1)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass
class Watch:
    """The neighbour's requests and the server's memory, until `end`."""

    server: Server
    longest: dict[str, float] = field(default_factory=dict)
    peak: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        small = io.BytesIO()
        Image.new("RGB", (1, 1)).save(small, "PNG")
        self._ended = threading.Event()
        asks: dict[str, Callable[[httpx.Client], httpx.Response]] = {
            "health": lambda http: http.get("/health"),
            "text": lambda http: http.post(CHAT, json=_messages("Hello")),
            "picture": lambda http: http.post(CHAT, json=said(image(small.getvalue()))),
        }
        self._threads = [
            threading.Thread(target=self._ask, args=[name, ask]) for name, ask in asks.items()
        ]
        self._threads.append(threading.Thread(target=self._measure))
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str, ask: Callable[[httpx.Client], httpx.Response]) -> None:
        headers = {"authorization": f"Bearer {NEIGHBOUR}"}
        with httpx.Client(
            base_url=self.server.address, timeout=WAIT, headers=headers, trust_env=False
        ) as http:
            while not self._ended.is_set():
                began = time.monotonic()
                try:
                    if ask(http).status_code != 200:
                        self.failures[name] += 1
                except httpx.HTTPError:
                    self.failures[name] += 1
                took = time.monotonic() - began
                self.longest[name] = max(self.longest.get(name, 0.0), took)
                self._ended.wait(0.05)

    def _measure(self) -> None:
        while not self._ended.wait(0.02):
            self.peak = max(self.peak, self.server.memory)


def send(server: Server, case: Case) -> Counter[str]:
    """The statuses of the requests of a case."""
    bodies = case.bodies()
    statuses: Counter[str] = Counter()
    together = threading.Barrier(len(bodies))

    def one(path: str, body: bytes) -> None:
        def content() -> Iterator[bytes]:
            step = 2**20
            places = [*range(0, len(body) - 1, step), len(body) - 1]
            for start, end in pairwise(places):
                yield body[start:end]
            if case.held:
                with suppress(threading.BrokenBarrierError):
                    together.wait(20.0)
            yield body[-1:]

        headers = {
            "authorization": f"Bearer {ATTACKER}",
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        try:
            response = httpx.post(
                server.address + path, content=content(), headers=headers, timeout=WAIT
            )
            statuses[str(response.status_code)] += 1
        except httpx.HTTPError as error:  # refused while the body was being sent
            statuses[type(error).__name__] += 1

    threads = [threading.Thread(target=one, args=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def measure(name: str, case: Case) -> dict[str, Any]:
    """One case on a new server."""
    with serving() as server:
        for _ in range(2):  # the first one starts the processes that decode media
            calm = Watch(server)
            time.sleep(3.0)
            calm.end()
        before = server.memory
        watch = Watch(server)
        began = time.monotonic()
        statuses = send(server, case)
        took = time.monotonic() - began
        time.sleep(0.5)
        watch.end()
        time.sleep(LEFT_SECONDS)
        return {
            "case": name,
            "statuses": dict(statuses),
            "failures": dict(watch.failures),
            "seconds": took,
            "calm": calm.longest,
            "longest": watch.longest,
            "added": (watch.peak - before) / MIB,
            "left": (server.memory - before) / MIB,
        }


def main() -> int:
    """The command; returns 1 if a wait is longer by `--most` than alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="cases with this text in their names")
    parser.add_argument(
        "--most", type=float, default=1.0, help="longest wait, in seconds, beside that alone"
    )
    parser.add_argument("--out", type=Path, help="file for all figures, as lines of JSON")
    args = parser.parse_args()
    failed = False
    print("| request | statuses | health | text | picture | alone | MiB added | MiB left |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name, case in CASES.items():
        if args.only not in name:
            continue
        runs = [measure(name, case) for _ in range(args.repeats)]
        if args.out is not None:
            with args.out.open("a") as file:
                file.writelines(json.dumps(run) + "\n" for run in runs)
        waits = [
            statistics.median(run["longest"][kind] for run in runs)
            for kind in ("health", "text", "picture")
        ]
        added, left = (statistics.median(run[key] for run in runs) for key in ("added", "left"))
        alone = statistics.median(max(run["calm"].values()) for run in runs)
        columns = [name, str(runs[-1]["statuses"]), *(f"{wait:.2f} s" for wait in [*waits, alone])]
        print("|", " | ".join([*columns, f"{added:.0f}", f"{left:.0f}"]), "|", flush=True)
        failed |= max(waits) > args.most + alone
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
