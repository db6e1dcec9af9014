"""Further views of a prompt on their way from messages, or from the caller, to the drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from PIL import Image

import draftlens
from draftlens.core.errors import ConfigError, InputError
from draftlens.core.sequence import Batch
from draftlens.decoding import Plan
from draftlens.decoding.plan import NoDraft, TargetContext
from draftlens.media.conversation import ChatSource
from draftlens.media.rewriting import without_media
from draftlens.methods.base import Models, PlainDecoding
from draftlens.methods.tabed.prompts import VIEWS_EXTRA, read_views

RED = Image.new("RGB", (32, 32), (255, 0, 0))


class Listener(NoDraft):
    """Never drafts, but keeps the inputs and extras that it is given."""

    def __init__(self) -> None:
        self.inputs: list[Mapping[str, Any]] = []

    def encode(self, inputs: Mapping[str, Any]) -> None:
        self.inputs.append(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        self.inputs[-1] = {**self.inputs[-1], **context.extras}


@dataclass(frozen=True)
class Listening:
    """A method whose drafter listens."""

    views: Mapping[str, Callable[[ChatSource], Mapping[str, Any]]]
    listener: Listener = field(default_factory=Listener)

    def plan(self, models: Models) -> Plan:
        plain = PlainDecoding().plan(models)
        extras = {VIEWS_EXTRA: partial(read_views, self.views)} if self.views else {}
        return replace(plain, drafter=self.listener, uses_draft=True, extras=extras)

    @property
    def heard(self) -> Mapping[str, Any]:
        """The draft's inputs of the only call."""
        (inputs,) = self.listener.inputs
        return inputs


def text_view(source: ChatSource) -> Mapping[str, Any]:
    return source.process([without_media(chat) for chat in source.conversations])


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load(device="cpu", calibrate=False)


def test_a_view_of_messages_is_made_when_it_is_wanted(engine: draftlens.Engine) -> None:
    sources = []

    def make(source: ChatSource) -> Mapping[str, Any]:
        sources.append(source)
        return text_view(source)

    method = Listening({"text": make})
    stream = engine.stream("What is this?", images=RED, method=method, max_new_tokens=2)
    next(stream)
    assert sources == []
    stream.run()
    made = method.heard["views"]["text"]()
    wanted = engine.read("\nWhat is this?").target
    assert torch.equal(made["input_ids"], wanted["input_ids"])
    assert "pixel_values" not in made
    assert "pixel_values" in method.heard
    assert len(sources) == 1


def test_the_source_reads_and_writes_with_the_draft_and_knows_the_target(
    engine: draftlens.Engine,
) -> None:
    sources = []

    def make(source: ChatSource) -> Mapping[str, Any]:
        sources.append(source)
        return {}

    method = Listening({"text": make})
    inputs = engine.read("Hello", images=RED)
    engine.answer(inputs, method=method, max_new_tokens=2).run()
    assert method.heard["views"]["text"]() == {}
    (source,) = sources
    assert source.conversations == inputs.chats
    for process in (source.process, source.target.process):
        again = process(source.conversations)
        assert torch.equal(again["input_ids"], inputs.target["input_ids"])
        assert torch.equal(again["pixel_values"], inputs.target["pixel_values"])
    tokenizer = engine.draft.processor.tokenizer
    ids = [*tokenizer.encode("a red ball"), tokenizer.eos_token_id]
    assert source.decode(ids) == source.target.decode(ids) == "a red ball"


def test_a_batch_has_a_conversation_for_each_row(engine: draftlens.Engine) -> None:
    chats = [
        [{"role": "user", "content": [{"type": "image", "image": RED}]}],
        [{"role": "user", "content": "Hello"}],
    ]
    inputs = engine.read(messages=chats)
    assert [len(chat.images) for chat in inputs.chats] == [1, 0]
    method = Listening({"text": text_view})
    engine.answer(inputs, method=method, max_new_tokens=2).run()
    assert method.heard["views"]["text"]()["input_ids"].shape[0] == 2


def test_a_given_view_is_taken_instead(engine: draftlens.Engine) -> None:
    inputs = engine.read("What?", images=RED)
    own = {"input_ids": torch.tensor([[5, 6]])}
    given = replace(inputs, draft={**inputs.target, "views": {"text": own}})
    method = Listening({"text": text_view, "caption": text_view})
    engine.answer(given, method=method, max_new_tokens=2).run()
    assert method.heard["views"].keys() == {"text", "caption"}
    assert torch.equal(method.heard["views"]["text"]()["input_ids"], own["input_ids"])
    assert method.heard["views"]["caption"]()["input_ids"].shape[1] > 2


def test_tensors_alone_make_no_view(engine: draftlens.Engine) -> None:
    inputs = engine.read("What?", images=RED).target
    method = Listening({"text": text_view})
    model = engine.target.backbone
    draftlens.generate(model, inputs, draft=model, method=method, max_new_tokens=2)
    assert method.heard["views"] == {}


def test_a_plan_without_views_gets_none(engine: draftlens.Engine) -> None:
    method = Listening({})
    engine.stream("What?", images=RED, method=method, max_new_tokens=2).run()
    assert "views" not in method.heard


def row(number: int = 1) -> dict[str, Any]:
    """Processor output of so many rows."""
    return {"input_ids": torch.ones(number, 3, dtype=torch.long)}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"txt": row()}, "does not read: txt; it reads text"),
        (["text"], "map names of views .* not list"),
        ({"text": 3}, r"\['views'\]\['text'\] is the output .* not int"),
        ({"text": {}}, r"\['text'\] must hold input_ids for 1 rows, not 0"),
        ({"text": row(2)}, r"\['text'\] must hold input_ids for 1 rows, not 2"),
    ],
)
def test_views_that_do_not_fit_are_refused(
    engine: draftlens.Engine, given: Any, sentence: str
) -> None:
    inputs = engine.read("What?").target
    with pytest.raises(InputError, match=sentence):
        draftlens.generate(
            engine.target.backbone,
            inputs,
            draft=engine.draft.backbone,
            draft_inputs={**inputs, "views": given},
            method=Listening({"text": text_view}),
            max_new_tokens=2,
        )


def test_speculative_decoding_reads_no_views(engine: draftlens.Engine) -> None:
    inputs = engine.read("What?").target
    with pytest.raises(ConfigError, match=r"use one that does \('tabed'\), or leave them out"):
        draftlens.generate(
            engine.target.backbone,
            inputs,
            draft=engine.draft.backbone,
            draft_inputs={**inputs, "views": {"text": inputs}},
            max_new_tokens=2,
        )


def test_the_callers_own_generate_takes_views_too(engine: draftlens.Engine) -> None:
    inputs = engine.read("What?").target
    method = Listening({"text": text_view})
    custom = draftlens.SpeculativeGenerate(
        engine.draft.backbone, {**inputs, "views": {"text": inputs}}, method
    )
    model = engine.target.backbone.model
    model.generate(**inputs, max_new_tokens=2, do_sample=False, custom_generate=custom)
    assert torch.equal(method.heard["views"]["text"]()["input_ids"], inputs["input_ids"])
