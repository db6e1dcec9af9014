"""`draftlens serve` as a process of its own, which is told to end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from draftlens.models.known_pairs import path_of
from tests.e2e.serve.running import ask, until

START = 120.0
GRACE = 60.0


@pytest.fixture
def process(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server, and its address. A parameter has further words of the command."""
    words = ["serve", "--port", "0", "--no-calibrate", "--grace", str(GRACE), "--max-rows", "3"]
    words += getattr(request, "param", ())
    said = tmp_path / "stderr"
    with said.open("w") as file:
        started = subprocess.Popen([sys.executable, "-m", "draftlens", *words], stderr=file)
    try:
        until(lambda: started.poll() is not None or " at http" in said.read_text(), START)
        (url,) = re.findall(r"answers? at (http://[\d.:]+)", said.read_text())
        until(lambda: is_ready(url), START)
        yield started, url
    finally:
        started.kill()
        started.wait()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


SMALL = path_of("embedded", "draft")


@pytest.mark.parametrize("process", [["--also", SMALL, "--also", f"small={SMALL}"]], indirect=True)
def test_further_models(process: tuple[subprocess.Popen[bytes], str]) -> None:
    _, url = process
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [card.id for card in client.models.list()] == ["embedded", SMALL, "small"]
    for name in (SMALL, "small"):
        assert ask(client, "picture", model=name, max_tokens=5).model == name
    assert ask(client, "picture", max_tokens=5).model == "embedded"


def test_running_answers_end_after_sigterm(process: tuple[subprocess.Popen[bytes], str]) -> None:
    """They and those that wait; new requests are refused, and the process ends in time."""
    started, url = process
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    given = {"stream": True, "max_tokens": 150, "extra_body": {"repetition_penalty": 1.3}}
    first = [ask(client, "words", **given) for _ in range(3)]
    reasons: list[str | None] = []

    def read(chunks: openai.Stream) -> None:
        reasons.append([chunk.choices[0].finish_reason for chunk in chunks][-1])

    def wait() -> None:
        answer = ask(client, "picture", max_tokens=5)
        reasons.append(answer.choices[0].finish_reason)

    for chunks in first:
        next(chunks)
    threads = [threading.Thread(target=read, args=[chunks]) for chunks in first]
    threads.append(threading.Thread(target=wait))
    for thread in threads:
        thread.start()
    until(lambda: "draftlens_requests_waiting 1.0" in httpx.get(f"{url}/metrics").text)
    started.send_signal(signal.SIGTERM)
    told = time.monotonic()
    until(lambda: not is_ready(url))
    with pytest.raises(openai.InternalServerError) as refused:
        ask(client, "words")
    assert refused.value.status_code == 503
    for thread in threads:
        thread.join(GRACE)
    assert len(reasons) == 4
    assert set(reasons) <= {"length", "stop"}
    assert started.wait(GRACE) in (0, -signal.SIGTERM)
    assert time.monotonic() - told < GRACE + 5


AHEAD = json.dumps({"method": "parallelvlm", "num_speculative_tokens": 4})


@pytest.mark.parametrize("process", [["--speculative-config", AHEAD]], indirect=True)
def test_a_draft_beside_the_target(process: tuple[subprocess.Popen[bytes], str]) -> None:
    """Requests that join and end at different times have the answers that they have alone."""
    _, url = process
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    questions = [("words", 40), ("picture", 12), ("words", 25), ("picture", 30)]

    def answer(question: str, count: int) -> str:
        text = ask(client, question, max_tokens=count).choices[0].message.content
        assert isinstance(text, str)
        return text

    alone = [answer(*question) for question in questions]
    with ThreadPoolExecutor(len(questions)) as pool:
        together = list(pool.map(lambda question: answer(*question), questions))
    assert together == alone
    metrics = httpx.get(f"{url}/metrics").text
    (accepted,) = re.findall(r"^vllm:spec_decode_num_accepted_tokens_total\S* (\S+)", metrics, re.M)
    assert float(accepted) > 0
