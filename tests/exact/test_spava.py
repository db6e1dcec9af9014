"""Prompts read in blocks: what is exact there, and what speculation must not change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import NEW, draft, reference, target

import draftlens
from draftlens.core.prefill_readings import ATTENTION
from draftlens.inputs import Inputs
from draftlens.media import conversation as media
from draftlens.models.adapter import Backbone
from draftlens.models.prompt_subset import gather
from draftlens.prefill.base import PrefillReading, make_prefill
from draftlens.prefill.spava import one_process
from draftlens.prefill.spava.config import SpavaPrefill
from draftlens.pruning.base import Choice

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)

BLOCKS = {"name": "spava", "anchor": 2, "passing": 1, "blocks": 5}
"""A few tokens for each block, since the prompts are short."""

ABLATION = {**BLOCKS, "name": "spava-ablation"}

EVERYTHING = {**BLOCKS, "passing": "n/1"}


def answer(family: Family, prefill: Any, **options: Any) -> draftlens.Result:
    return draftlens.generate(
        target(family),
        inputs(family, family.richest),
        prefill=prefill,
        max_new_tokens=NEW,
        **options,
    )


@cache
def plain(family: Family) -> draftlens.Result:
    """Plain decoding of the family's ragged batch, which is read in blocks."""
    return answer(family, BLOCKS)


@every_family
def test_passing_everything_is_exact(family: Family) -> None:
    """Every block sees all keys before it then."""
    assert answer(family, EVERYTHING).tokens == reference(family, family.richest)


@every_family
def test_it_is_approximate(family: Family) -> None:
    """Otherwise the tests below would compare nothing."""
    result = plain(family)
    assert result.tokens != reference(family, family.richest)
    assert not result.lossless
    assert result.approximate == ("spava prefill: 5 blocks, anchor 2, passing 1",)


@pytest.mark.parametrize("family", [FAMILIES[2], FAMILIES[4], FAMILIES[6]], ids=str)
@pytest.mark.parametrize(
    "method",
    [
        {"num_speculative_tokens": 5},
        {"tree": "eagle"},
        {"method": "specvlm", "num_speculative_tokens": 3, "prune_ratio": 0.5},
    ],
    ids=["chain", "eagle", "specvlm"],
)
def test_speculation_gives_the_tokens_of_plain_decoding(family: Family, method: Any) -> None:
    """On the same prefill: probes beside the pass change nothing."""
    result = answer(family, BLOCKS, draft=draft(family), method=method)
    assert result.tokens == plain(family).tokens
    assert result.stats.accepted > 0
    assert result.approximate == plain(family).approximate


def test_the_same_key_in_the_callers_own_generate() -> None:
    family = FAMILIES[2]
    custom = draftlens.SpeculativeGenerate(None, prefill=BLOCKS)
    given = inputs(family, family.richest)
    ids = target(family).generate(**given, max_new_tokens=NEW, custom_generate=custom)
    assert ids[:, given["input_ids"].shape[1] :].tolist() == plain(family).tokens
    assert custom.last is not None
    assert custom.last.approximate == plain(family).approximate


@every_family
def test_rows_do_not_touch_each_other(family: Family) -> None:
    """A row beside others is divided as by itself."""
    rows = inputs(family, family.richest, rows=(2,))
    alone = draftlens.generate(target(family), rows, prefill=BLOCKS, max_new_tokens=NEW)
    assert alone.tokens == plain(family).tokens[2:]


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.richest == "mixed"], ids=str)
def test_rows_without_pictures_are_exact(family: Family) -> None:
    """The others of the same batch are not, and the result says which is which."""
    result = plain(family)
    assert result.tokens[1] == reference(family, "mixed")[1]
    assert result.notes == ("row 1 was read exactly: it shows neither a picture nor a clip",)
    for row in (0, 2):
        assert result.tokens[row] != reference(family, "mixed")[row]


@every_family
def test_a_text_in_blocks(family: Family) -> None:
    """Passing everything is exact, passing little is not, and speculation follows it."""
    texts = inputs(family, "text")

    def of_texts(prefill: Any, **options: Any) -> draftlens.Result:
        prefill = {**prefill, "blocks": 2, "query_tokens": 2}
        return draftlens.generate(
            target(family), texts, prefill=prefill, max_new_tokens=NEW, **options
        )

    assert of_texts(EVERYTHING).tokens == reference(family, "text")
    result = of_texts({**BLOCKS, "anchor": 1, "passing": 0})
    assert result.tokens != reference(family, "text")
    assert result.approximate == (
        "spava prefill: 2 blocks, anchor 1, nothing passed, the last 2 tokens of texts as query",
    )
    assert not result.notes
    drafted = of_texts(
        {**BLOCKS, "anchor": 1, "passing": 0},
        draft=draft(family),
        method={"num_speculative_tokens": 3},
    )
    assert drafted.tokens == result.tokens


