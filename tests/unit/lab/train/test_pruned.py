"""Training on pruned prompts: the draft reads what it reads in use, and resumed runs repeat it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draftlens_lab.train import run, train_draft
from draftlens_lab.train.collate import Collator
from draftlens_lab.train.data import Entry, read_data
from draftlens_lab.train.distil import answer_labels, answer_logits
from draftlens_lab.train.draws import Draw, Draws, RatioRange
from draftlens_lab.train.labels import IGNORE, AnswerProcessor
from draftlens_lab.train.options import UNPRUNED_SHARE
from draftlens_lab.train.pruned import PromptPruning, answer_spans, cut, reading_only, taken
from draftlens_lab.train.trainer import TrainingBatch
from families import FAMILIES, Family
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.models.adapter import Backbone
from draftlens.prefill.base import FullPrefill, PrefillReading
from draftlens.pruning import make_pruner
from tests.unit.lab.train.drafts import (
    CLIPS,
    Float64Trainer,
    Interrupt,
    processor_of,
    rounding_of_weights,
    same,
    save_model,
    talk,
    training,
    write_data,
)

NAMED = {family.name: family for family in FAMILIES}
LLAVA = NAMED["llava"]
GUIDED = {"stages": "instruct", "prune_ratio": "0.3..0.9", "unpruned_share": 0.3}
RATIOS = (0.5, 0.0, 0.9, 1.0)


@dataclass
class Given:
    """Draws that are given, by entry."""

    draws: Sequence[Draw]

    def of(self, entry: Entry) -> Draw:
        return self.draws[entry.number]


def mixed_data(folder: Path, video: bool) -> Path:
    """Four entries: a picture, two of them, or a video and a picture, a talk of three answers about
    one, and text alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(3):
        noise = np.random.default_rng(index).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{index}.png")
    entries: list[dict[str, Any]] = [
        {"image": "0.png", "conversations": talk("<image>\nwhat is", "abca")},
        {
            "image": ["1.png", "2.png"],
            "conversations": talk("<image>\n<image>\ntwo", "fgh", "and now", "cd"),
        },
        {
            "image": "2.png",
            "conversations": talk("say", "aa", "<image>\nwhat", "bcdef", "where", "gg"),
        },
        {"conversations": talk("say something", "hhij")},
    ]
    if video:
        entries[0] = {
            "video": str(CLIPS / "drift.mp4"),
            "conversations": talk("<video>\nwhat is", "abca"),
        }
    path = folder / "data.json"
    path.write_text(json.dumps(entries))
    return path


def slow_logits(
    draft: Backbone, target: Backbone, pruning: Pruning, row: dict[str, Any], labels: Tensor
) -> Tensor:
    """The logits ``[N, V]`` before each token of the first labelled answer of one row, as the
    engine computes them: both models read the prompt, and the draft goes on token by token."""
    begin, end = answer_spans(labels)[0]
    prompt_inputs = cut(row, [begin])
    answer = row["input_ids"][:, begin:end]
    target_prompt = target.encode(target.prepare_prompt(prompt_inputs))
    cache = target.new_cache(target_prompt, 1)
    reading = PrefillReading(target_prompt, cache, pruning.pruner.readings)
    readings = FullPrefill().run(target, reading).readings
    context = TargetContext(target_prompt, cache, readings=readings)
    prompt = pruning.apply(draft.encode(draft.prepare_prompt(prompt_inputs)), context).prompt
    draft_cache = draft.new_cache(prompt, 32)
    logits = [draft.prefill(prompt, draft_cache)[0, -1]]
    for step in range(answer.shape[1] - 1):
        positions = prompt.positions(torch.tensor([[step]]))
        token = answer[:, step : step + 1]
        logits.append(draft.forward(token, positions, draft_cache, None)[0, -1])
    return torch.stack(logits)


