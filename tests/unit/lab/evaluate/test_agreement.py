"""A draft's agreement with its target, from one forward: the same figures that the engine itself
ends up with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from draftlens_lab.evaluate.agreement import (
    KEPT_SHARES,
    Pruning,
    agreement,
    prunings,
    ranks_of,
    token_kinds,
    visual_dependence,
)
from draftlens_lab.evaluate.answers import Answer, ModelAnswerer, conversation, render_side
from draftlens_lab.evaluate.ranks import Ranks
from draftlens_lab.evaluate.samples import caption_samples, question_samples
from draftlens_lab.measure.rounds import GAMMA, acceptance_length, rounds
from draftlens_lab.world import marked_caption, seen_spans
from draftlens_lab.world.samples import Sample
from draftlens_lab.world.wording import unmark
from families import FAMILIES
from stock import noisy

from draftlens.engine import Engine
from draftlens.methods.speculative import SpeculativeDecoding
from draftlens.models.adapter import Backbone
from draftlens.models.load import Loaded
from draftlens.models.prompt import Prompt

TEMPLATE = """{%- for message in messages %}{{ message['role'] }}: {% for item in message['content'] -%}
{%- if item['type'] == 'image' %}IMAGE{% elif item['type'] == 'video' %}VIDEO{% else %}{{ item['text'] }}{% endif -%}
{%- endfor %} {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
SIDE, FRAMES, NEW = 16, 3, 40
NAMES = ("llava_onevision", "qwen2_5_vl", "qwen3_vl")
EVERYTHING = [Pruning(Fraction(1), 0)]


@cache
def asker(name: str) -> ModelAnswerer:
    """A tiny target and a draft that half agrees."""
    family = next(family for family in FAMILIES if family.name == name)
    processor, model = family.processor(), family.build()
    processor.chat_template = TEMPLATE.replace("IMAGE", family.image).replace(
        "VIDEO", family.video or ""
    )
    pair = (
        Loaded(role, Backbone.of(m), processor)
        for role, m in (("target", model), ("draft", noisy(model)))
    )
    return ModelAnswerer(Engine(*pair), SIDE)


@cache
def answered(name: str, **options: Any) -> tuple[list[Sample], list[Answer]]:
    """Clips and what the target says of them; answers are cut to different lengths."""
    samples = caption_samples("clip", 4, 0)
    who = asker(name)
    inputs = who.inputs([conversation(sample, FRAMES, SIDE) for sample in samples])
    result = who.engine.answer(inputs, method="plain", max_new_tokens=NEW, **options).run()
    lengths = (NEW, 1, 17, 2)
    return samples, [
        Answer("", tuple(ids[:count])) for ids, count in zip(result.tokens, lengths, strict=True)
    ]


def engines_length(name: str, gamma: int, **options: Any) -> float:
    """Mean acceptance length of the real engine over the same answers, each by itself and as
    long."""
    samples, answers = answered(name, **options)
    emitted = passes = 0
    for sample, answer in zip(samples, answers, strict=True):
        who = asker(name)
        inputs = who.inputs([conversation(sample, FRAMES, SIDE)])
        method = SpeculativeDecoding(num_speculative_tokens=gamma)
        result = who.engine.answer(
            inputs, method=method, max_new_tokens=len(answer.tokens), **options
        ).run()
        assert result.tokens == [list(answer.tokens)]
        emitted += result.stats.emitted - result.stats.first
        passes += result.stats.passes
    return emitted / passes


@pytest.mark.parametrize("gamma", [1, 3, 5, 10])
@pytest.mark.parametrize("name", NAMES)
def test_the_simulation_gives_the_engines_mean_acceptance_length(name: str, gamma: int) -> None:
    samples, answers = answered(name)
    counted: list[int] = []
    (ranks,) = ranks_of(asker(name), samples, answers, FRAMES, EVERYTHING, counted.append)
    assert sum(counted) == len(samples)
    assert list(map(len, ranks)) == [len(answer.tokens) - 1 for answer in answers]
    length = acceptance_length([[rank == 1 for rank in row] for row in ranks], gamma)
    assert length == engines_length(name, gamma)
    assert length is not None
    assert 1 < length < gamma + 1, "a draft that never or always agrees proves little"


def test_the_calls_logits_processors_bend_the_draft_too() -> None:
    """As they do in a session: a repetition penalty makes other tokens first."""
    who, samples = asker("llava_onevision"), answered("llava_onevision")[0]
    config = who.engine.target.backbone.model.generation_config
    config.repetition_penalty = 1.7
    try:
        answers = answered("llava_onevision", repetition_penalty=1.7)[1]
        (bent,) = ranks_of(who, samples, answers, FRAMES, EVERYTHING, ignore)
        expected = engines_length("llava_onevision", 5, repetition_penalty=1.7)
    finally:
        config.repetition_penalty = None
    assert acceptance_length([[rank == 1 for rank in row] for row in bent], 5) == expected
    (straight,) = ranks_of(who, samples, answers, FRAMES, EVERYTHING, ignore)
    assert straight != bent


def test_a_draft_that_knows_fewer_ids_ranks_the_others_last() -> None:
    whole, (samples, answers) = asker("llava_onevision"), answered("llava_onevision")
    family = next(family for family in FAMILIES if family.name == "llava_onevision")
    target = whole.engine.target
    known = target.backbone.vocab_size - 4
    small = Loaded("draft", Backbone.of(family.build(vocab_size=known)), target.processor)
    who = ModelAnswerer(Engine(target, small), SIDE)
    strange = [
        Answer("", (*answers[0].tokens[:5], known + 1, *answers[0].tokens[6:])),
        *answers[1:],
    ]
    (ranks,) = ranks_of(who, samples, strange, FRAMES, EVERYTHING, ignore)
    assert ranks[0][4] == known + 2  # behind all that it knows, and the one unknown of a lower id


def test_ranks_count_what_stands_before() -> None:
    """One row alone, step by step through the model's own forward."""
    who, (samples, answers) = asker("qwen2_5_vl"), answered("qwen2_5_vl")
    (ranks,) = ranks_of(who, samples, answers, FRAMES, EVERYTHING, ignore)
    assert who.engine.draft is not None
    model = who.engine.draft.backbone.model
    inputs = who.inputs([conversation(samples[2], FRAMES, SIDE)]).target
    prompt = inputs["input_ids"].shape[1]
    slow = []
    for count in range(1, 6):
        tokens = torch.tensor([answers[2].tokens[:count]])
        full = {**inputs, "input_ids": torch.cat([inputs["input_ids"], tokens], 1)}
        for name in ("attention_mask", "mm_token_type_ids"):
            if name in full:
                fill = torch.full_like(tokens, int(name == "attention_mask"))
                full[name] = torch.cat([full[name], fill], 1)
        with torch.no_grad():
            order = model(**full).logits[0, prompt + count - 1].argsort(descending=True).tolist()
        slow.append(order.index(answers[2].tokens[count]) + 1)
    assert ranks[2][:5] == slow
    assert any(rank > 1 for row in ranks for rank in row)


def ignore(count: int) -> None:
    """Nobody counts."""


def encoded(name: str) -> tuple[list[Sample], Prompt]:
    """Clips as the draft sees them."""
    samples, who = answered(name)[0], asker(name)
    assert who.engine.draft is not None
    draft = who.engine.draft.backbone
    inputs = who.inputs([conversation(sample, FRAMES, SIDE) for sample in samples])
    return samples, draft.encode(draft.prepare(inputs.target, max_new_tokens=1))


@pytest.mark.parametrize("kept", KEPT_SHARES)
def test_pruning_leaves_all_text_and_so_many_visual_tokens(kept: Fraction) -> None:
    samples, prompt = encoded("llava_onevision")
    pruned = Pruning(kept, 0)(prompt, samples)
    for row, (before, after) in enumerate(zip(prompt.lengths, pruned.lengths, strict=True)):
        visual = int(prompt.visual[row].sum())
        assert int(pruned.visual[row, :after].sum()) == int(visual * kept)
        text = [
            p.embeds[row, :n][~p.visual[row, :n]] for p, n in ((prompt, before), (pruned, after))
        ]
        assert torch.equal(*text)
    assert torch.equal(pruned.next_position, prompt.next_position)


def test_pruning_is_by_chance_and_the_same_in_every_batch() -> None:
    samples, prompt = encoded("llava_onevision")
    once, again, other = (
        Pruning(Fraction(1, 4), draw)(prompt, samples).position_ids for draw in (0, 0, 1)
    )
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert not torch.equal(once[0], once[2])  # clips differ in what is left
    who = asker("llava_onevision")
    assert who.engine.draft is not None
    draft = who.engine.draft.backbone
    alone = draft.prepare(
        who.inputs([conversation(samples[2], FRAMES, SIDE)]).target, max_new_tokens=1
    )
    single = Pruning(Fraction(1, 4), 0)(draft.encode(alone), samples[2:3])
    assert torch.equal(single.position_ids[0], once[2, : single.lengths[0]])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_out_changes_the_drafts_ranks(name: str) -> None:
    samples, answers = answered(name)
    tried = [
        Pruning(Fraction(1), 0),
        Pruning(Fraction(1, 4), 0),
        Pruning(Fraction(1, 4), 1),
        Pruning(Fraction(0), 0),
    ]
    ranks = ranks_of(asker(name), samples, answers, FRAMES, tried, ignore)
    assert len({str(of) for of in ranks}) == 4


def test_every_share_between_all_and_none_is_tried_several_times() -> None:
    tried = prunings()
    assert tried[0] == Pruning(Fraction(1), 0)
    counts = [sum(pruning.kept == kept for pruning in tried) for kept in KEPT_SHARES]
    assert counts == [1, 3, 3, 3, 3, 1]


def test_visual_dependence_of_known_ranks() -> None:
    """All guesses right with everything, every second right with a part, none without: lengths 6, 2
    and 1."""
    tokens = 600
    rows: dict[Fraction, Ranks] = {Fraction(1): [1] * tokens, Fraction(0): [2] * tokens}
    tried = prunings()
    ranks = [[rows.get(pruning.kept, [1, 2] * (tokens // 2))] * 8 for pruning in tried]
    found = visual_dependence(tried, ranks, seed=0)
    assert (found["gamma"], found["clips"]) == (GAMMA, 8)
    assert [row["acceptance_length"] for row in found["kept"]] == [6, 2, 2, 2, 2, 1]
    assert [row["removed"] for row in found["kept"]] == [0, 0.5, 0.75, 0.9, 0.95, 1]
    assert [row["fall"] for row in found["kept"]] == pytest.approx([0, *[2 / 3] * 4, 5 / 6])
    assert all(row["fall_interval"] == pytest.approx((row["fall"],) * 2) for row in found["kept"])
    assert [row["agreed"]["total"] for row in found["kept"]] == [
        8 * tokens,
        *[24 * tokens] * 4,
        8 * tokens,
    ]


def test_intervals_are_over_clips_and_paired() -> None:
    """Clips that differ much, but all lose half: the length is uncertain, the fall is not."""
    patterns: list[tuple[Ranks, Ranks]] = [
        ([1], [1, 1, 2]),
        ([1, 1, 1, 2], [1, 2]),
        ([1, 2], [2]),
    ]  # 6 to 3, 4 to 2 ...
    rng, tried = np.random.default_rng(0), [Pruning(kept, 0) for kept in KEPT_SHARES]
    chosen = [patterns[i] for i in rng.integers(3, size=30)]
    whole, lost = (
        [pattern[part] * (120 // len(pattern[part])) for pattern in chosen] for part in (0, 1)
    )
    found = visual_dependence(tried, [whole, *[lost] * 5], seed=0)["kept"]
    passes = [len(rounds([rank == 1 for rank in row], GAMMA)) for row in whole]
    assert found[0]["acceptance_length"] == sum(map(len, whole)) / sum(passes)
    low, high = found[0]["length_interval"]
    assert low + 0.2 < found[0]["acceptance_length"] < high - 0.2
    assert found[1]["fall"] == pytest.approx(0.5)
    assert found[1]["fall_interval"] == pytest.approx((0.5, 0.5))


def spelled(text: str) -> tuple[list[int], Any]:
    """The text as ids of words, parts of words and points, and what turns them back."""
    pieces: list[str] = []
    for word in text.split(" "):
        cut = [
            part
            for part in (word[:3], word[3:].rstrip(".,"), "." if word.endswith(".") else "")
            if part
        ]
        cut = cut if "".join(cut) == word else [word]
        pieces += [(" " if pieces and i == 0 else "") + part for i, part in enumerate(cut)]

    def decode(ids: list[int]) -> str:
        return "".join(pieces[i] if i < len(pieces) else "" for i in ids)

    return [*range(len(pieces)), 10_000], decode


def test_tokens_that_tell_what_was_seen() -> None:
    told = marked_caption(caption_samples("clip", 1, 0)[0].scenes[0])
    text = unmark(told)
    ids, decode = spelled(text)
    kinds = token_kinds(told, ids, decode)
    assert kinds[-1] is None  # the end is no text
    assert None not in kinds[:-1]
    seen, at = set(), 0
    for start, end in seen_spans(told):
        seen |= set(range(start, end))
    for index, kind in zip(ids[:-1], kinds[:-1], strict=True):
        piece = decode([index])
        inside = [at + i in seen for i, letter in enumerate(piece) if letter != " "]
        assert kind == any(inside), piece
        at += len(piece)
    assert {True, False} <= set(kinds)
    points = [kind for index, kind in zip(ids, kinds, strict=True) if decode([index]) == "."]
    assert points
    assert not any(points)


def test_space_before_an_answer_shifts_nothing() -> None:
    kinds = token_kinds(
        "a [red] ring", [0, 1, 2], lambda ids: "".join([" a", " red", " ring"][i] for i in ids)
    )
    assert kinds == [False, True, False]


def test_agreement_of_known_ranks() -> None:
    told = "a [red] ring"
    turn = caption_samples("clip", 1, 0)[0]
    samples = [_with(turn, told), _with(turn, told)]
    words = ["a", " red", " ring", ""]
    answers = [Answer("a red ring", (0, 1, 2, 3)), Answer("a blue ring", (0, 1, 2, 3))]
    found = agreement(
        samples, answers, [[2, 1, 1], [1, 3, 9]], lambda ids: "".join(words[i] for i in ids)
    )
    assert (found["agreed"]["right"], found["agreed"]["total"]) == (3, 6)
    assert [share["right"] for share in found["top"].values()] == [3, 4, 5, 5]
    assert found["right_captions"] == 1
    assert (found["seen"]["right"], found["seen"]["total"]) == (0, 1)
    assert (found["connecting"]["right"], found["connecting"]["total"]) == (1, 1)
    assert found["acceptance_length"]["1"] == 6 / 4
    assert list(found["by_depth"]) == [str(depth) for depth in range(1, 11)]


def _with(sample: Sample, told: str) -> Sample:
    return replace(sample, turns=(replace(sample.turns[0], marked_answer=told),))


class Recorder(ModelAnswerer):
    """Answers by rote, and keeps what it was shown."""

    def __init__(self, name: str) -> None:
        super().__init__(asker(name).engine, SIDE)
        self.seen: list[Any] = []

    def inputs(self, conversations: Sequence[Any]) -> Any:
        self.seen.append(list(conversations))
        return super().inputs(conversations)


def test_a_second_turn_follows_the_models_own_first_answer() -> None:
    who = Recorder("llava_onevision")
    samples = question_samples("follow-up", 3, 0)
    answers = who.answer(samples, FRAMES, ignore)
    assert len(answers) == 3
    first, second = who.seen[-2:]
    for sample, before, after in zip(samples, first, second, strict=True):
        assert [m["role"] for m in after.messages] == ["user", "assistant", "user"]
        assert after.messages[0] == before.messages[0]
        assert after.messages[2]["content"][0]["text"] == sample.turns[1].question
        single = asker("llava_onevision").answer([_first_only(sample)], FRAMES, ignore)[0].text
        said = after.messages[1]["content"][0]["text"]
        assert said.startswith(single[:8])
    assert all(len(c.videos) == 1 for c in second)


def _first_only(sample: Sample) -> Sample:
    return Sample(sample.kind, sample.scenes, sample.turns[:1])


@pytest.mark.parametrize("family", ["retrieval", "picture", "difference", "text only"])
def test_batches_answer_as_single_samples_do(family: str) -> None:
    who, samples = asker("llava_onevision"), question_samples(family, 3, 0)
    counted: list[int] = []
    together = who.answer(samples, FRAMES, counted.append)
    assert sum(counted) == 3
    room = len(together[0].tokens)
    for sample, answer in zip(samples, together, strict=True):
        alone = who.engine.answer(
            who.inputs([conversation(sample, FRAMES, SIDE)]), method="plain", max_new_tokens=room
        ).run()
        assert alone.tokens == [list(answer.tokens)]
        assert alone.text.strip() == answer.text


def test_prompts_are_as_long_as_their_clips() -> None:
    who, (sample,) = asker("llava_onevision"), caption_samples("clip", 1, 0)
    few, many = (who.visual_tokens(sample, frames) for frames in (2, 6))
    assert (many - 1) == 3 * (few - 1)  # one newline a clip
    (batch,) = who.batches([sample], 2)
    assert batch == [sample]
    sizes = [len(batch) for batch in who.batches(caption_samples("clip", 9, 0), 400)]
    assert sum(sizes) == 9
    assert len(sizes) > 1
    assert not list(who.batches([], 8))


def test_scenes_are_rendered_as_large_as_the_processor_shows_them() -> None:
    processors = {name: asker(name).engine.target.processor for name in NAMES}
    assert render_side(processors["llava_onevision"]) == 16
    assert render_side(processors["qwen2_5_vl"]) == 256
    shown = conversation(caption_samples("clip", 1, 0)[0], 5, 32).videos[0]
    assert shown.frames.shape == (5, 32, 32, 3)
    assert shown.timestamps == pytest.approx([0.4, 1.2, 2.0, 2.8, 3.6])
    assert list(shown.frame_indices) == shown.metadata.frames_indices
    assert shown.metadata.fps == 24
