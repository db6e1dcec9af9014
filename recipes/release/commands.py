"""The commands of a release, run in a folder outside of the repository."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen


@dataclass(frozen=True)
class Command:
    """A command with a part of what it prints or writes.

    Args:
        words: its words after `draftlens`.
        expected: a part of its standard output.
        writes: a file that it writes, relative to the working directory.
    """

    words: tuple[str, ...]
    expected: str = ""
    writes: str | None = None


DEFAULT = (
    Command(("demo", "--json", "--max-new-tokens", "32"), '"identical": true'),
    Command(("caption", "shapes.mp4"), "The video has one shot"),
    Command(("ask", "shapes.png", "--prompt", "Describe the image."), "The picture"),
    Command(("verify", "shapes.mp4", "--max-new-tokens", "32"), "identical"),
    Command(("doctor",), "transformers"),
    Command(("methods",), "speculative"),
    Command(("pairs",), "Qwen"),
)
"""Commands of `pip install draftlens`."""

ALL = (
    Command(("parse", "page.pdf"), "Speculative decoding of one page"),
    Command(("explain", "shapes.mp4", "--max-new-tokens", "16"), writes="explain/shapes.html"),
    Command(
        ("bench", "--workload", "shapes.mp4", "--repeats", "1", "--methods", "plain,speculative"),
        writes="runs/bench",
    ),
    Command(("evaluate", "--clips", "1", "--frames", "8"), writes="runs/evaluate"),
    Command(("train-draft", "--help"), "Train"),
)
"""Commands of `pip install draftlens[all]`, beside the server."""


def environment() -> dict[str, str]:
    """Variables of the commands: those of this process without paths of Python, and no network."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**kept, "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}


def run(
    launcher: Sequence[str],
    command: Command,
    folder: Path,
    variables: Mapping[str, str],
    timeout: float = 600.0,
) -> float:
    """Run a command and return its seconds.

    Args:
        launcher: what starts draftlens, such as the path of its script.
        command: what to run, and what to expect of it.
        folder: working directory.
        variables: environment of the process.
        timeout: seconds after which the command counts as failed.

    Raises:
        RuntimeError: the command failed, or did not print or write what was expected.
    """
    started = time.perf_counter()
    done = subprocess.run(
        [*launcher, *command.words],
        cwd=folder,
        env=dict(variables),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    seconds = time.perf_counter() - started
    shown = " ".join(command.words)
    if done.returncode != 0:
        raise RuntimeError(f"draftlens {shown}: status {done.returncode}\n{done.stderr[-2000:]}")
    if command.expected not in " ".join(done.stdout.split()):
        raise RuntimeError(f"draftlens {shown} does not print {command.expected!r}:\n{done.stdout}")
    if command.writes is not None and not (folder / command.writes).exists():
        raise RuntimeError(f"draftlens {shown} does not write {command.writes}")
    return seconds


def serve(launcher: Sequence[str], folder: Path, variables: Mapping[str, str]) -> float:
    """Start a server, ask it for an answer, stop it, and return the seconds to the answer.

    Raises:
        RuntimeError: the server does not answer, or does not end with status 0.
    """
    started = time.perf_counter()
    with _server(launcher, folder, variables) as address:
        body = {
            "model": "embedded",
            "messages": [{"role": "user", "content": "What is a clip?"}],
            "max_tokens": 8,
        }
        answer = _ask(f"{address}/v1/chat/completions", body)
        seconds = time.perf_counter() - started
    if not answer["choices"][0]["message"]["content"]:
        raise RuntimeError(f"draftlens serve answers {answer}")
    return seconds


@contextmanager
def _server(launcher: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [*launcher, "serve", "--port", str(port)]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            words, cwd=folder, env=dict(variables), stdout=log, stderr=subprocess.STDOUT
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, f"{address}/health", folder / "serve.log")
        yield address
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            raise RuntimeError(f"draftlens serve ends with status {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path, seconds: float = 120) -> None:
    """Wait until a server is ready."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urlopen(address, timeout=5):
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise RuntimeError(f"draftlens serve is not ready:\n{log.read_text()[-2000:]}")


def _ask(address: str, body: Mapping[str, Any]) -> Any:
    request = Request(
        address, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def page_pdf(text: str) -> bytes:
    """A PDF file of one page with a line of text in Helvetica."""
    content = f"BT /F1 18 Tf 72 700 Td ({text}) Tj ET".encode("ascii")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return (
        data
        + b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
        + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(data))
    )
