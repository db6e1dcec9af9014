"""Two replicas of Ray Serve on this machine, of which one is killed under load.

Skipped where Ray is not installed, as in CI.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import psutil
import pytest

from tests.e2e.serve.running import CHATS, WAIT, ask, until

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
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "ServeReplica" in each.name() or _is_replica(each)]


def _is_replica(process: psutil.Process) -> bool:
    try:
        return any("ServeReplica" in word for word in process.cmdline())
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
