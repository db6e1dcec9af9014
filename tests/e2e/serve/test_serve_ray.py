"""Two replicas of Ray Serve on this machine: conversations stay on theirs, and one is killed.

Skipped where Ray is not installed, as in CI.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.e2e.serve.running import CHATS, WAIT, ask, data_url, image, png, said, text, until

pytest.importorskip("ray.serve")

from ray import init, serve, shutdown

from draftlens.serve.ray import Settings, app

pytestmark = [
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ROWS = "draftlens_rows_running "
URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    try:
        load = {"device": "cpu", "calibrate": False}
        serve.run(app(Settings(replicas=2, load=load, max_rows=4)))
        yield URL
    finally:
        serve.shutdown()
        shutdown()


def replicas() -> list[psutil.Process]:
    """The processes of replicas that this one has started."""
    return [each for each in psutil.Process().children(recursive=True) if _is_replica(each)]


def _is_replica(process: psutil.Process) -> bool:
    try:
        return any("ServeReplica" in word and ":Front" not in word for word in process.cmdline())
    except psutil.Error:
        return False


def test_a_session_stays_on_its_replica(url: str, stock: Callable[..., str]) -> None:
    for session in range(4):
        client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", default_headers={"X-Session-Id": f"s{session}"}
        )
        first, second = (ask(client, "picture") for _ in range(2))
        assert first.choices[0].message.content == stock("picture")
        assert second.choices[0].message.content == stock("picture")
        assert second.usage.prompt_tokens_details.cached_tokens > 0


def conversation(number: int) -> list[dict[str, Any]]:
    """Three turns about a picture of its own."""
    picture = image(data_url(png(seed=number), "image/png"))
    turns = said(picture, text("Describe the image."))
    for question in ("What is at the top?", "What is at the bottom?"):
        turns += [
            {"role": "assistant", "content": f"It has colours, {number}."},
            {"role": "user", "content": question},
        ]
    return turns


def cached_share(url: str, first: int, session: Callable[[int], str | None]) -> float:
    """The share of the prompts' tokens that come from the prompt cache in the later turns of eight
    conversations, side by side; `session` names that of a request about a picture."""
    talks = {number: conversation(number) for number in range(first, first + 8)}
    cached = read = 0
    for turn in (1, 3, 5):
        for number, talk in talks.items():
            name = session(number)
            headers = {} if name is None else {"X-Session-Id": name}
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", default_headers=headers)
            usage = ask(client, "words", messages=talk[:turn], max_tokens=2).usage
            if turn > 1:
                cached += usage.prompt_tokens_details.cached_tokens
                read += usage.prompt_tokens
    return cached / read


def test_conversations_without_headers_stay_on_their_replicas(url: str) -> None:
    spread = cached_share(url, 0, lambda number: uuid.uuid4().hex)
    named = cached_share(url, 8, lambda number: f"conversation {number}")
    unnamed = cached_share(url, 16, lambda number: None)
    print(f"cached tokens: {spread:.2f} if spread, {named:.2f} by header, {unnamed:.2f} without")
    assert unnamed == pytest.approx(named, abs=0.01)
    assert unnamed > 1.2 * spread


def ending(stream: Any) -> str:
    """Why a stream has ended."""
    try:
        return str(list(stream)[-1].choices[0].finish_reason)
    except openai.APIError as error:
        return error.message


def test_a_replica_is_killed_in_a_stream(url: str, stock: Callable[..., str]) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8)
    streams = []
    for number in range(8):
        options = {"stream": True, "extra_body": {"ignore_eos": True, "user": f"u{number}"}}
        stream = ask(client, "words", max_tokens=1000, **options)
        next(iter(stream))
        streams.append(stream)
    victim, _ = replicas()
    os.kill(victim.pid, signal.SIGKILL)
    endings = [ending(stream) for stream in streams]
    lost = "the answer was lost: send the request again"
    assert set(endings) == {"length", lost}
    assert ask(client, "words").choices[0].message.content == stock("words")
    until(lambda: len(replicas()) == 2, 2 * WAIT)


def test_a_client_that_leaves_ends_its_answer(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    options = {"stream": True, "extra_body": {"ignore_eos": True, "user": "leaves"}}
    stream = ask(client, "words", max_tokens=1000, **options)
    next(iter(stream))
    stream.close()

    def running() -> float:
        session = {"X-Session-Id": "leaves"}  # its replica
        figures = httpx.get(f"{url}/metrics", headers=session).text
        (line,) = [each for each in figures.splitlines() if each.startswith(ROWS)]
        return float(line.split()[-1])

    until(lambda: running() == 0)


def test_a_replica_without_a_front(url: str, stock: Callable[..., str]) -> None:
    settings = Settings(fronts=0, cpus=0, load={"device": "cpu", "calibrate": False})
    serve.run(app(settings), name="direct", route_prefix="/direct")
    client = openai.OpenAI(base_url=f"{url}/direct/v1", api_key="none")
    assert ask(client, "picture").choices[0].message.content == stock("picture")
    chunks = list(ask(client, "words", stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == stock("words")
    serve.delete("direct")


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/", "/nothing"])
def test_other_paths(url: str, path: str) -> None:
    response = httpx.get(f"{url}{path}")
    assert response.status_code == (404 if path == "/nothing" else 200)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.content


def test_one_of_two_is_killed(url: str, stock: Callable[..., str]) -> None:
    """Its clients send their requests again, and get the same answers."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8)
    names = [*CHATS] * 5
    victim, _ = replicas()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, client, name) for name in names]
        answers[2].result(WAIT)
        os.kill(victim.pid, signal.SIGKILL)
        for name, answer in zip(names, answers, strict=True):
            assert answer.result(5 * WAIT).choices[0].message.content == stock(name)
    until(lambda: len(replicas()) == 2)  # Ray has made another one
    assert httpx.get(f"{url}/health").status_code == 200


def test_bounds_of_the_autoscaling() -> None:
    assert Settings(replicas=3).scaling() == {"num_replicas": 3}
    assert Settings(replicas="3").scaling() == {"num_replicas": 3}
    (bounds,) = Settings(replicas="auto", min_replicas=2, max_replicas=5).scaling().values()
    assert (bounds.min_replicas, bounds.max_replicas) == (2, 5)
    assert bounds.target_ongoing_requests == Settings().max_rows
    (bounds,) = Settings(replicas="auto", target_requests=4).scaling().values()
    assert (bounds.min_replicas, bounds.target_ongoing_requests) == (1, 4)
    with pytest.raises(ValueError, match="max_replicas"):
        Settings(replicas="auto", min_replicas=6, max_replicas=5).scaling()
