"""The reader's training: labels, losses, interruption, kept weights and export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import recipes.reader.training as reader_training
from recipes.pair.data import IGNORED
from recipes.pair.loop import OutOfTime, Phase
from recipes.reader.data import CHARACTERS, Batch, Bucket, batches, collate, encode
from recipes.reader.evaluate import Exam, held_out_pages, mark, prompt_inputs, read
from recipes.reader.export import export
from recipes.reader.losses import Pointer, Trained, reader_loss
from recipes.reader.model import Shape, build_model, build_processor
from recipes.reader.optimizer import Muon, muon, orthogonal
from recipes.reader.page import Page, render
from recipes.reader.recipe import Stage
from recipes.reader.tokenizer import IMAGE, PROMPT_AFTER, PROMPT_BEFORE, QUESTION, build_tokenizer
from recipes.reader.training import ReaderTraining
from recipes.reader.words import Split

TINY = Shape(2, 64, 96, 2, 1, 32, 64, 2)
SMALL = Bucket(96, 32, 4, invented=0.2)
TALL = Bucket(160, 144, 2)
TRAINED = Split()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


def drawn(bucket: Bucket, count: int, seed: int = 0) -> list[Page]:
    rng = np.random.default_rng(seed)
    return [bucket.draw(rng, TRAINED) for _ in range(count)]


def batch_of(tokenizer: Any, bucket: Bucket, seed: int = 0) -> Batch:
    samples = [encode(tokenizer, page) for page in drawn(bucket, bucket.rows, seed)]
    return collate(tokenizer, samples, bucket.width, bucket.height)


def stage(name: str, steps: int, shape: Shape = TINY) -> Stage:
    return Stage(Phase(name, steps, 2e-3, warmup=2, save_every=2), shape, (SMALL,), (0, 1))


def test_tokens_give_back_the_markdown_and_digits_are_single(tokenizer: Any) -> None:
    for page in drawn(TALL, 20):
        ids = tokenizer(page.markdown)["input_ids"]
        assert tokenizer.decode(ids) == page.markdown
        for token in ids:
            text = tokenizer.decode([token])
            assert len(text) == 1 or not any(letter.isdigit() for letter in text)
    text = "naïve — 漢字 🙂"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_tensors_are_the_processors(tokenizer: Any) -> None:
    processor = build_processor(tokenizer)
    page = drawn(TALL, 1)[0]
    batch = collate(tokenizer, [encode(tokenizer, page)], page.width, page.height)
    parts = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    chat = [{"role": "user", "content": parts}]
    prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
    assert prompt == PROMPT_BEFORE + IMAGE + PROMPT_AFTER
    picture = Image.fromarray(render(page)).convert("RGB")
    expected = processor(text=[prompt], images=[picture], return_tensors="pt")
    inputs = prompt_inputs(batch, processor.image_token_id)
    assert set(inputs) == set(expected)
    for name, tensor in inputs.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5, msg=name)


def test_labels_say_what_stands_in_each_cell(tokenizer: Any) -> None:
    page = drawn(TALL, 1)[0]
    sample = encode(tokenizer, page)
    columns = page.width // 16
    for cell, classes in enumerate(sample.sight):
        here = [
            glyph.character
            for glyph in page.glyphs
            if (int(glyph.y // 16), int(glyph.x // 16)) == divmod(cell, columns)
        ]
        named = [CHARACTERS[int(index) - 1] for index in classes if index > 0]
        assert named == here
        assert list(classes[len(here) :]) == [0] + [IGNORED] * (len(classes) - len(here) - 1)
    offsets = tokenizer(page.markdown, return_offsets_mapping=True)["offset_mapping"]
    cell_of = {}
    for glyph in page.glyphs:
        cell_of[glyph.place] = int(glyph.y // 16) * columns + int(glyph.x // 16)
    for (start, end), (first, last) in zip(offsets, sample.cells, strict=False):
        visible = [cell_of[place] for place in range(start, end) if place in cell_of]
        following = [cell_of[place] for place in sorted(cell_of) if place >= start]
        assert first == (following[0] if following else IGNORED)
        assert last == (visible[-1] if visible else first)
    assert list(sample.cells[-1]) == [IGNORED, IGNORED]


@torch.no_grad()
def test_the_fast_pass_and_the_pointer_are_those_of_the_model(tokenizer: Any) -> None:
    """Embeddings are put together by hand; the slow way is the model's own forward."""
    model = build_model(TINY, tokenizer, 0).eval()
    model.set_attn_implementation("eager")
    trained = Trained(model)
    batch = batch_of(tokenizer, TALL)
    pointer = Pointer(list(model.model.language_model.layers))
    result = reader_loss(trained, pointer, batch)
    inputs = prompt_inputs(batch, model.config.image_token_id)
    inputs["input_ids"] = batch.ids
    inputs["attention_mask"] = torch.ones_like(batch.ids)
    inputs["mm_token_type_ids"] = (batch.ids == model.config.image_token_id).long()
    slow = model(**inputs, output_attentions=True)
    room = batch.labels.shape[1]
    telling = torch.nn.functional.cross_entropy(
        slow.logits[:, batch.start - 1 : -1].transpose(1, 2), batch.labels
    )
    assert result.figures["telling"] == pytest.approx(float(telling), abs=1e-4)
    terms = []
    for attention in slow.attentions:
        looked = attention[:, :, batch.start - 1 : batch.start - 1 + room, : batch.start]
        shares = looked / looked.sum(-1, keepdim=True)
        for head in range(2):
            target = batch.cells[:, :, head]
            chosen = shares[:, head][target != IGNORED]
            places = target[target != IGNORED] + batch.first
            terms.append(-chosen.gather(1, places[:, None]).log().mean())
    assert result.figures["pointing"] == pytest.approx(float(torch.stack(terms).mean()), abs=1e-4)


