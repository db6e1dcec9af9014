from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

import draftlens
from draftlens.scheduling import SchedulerLimits
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import CHATS, CLIPS, KEY, NEW, Running, serving

TEMPLATE = """{% if tools %}<|im_start|>system
Call as <tool_call>{"name": <name>, "arguments": <arguments>}</tool_call>.
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>
{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% for call in
message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module", autouse=True)
def _closed_clients() -> Iterator[None]:
    """Close the clients that the tests of a file make: the collector would close their sockets with
    a warning, at any time in any other test."""
    made: list[openai.OpenAI] = []
    create = openai.OpenAI.__init__

    def noted(self: openai.OpenAI, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai.OpenAI, "__init__", noted)
        yield
    for client in made:
        client.close()


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


@pytest.fixture(scope="module")
def calling(engine: draftlens.Engine) -> draftlens.Engine:
    """The embedded pair with a chat template for tools."""
    target = copy.copy(engine.target)
    processor = copy.deepcopy(target.processor)
    processor.chat_template = processor.tokenizer.chat_template = TEMPLATE
    return draftlens.Engine(
        target.backbone.model,
        engine.draft.backbone.model,
        processor=processor,  # type: ignore[union-attr]
    )


@pytest.fixture(scope="module")
def tools_server(calling: draftlens.Engine) -> Iterator[Running]:
    with serving(calling, ServeOptions(model="embedded")) as running:
        yield running
