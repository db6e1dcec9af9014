"""A model that nothing can be drafted for, in everything that an engine does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES

import draftlens
from draftlens.core.prefill_readings import FeatureSpec
from draftlens.decoding.plan import NoDraft
from draftlens.serve.options import ServeOptions
from draftlens.verify import run_stock
from tests.e2e.conftest import CLIPS
from tests.e2e.serve.running import serving
from tests.e2e.test_families import save_pair

NEW = 20
PICTURE = str(CLIPS / "shapes.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose configuration names a layer of cross-attention, and its processor."""
    family = next(family for family in FAMILIES if family.name == "llava_onevision")
    folder = tmp_path_factory.mktemp("crossed")
    return Path(save_pair(family, folder, cross_attention_layers=[1])[0])


@pytest.fixture(scope="module")
def engine(folder: Path) -> draftlens.Engine:
    return draftlens.load(str(folder), device="cpu")


def test_load_takes_plain_decoding_with_a_notice(folder: Path, engine: draftlens.Engine) -> None:
    assert engine.method == draftlens.Automatic()
    assert isinstance(engine.plan().drafter, NoDraft)
    assert "cross-attention" in engine.notice
    assert "'plain'" in engine.notice
    for options in ({"method": "lookup"}, {"prefill": "ring"}):
        with pytest.raises(draftlens.UnsupportedModelError, match="cross-attention"):
            draftlens.load(str(folder), device="cpu", **options)
    with pytest.raises(draftlens.UnsupportedModelError, match="it cannot draft"):
        draftlens.load(str(folder), str(folder), device="cpu")


def test_answers_of_one_engine_at_once(engine: draftlens.Engine) -> None:
    """The second joins while the first runs."""
    asked: list[dict[str, Any]] = [{}, {"images": PICTURE}]

    async def ask() -> list[draftlens.Result]:
        answers = (engine.agenerate("what is it", max_new_tokens=NEW, **media) for media in asked)
        return list(await asyncio.gather(*answers))

    for media, result in zip(asked, asyncio.run(ask()), strict=True):
        inputs = engine.read("what is it", **media).target
        expected = run_stock(engine.target.backbone, inputs, max_new_tokens=NEW).tokens
        assert result.tokens == expected
        assert "cross-attention" in result.notes[0]


def test_the_second_turn_of_a_chat(engine: draftlens.Engine) -> None:
    chat = engine.chat(images=PICTURE)
    chat.ask("what is it", max_new_tokens=9)
    result = chat.ask("and now", max_new_tokens=NEW)
    words = [(turn["role"], turn["content"][-1]["text"]) for turn in chat.messages[:3]]
    messages: list[Any] = [
        {"role": role, "content": [{"type": "text", "text": said}]} for role, said in words
    ]
    messages[0]["content"].insert(0, {"type": "image", "image": PICTURE})
    inputs = engine.read(messages=messages).target
    assert result.tokens == run_stock(engine.target.backbone, inputs, max_new_tokens=NEW).tokens
    assert result.stats.cached_tokens == 0  # nothing of such a model is stored


def test_the_server(engine: draftlens.Engine) -> None:
    """Two samples of one request do not share a cache."""
    inputs = engine.read("what is it").target
    expected = run_stock(engine.target.backbone, inputs, max_new_tokens=NEW).tokens[0]
    text = engine.target.processor.tokenizer.decode(expected, skip_special_tokens=True)
    with serving(engine, ServeOptions()) as server:
        answer = server.client().chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "what is it"}],
            max_tokens=NEW,
            temperature=0,
            n=2,
        )
    assert [choice.message.content for choice in answer.choices] == [text, text]


def test_commands(command: Any, folder: Path, tmp_path: Path) -> None:
    """A picture, a folder of pictures, and what `doctor` says of the model."""
    options = ("--target", str(folder), "--device", "cpu")
    answering = ("ask", PICTURE, "--prompt", "what", *options, "--max-new-tokens", "8")
    status, printed, error = command(*answering, "--json")
    assert status == 0, error
    answer = json.loads(printed)
    assert answer["lossless"]
    assert "cross-attention" in answer["notes"][0]
    _, _, line = command(*answering)
    assert line.splitlines()[-1].count("cross-attention") == 1
    status, _, _ = command(*answering, "--out", str(tmp_path / "answers.jsonl"))
    assert status == 0
    assert "error" not in json.loads((tmp_path / "answers.jsonl").read_text().splitlines()[-1])
    status, _, error = command(*answering, "--method", "lookup")
    assert status == 2
    assert "cross-attention" in error
    _, printed, _ = command("doctor", *options, "--json")
    assert "cross-attention" in json.loads(printed)["drafting"]


def test_pages_are_answered_without_drafts(engine: draftlens.Engine) -> None:
    settings = draftlens.ParseSettings(max_new_tokens=NEW, verify=True)
    parser = draftlens.DocumentParser(engine, settings)
    (page,) = parser.parse(PICTURE)
    assert page.error is None
    assert page.lossless
    assert not page.differs
    assert "cross-attention" in parser.notes[0]
    with pytest.raises(draftlens.ConfigError, match="no use for crops"):
        draftlens.DocumentParser(engine, draftlens.ParseSettings(stages="regions"))


def test_passes_stay_those_of_the_modules(
    engine: draftlens.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    before = engine.generate("what is it", max_new_tokens=NEW).tokens
    for mode in (True, "auto", False):
        engine.compile(mode)
        assert engine.generate("what is it", max_new_tokens=NEW).tokens == before
    warnings = [record for record in caplog.records if "do not run by" in record.getMessage()]
    assert len(warnings) == 1  # the default engine says nothing


def test_readings_of_the_prefill_are_refused(engine: draftlens.Engine) -> None:
    inputs = engine.read("what is it", images=PICTURE)
    spec = FeatureSpec(hidden_layers=(1,))
    with pytest.raises(draftlens.UnsupportedModelError, match="leave out the readings"):
        engine.answer(inputs, readings=spec, max_new_tokens=2)