@every_family
def test_what_is_too_short_is_exact(family: Family) -> None:
    """For the defaults all of these prompts are."""
    result = answer(family, {"name": "spava", "blocks": 500})
    assert result.tokens == reference(family, family.richest)
    assert result.lossless
    assert result.approximate == ()
    assert len(result.notes) == 3


@pytest.mark.parametrize("family", [FAMILIES[2], FAMILIES[3]], ids=str)
@pytest.mark.parametrize(
    "prefill",
    [
        *({**ABLATION, "select": select} for select in ("random", "uniform")),
        {**BLOCKS, "select": "query"},
        {**BLOCKS, "passing": 0},
        {**BLOCKS, "anchor": 0},
        {"name": "star", "blocks": 4},
    ],
    ids=["random", "uniform", "query", "none", "no anchor", "star"],
)
def test_the_ablations_differ(family: Family, prefill: Any) -> None:
    """Each computes something of its own."""
    logits = [first_logits(family, choice) for choice in (prefill, BLOCKS, "full")]
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    assert (logits[0] - logits[2]).abs().max() > 1e-3


def first_logits(family: Family, prefill: Any) -> torch.Tensor:
    backbone = Backbone.of(target(family))
    prompt = backbone.encode(backbone.prepare(inputs(family, family.richest), max_new_tokens=1))
    cache = backbone.new_cache(prompt, 1)
    reader = make_prefill(prefill)
    return reader.run(backbone, PrefillReading(prompt, cache)).logits


@every_family
def test_readings_of_the_query_are_those_of_its_softmax(family: Family) -> None:
    """If everything is passed, the readings are those of the full prefill."""
    backbone = Backbone.of(target(family))
    prompt = backbone.encode(backbone.prepare(inputs(family, family.richest), max_new_tokens=1))
    readings = []
    for prefill in (make_prefill("full"), SpavaPrefill(2, "n/1", 5)):
        cache = backbone.new_cache(prompt, 1)
        readings.append(prefill.run(backbone, PrefillReading(prompt, cache, ATTENTION)).readings)
    full, blocks = readings
    assert full.attention is not None
    assert blocks.attention is not None
    assert torch.allclose(full.attention, blocks.attention, atol=1e-4)


IN_CHAT = {"name": "spava", "blocks": 4}
UV = {"method": "specvlm", "pruner": "uv"}
QUESTIONS = ("What happens in this clip?", "Which shapes are there?")
CLIP = "draftlens/embedded/clips/drift.mp4"


@cache
def engine() -> draftlens.Engine:
    made = draftlens.load("embedded", device="cpu", calibrate=False, compile=False)
    made.attach(draftlens.PromptCache("1GB"))
    return made


def turns(method: Any, namespace: str, questions: Sequence[str]) -> list[draftlens.Result]:
    chat = engine().chat(video=CLIP, num_frames=16, namespace=namespace)
    options: dict[str, Any] = {"method": method, "prefill": IN_CHAT, "max_new_tokens": NEW}
    return [chat.ask(question, **options) for question in questions]


def conversation(answer: str) -> Inputs:
    """The second question after an answer to the first one."""
    answered = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
    messages = [*media.ask(QUESTIONS[0], video=CLIP), answered, *media.ask(QUESTIONS[1])]
    return engine().process([media.read(messages, 16)])


@pytest.mark.parametrize(
    "method",
    [{"num_speculative_tokens": 5}, {"tree": "eagle"}, "specvlm", UV, "parallelvlm", "auto"],
    ids=["chain", "eagle", "specvlm", "uv", "parallelvlm", "auto"],
)
def test_later_turns_read_what_is_new_exactly(method: Any) -> None:
    expected = turns("plain", f"plain for {method}", QUESTIONS)
    found = turns(method, f"{method}", QUESTIONS)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    for first, second in (expected, found):
        assert first.stats.cached_tokens == 0
        assert second.stats.cached_tokens >= 16 * 16
        assert first.approximate == second.approximate != ()