def test_a_few_steps_lower_the_loss(tokenizer: Any) -> None:
    model = build_model(TINY, tokenizer, 0)
    trained = Trained(model)
    pointer = Pointer(list(model.model.language_model.layers))
    optimizer = muon(trained, Phase("tiny", 30, 1.0))
    for group in optimizer.param_groups:
        group["lr"] *= 3e-3
    batch = batch_of(tokenizer, SMALL)
    losses = []
    for _ in range(30):
        result = reader_loss(trained, pointer, batch)
        result.loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(result.loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_muon_moves_matrices_by_orthogonal_ones() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(3, 24, 40)
    for shape in (matrices, matrices.mT):
        values = torch.linalg.svdvals(orthogonal(shape))
        assert values.min() > 0.5
        assert values.max() < 1.3
    stacked = torch.nn.Parameter(torch.zeros(24, 8))
    stacked.grad = (
        torch.randn(24, 8) * torch.tensor([1.0, 50.0, 0.02]).repeat_interleave(8)[:, None]
    )
    Muon([{"params": [stacked], "lr": 1.0, "orthogonal": True}]).step()
    # Queries, keys and values are three matrices: each moves as far as the others.
    norms = stacked.detach().view(3, 64).norm(dim=1)
    assert norms.min() > 0.7 * norms.max()


def test_an_interrupted_training_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_training, "Probe", lambda *_: None)
    stages = (stage("one", 3), stage("two", 2, replace(TINY, layers=4)))
    whole = ReaderTraining(stages, tmp_path / "whole", tmp_path / "kept").run()
    interrupted = ReaderTraining(stages, tmp_path / "cut", tmp_path / "kept")
    for _ in range(3):
        with pytest.raises(OutOfTime):
            interrupted.run(minutes=0)
    again = interrupted.run()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0, msg=name)


def test_kept_weights_go_on_elsewhere_and_become_deeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_training, "Probe", lambda *_: None)
    stages = (stage("one", 2), stage("two", 2, replace(TINY, layers=4)))
    kept = tmp_path / "kept"
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        ReaderTraining(stages, tmp_path / "here", kept).newest()
    ReaderTraining(stages[:1], tmp_path / "here", kept).run()
    state = ReaderTraining(stages[:1], tmp_path / "here", kept).keep()
    assert (state.phase, state.step, state.layers) == ("one", 2, 2)
    there = ReaderTraining(stages, tmp_path / "there", kept)
    assert there.newest()[1] == state
    there.run()
    _, state = there.newest()
    assert (state.phase, state.step, state.layers) == ("two", 2, 4)
    assert sorted(file.name for file in (tmp_path / "there").glob("*/")) == ["two"]


def test_an_export_loads_and_reads_the_same(tokenizer: Any, tmp_path: Path) -> None:
    model = build_model(TINY, tokenizer, 0).half().float().eval()
    export(model, tokenizer, tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, local_files_only=True)
    processor = AutoProcessor.from_pretrained(tmp_path, local_files_only=True)
    assert next(loaded.parameters()).dtype == torch.float32
    pages = held_out_pages(Exam("tiny", Bucket(96, 32, 2), 2), tokenizer)
    answers = read(loaded.eval(), processor.tokenizer, pages)
    assert answers == read(model, tokenizer, pages)
    assert mark("same", answers, answers).accuracy == 1.0


def test_accuracy_counts_edits() -> None:
    result = mark("two", ["abcd", "xy"], ["abd", "xy"])
    assert result.accuracy == pytest.approx(1 - 1 / 6)
    assert result.exact == 0.5
    assert result.characters == 6


def test_batches_go_on_where_they_stopped(tokenizer: Any) -> None:
    whole = batches(tokenizer, (SMALL, TALL), 3, 0, TRAINED)
    next(whole)
    rest = batches(tokenizer, (SMALL, TALL), 3, 1, TRAINED)
    for _ in range(3):
        first, second = next(whole), next(rest)
        torch.testing.assert_close(first.ids, second.ids)
        torch.testing.assert_close(first.patches, second.patches)
