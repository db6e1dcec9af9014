from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest

import draftlens
from draftlens.scheduling import SchedulerLimits
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import CHATS, CLIPS, KEY, NEW, Running, serving


@pytest.fixture(scope="module")
def server(engine: draftlens.Engine) -> Iterator[Running]:
    with serving(engine, ServeOptions(batch=SchedulerLimits(max_rows=6))) as running:
        yield running


@pytest.fixture(scope="module")
def locked(engine: draftlens.Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a key, a folder of media, method `lookup` and narrow limits."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "picture.png").write_bytes((CLIPS / "shapes.png").read_bytes())
    options = ServeOptions(
        model="shapes",
        api_keys=("another", KEY),
        batch=SchedulerLimits(max_rows=1, max_waiting=1),
        max_images=2,
        media_path=folder,
        max_body_bytes=200_000,
    )
    lookup = draftlens.Engine(
        engine.target, method={"method": "lookup", "num_speculative_tokens": 4}
    )
    with serving(lookup, options) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return server.client()


@pytest.fixture(scope="module")
def stock(engine: draftlens.Engine) -> Callable[..., str]:
    """What the unmodified library answers."""
    known: dict[tuple[str, int], str] = {}

    def answer(name: str, new: int = NEW) -> str:
        if (name, new) not in known:
            given = engine.read(messages=CHATS[name]).target
            model = engine.target.backbone.model
            ids = model.generate(**given, do_sample=False, max_new_tokens=new)
            tokens = ids[0, given["input_ids"].shape[1] :]
            tokenizer = engine.target.processor.tokenizer
            known[name, new] = tokenizer.decode(tokens, skip_special_tokens=True)
        return known[name, new]

    return answer