def test_a_later_turn_goes_on_from_the_keys_of_the_blocks() -> None:
    """The slow twin: a cache that reads the first prompt in blocks and all that follows at once."""
    first, second = turns("plain", "twin", QUESTIONS)
    backbone = engine().target.backbone
    asked = engine().process([media.read(media.ask(QUESTIONS[0], video=CLIP), 16)])
    begin, whole = (
        backbone.encode(backbone.prepare(inputs.target, max_new_tokens=1))
        for inputs in (asked, conversation(first.text))
    )
    with torch.inference_mode():
        start, length = begin.lengths[0], whole.lengths[0]
        assert torch.equal(whole.embeds[:, :start], begin.embeds)
        cache = backbone.new_cache(whole, NEW)
        prefill = SpavaPrefill(blocks=4)
        prefill.run(backbone, PrefillReading(begin, cache))
        rest = gather(whole, [torch.arange(start, length)])
        logits = backbone.read_on(rest, cache)
        tokens = []
        for step in range(NEW):
            tokens.append(int(logits[0, -1].argmax()))
            if tokens[-1] == engine().target.processor.tokenizer.eos_token_id:
                break
            positions = whole.positions(torch.tensor([[step]]))
            logits = backbone.forward(torch.tensor([tokens[-1:]]), positions, cache, None)
            cache.advance(1)
    assert second.tokens == [tokens]


def test_hidden_states_of_an_earlier_turn_are_those_of_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A method that needs no hidden states leaves none, and the next one reads the turn again."""
    expected = turns("plain", "twin", QUESTIONS)[1].tokens
    lengths = []
    read = one_process._read_alone

    def counted(backbone: Backbone, reading: PrefillReading, *rest: Any) -> Any:
        lengths.append(reading.prompt.lengths[0])
        return read(backbone, reading, *rest)

    monkeypatch.setattr(one_process, "_read_alone", counted)
    scores = []
    for first in ("plain", UV):
        chat = engine().chat(video=CLIP, num_frames=16, namespace=f"states after {first}")
        options: dict[str, Any] = {"prefill": IN_CHAT, "max_new_tokens": NEW}
        chat.ask(QUESTIONS[0], method=first, **options)
        choices: list[Choice] = []
        second = chat.ask(QUESTIONS[1], method=UV, observe=choices.append, **options)
        assert second.tokens == expected
        assert second.stats.cached_tokens >= 16 * 16
        scores.append(choices[0].visual.scores)
    assert lengths == [lengths[0]] * 3
    assert torch.equal(*scores)


def test_another_question_about_a_clip_reads_it_again() -> None:
    """Its keys depend on the question."""
    (expected,) = turns("plain", "alone", QUESTIONS[1:])
    turns("plain", "both", QUESTIONS[:1])
    (found,) = turns("plain", "both", QUESTIONS[1:])
    assert found.stats.cached_tokens == 0
    assert found.tokens == expected.tokens
    (again,) = turns("plain", "both", QUESTIONS[1:])
    assert again.stats.cached_tokens > 16 * 16
    assert again.tokens == expected.tokens


def test_a_prompt_of_which_a_part_was_dropped_is_read_again() -> None:
    first, expected = turns("plain", "whole", QUESTIONS)
    chat = engine().chat(video=CLIP, num_frames=16, namespace="part")
    options: dict[str, Any] = {"method": "plain", "prefill": IN_CHAT, "max_new_tokens": NEW}
    assert chat.ask(QUESTIONS[0], **options).tokens == first.tokens
    memory = engine().target.backbone.prompt_cache
    assert memory is not None
    for (_, namespace), tree in memory._trees.items():
        if namespace.startswith("part"):
            for _ in range(2):  # the answer, and the prompt or a part of it
                tree.remove(next(tree.leaves()))
    model = engine().target.backbone.model
    dropped = {name for name in memory.namespaces(model) if name.startswith("part")}
    second = chat.ask(QUESTIONS[1], **options)
    assert second.stats.cached_tokens == 0
    assert expected.stats.cached_tokens > 0
    # It is stored as a prompt of its own, not as one that goes on from what was dropped.
    assert dropped.isdisjoint(memory.namespaces(model))
    anew = engine().answer(conversation(first.text), namespace="anew", **options).run()
    assert second.tokens == anew.tokens