@pytest.mark.parametrize("pruner", ["specvlm", "uv", "dycoke"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_pruned_batch_is_its_rows_in_use(family: Family, pruner: str, tmp_path: Path) -> None:
    """Labels, kept tokens, positions and logits, with ratios that differ between the rows."""
    data = read_data(mixed_data(tmp_path, "mixed" in family.kinds))
    processor = AnswerProcessor(processor_of(family), "tiny")
    answers = (0, None, 2, None)
    draws = Given([Draw(*each) for each in zip(RATIOS, answers, strict=True)])
    collate: Any = Collator(data, processor, None, 4, draws)  # type: ignore[arg-type]
    draft, target = family.build(0).eval(), Backbone(family.build(3).eval())
    chosen = make_pruner(pruner)
    batch = TrainingBatch.of(collate(data.entries))
    kept = batch.kept(PromptPruning(chosen, target), draft)
    assert kept is not None
    with reading_only(draft, batch.inputs["input_ids"], kept), torch.no_grad():
        logits = answer_logits(draft, draft, batch.inputs, taken(batch.labels, kept))
    assert torch.equal(answer_labels(taken(batch.labels, kept)), answer_labels(batch.labels))
    counts = (batch.labels[:, 1:] != IGNORE).sum(1).tolist()
    for entry, ratio, row_logits in zip(data.entries, RATIOS, logits.split(counts), strict=True):
        row = TrainingBatch.of(collate([entry]))
        slow = slow_logits(
            Backbone(draft), target, Pruning(chosen, ratio), row.inputs, row.labels[0]
        )
        torch.testing.assert_close(row_logits[: len(slow)], slow, rtol=0, atol=1e-4)


def test_one_answer_of_a_pruned_entry_is_trained_and_all_of_others(tmp_path: Path) -> None:
    data = read_data(mixed_data(tmp_path, video=False))
    processor = AnswerProcessor(processor_of(LLAVA), "tiny")
    whole = Collator(data, processor, None, 2)(data.entries)["labels"]
    draws: Any = Given([Draw(0.5, 0), Draw(0.5, 1), Draw(0.5, 1), Draw()])
    batch = Collator(data, processor, None, 2, draws)(data.entries)
    for row, answers in enumerate(([0], [1], [1], [0])):
        spans = [answer_spans(whole[row])[answer] for answer in answers]
        assert answer_spans(batch["labels"][row]) == spans
        assert batch["pruning"].prompts[row] == spans[-1][0]
        begin, end = spans[0]
        assert torch.equal(batch["labels"][row, begin:end], whole[row, begin:end])
    assert [entry.answers_after_media for entry in data.entries] == [(0,), (0, 1), (1, 2), (0,)]


def test_pruned_tokens_get_no_gradient_and_kept_ones_do(tmp_path: Path) -> None:
    """The projector learns from the visual tokens that the draft reads."""
    data = read_data(mixed_data(tmp_path, video=False))
    draws: Any = Given([Draw(0.5, 0)] * 4)
    processor = AnswerProcessor(processor_of(LLAVA), "tiny")
    batch = TrainingBatch.of(Collator(data, processor, None, 2, draws)(data.entries[:1]))
    model = LLAVA.build(0)
    seen: list[Tensor] = []

    def remember(module: Any, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
            seen.append(output)

    model.model.multi_modal_projector.register_forward_hook(remember)
    kept = batch.kept(PromptPruning(make_pruner("uniform"), None), model)
    assert kept is not None
    with reading_only(model, batch.inputs["input_ids"], kept):
        answer_logits(model, model, batch.inputs, taken(batch.labels, kept)).sum().backward()
    gradient = seen[-1].grad
    assert gradient is not None
    visual = (batch.inputs["input_ids"][0] == model.config.image_token_id).nonzero()[:, 0]
    is_kept = torch.isin(visual, kept[0])
    assert 0 < int(is_kept.sum()) < len(visual)
    assert torch.equal(gradient.reshape(len(visual), -1).abs().sum(1) > 0, is_kept)


def test_draws_depend_on_seed_epoch_and_entry_only(tmp_path: Path) -> None:
    entry = read_data(mixed_data(tmp_path, video=False)).entries[2]
    entries = [replace(entry, number=number) for number in range(2000)]
    ratios = RatioRange(0.5, 0.97)
    draws = [Draws(ratios, 0.25, seed=1, epoch=2).of(entry) for entry in entries]
    assert (
        draws == [Draws(ratios, 0.25, seed=1, epoch=2).of(entry) for entry in entries[::-1]][::-1]
    )
    assert draws != [Draws(ratios, 0.25, seed=1, epoch=3).of(entry) for entry in entries]
    assert draws != [Draws(ratios, 0.25, seed=2, epoch=2).of(entry) for entry in entries]
    pruned = [draw for draw in draws if draw.answer is not None]
    assert len(pruned) / len(draws) == pytest.approx(0.75, abs=0.04)
    assert all(0.5 <= draw.ratio <= 0.97 for draw in pruned)
    assert np.mean([draw.ratio for draw in pruned]) == pytest.approx(0.735, abs=0.01)
    assert {draw.answer for draw in pruned} == {1, 2}
    assert {draw.ratio for draw in draws if draw.answer is None} == {0.0}
    text = replace(entry, images=(), number=0)
    assert Draws(ratios, 0.0, seed=1).of(text) == Draw()


@pytest.mark.parametrize(
    ("text", "low", "high"), [("0.9", 0.9, 0.9), ("0.5..0.97", 0.5, 0.97), ("0..1", 0, 1)]
)
def test_a_ratio_is_a_number_or_a_range(text: str, low: float, high: float) -> None:
    assert RatioRange.parse(text) == RatioRange(low, high)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"prune_ratio": "1.1"}, "prune_ratio is a share between 0 and 1, or a range"),
        ({"prune_ratio": "0.9..0.5"}, "such as 0.5..0.97, not '0.9..0.5'"),
        ({"prune_ratio": "most"}, "not 'most'"),
        ({"prune_ratio": "nan"}, "not 'nan'"),
        ({"pruner": "specvlm"}, "pruner is given, but no prune_ratio"),
        ({"unpruned_share": 0.5}, "unpruned_share is given, but no prune_ratio"),
        ({"prune_ratio": "0.9", "target": "t", "unpruned_share": 1.5}, "must be from 0 to 1"),
        ({"prune_ratio": "0.9", "target": "t", "pruner": "no"}, "unknown pruner 'no'"),
        ({"prune_ratio": "0.9", "target": "t", "pruner": "{"}, "pruner is not valid"),
        (
            {"prune_ratio": "0.9", "target": "t", "pruner": '{"name": "specvlm", "layer": 2}'},
            "has no option 'layer'",
        ),
        ({"prune_ratio": "0.9"}, "needs the target's reading of the prompt: name a target"),
        ({"prune_ratio": "0.9", "target": "t", "distil": "d"}, "name the same model"),
        (
            {"prune_ratio": "0.9", "target": "t", "stages": "projector"},
            "the instruct stage, which prunes, is not to be run",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        training(Path("data.json"), Path("out"), "draft", **changed)


def test_pruners_without_readings_need_no_target() -> None:
    options = training(Path("d"), Path("o"), "d", prune_ratio="0.9", pruner="uniform", distil="t")
    assert options.guide is None
    assert options.draws is not None
    assert options.draws.unpruned == UNPRUNED_SHARE


def final(out: Path) -> dict[str, Tensor]:
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_run_repeats_the_draws(llava: str, tmp_path: Path, workers: int) -> None:
    """Interrupted in the second epoch; with other draws, the run learns something else."""
    data = write_data(tmp_path / "data", 6)
    target = save_model(LLAVA, tmp_path / "target", seed=3)
    more = {**GUIDED, "distil": target, "epochs": 2, "workers": workers}
    train_draft(training(data, tmp_path / "whole", llava, **more))
    options = training(data, tmp_path / "parts", llava, **more)
    with pytest.raises(KeyboardInterrupt):
        train_draft(options, callbacks=[Interrupt(5)])
    assert train_draft(options).resumed == {"instruct": 4}
    assert same(final(tmp_path / "whole"), final(tmp_path / "parts"))
    with pytest.raises(ConfigError, match=r"prune_ratio is '0\.3\.\.0\.9' there and '0\.4' here"):
        train_draft(replace(options, prune_ratio="0.4"))
    train_draft(replace(options, out=tmp_path / "less", prune_ratio="0.3..0.5"))
    assert not same(final(tmp_path / "whole"), final(tmp_path / "less"))


def test_pruned_batches_may_be_divided(
    llava: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is learnt depends on the entries, not on the rows of a forward pass."""
    monkeypatch.setattr(run, "DraftTrainer", Float64Trainer)
    data = write_data(tmp_path / "data", 6)
    results = []
    for size in (1, 3):
        out = tmp_path / str(size)
        more = {**GUIDED, "pruner": "uniform", "batch": 3, "device_batch": size, "max_steps": 2}
        train_draft(training(data, out, llava, **more))
        results.append(final(out))
    for name in results[0]:
        bound = rounding_of_weights(lr=1e-2)
        torch.testing.assert_close(results[0][name], results[1][name], rtol=0, atol=bound)


def test_the_target_may_have_another_processor(tmp_path: Path) -> None:
    """Its attention to its own visual tokens is carried over to the draft's."""
    data = write_data(tmp_path / "data", 3)
    draft = save_model(NAMED["llava_onevision"], tmp_path / "draft")
    target = save_model(LLAVA, tmp_path / "target", seed=3)
    more = {**GUIDED, "unpruned_share": 0.0, "max_steps": 1, "batch": 3}
    guided = train_draft(training(data, tmp_path / "one", draft, target=target, **more))
    uniform = {**more, "pruner": "uniform"}
    spread = train_draft(training(data, tmp_path / "two", draft, target=target, **uniform))
    losses = [trained.losses["instruct"][0]["loss"] for trained in (guided, spread)]
    assert losses[0] != losses[1]


def test_a_ratio_of_zero_changes_nothing(llava: str, data: Path, tmp_path: Path) -> None:
    more = {"stages": "instruct", "max_steps": 2}
    train_draft(training(data, tmp_path / "one", llava, **more))
    pruned = {"prune_ratio": "0.9", "unpruned_share": 1.0, "target": llava}
    train_draft(training(data, tmp_path / "two", llava, **more, **pruned))
    assert same(final(tmp_path / "one"), final(tmp_path / "two"))


def test_it_trains_in_bfloat16_and_recomputes_activations(llava: str, tmp_path: Path) -> None:
    """The language model reads the same pruned prompt when its layers run again."""
    data = write_data(tmp_path / "data", 4)
    target = save_model(LLAVA, tmp_path / "target", seed=3)
    more = {**GUIDED, "distil": target, "max_steps": 2, "unpruned_share": 0.0}
    train_draft(training(data, tmp_path / "one", llava, **more))
    train_draft(training(data, tmp_path / "two", llava, **more, gradient_checkpointing=True))
    for name, value in final(tmp_path / "one").items():
        torch.testing.assert_close(value, final(tmp_path / "two")[name], rtol=0, atol=1e-5)
    half = train_draft(training(data, tmp_path / "half", llava, **more, precision="bfloat16"))
    assert all(np.isfinite(point["loss"]) for point in half.losses["instruct"])
