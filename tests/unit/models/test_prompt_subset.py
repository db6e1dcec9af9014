"""Pruned prompts, compared with calls of the decoder on inputs that are selected row by row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from torch import Tensor

from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather

SEEING = [
    family
    for family in FAMILIES
    if family.name in ("llava_onevision", "qwen2_5_vl", "qwen3_vl", "internvl")
]
PLAIN = next(family for family in FAMILIES if family.name == "llava_onevision")
MROPE = next(family for family in FAMILIES if family.name == "qwen2_5_vl")


@cache
def backbone(family: Family) -> Backbone:
    """The family's model."""
    return Backbone.of(family.build())


@cache
def encoded(family: Family, kind: str, rows: tuple[int, ...] = (0, 1, 2)) -> Prompt:
    """Ragged rows of a kind of input."""
    model = backbone(family)
    return model.encode(model.prepare(inputs(family, kind, rows), max_new_tokens=1))


def some(prompt: Prompt, share: float, seed: int = 0) -> list[Tensor]:
    """All text and a share of the visual tokens of each row."""
    generator = torch.Generator().manual_seed(seed)
    kept = []
    for row, length in enumerate(prompt.lengths):
        visual = prompt.visual[row, :length]
        lucky = torch.rand(length, generator=generator) < share
        kept.append((~visual | lucky).nonzero()[:, 0])
    return kept


def all_logits(model: Backbone, prompt: Prompt, steps: int = 3) -> Tensor:
    """Logits after the prompt and after the answers 3, 4, 5, ``[B, 1 + steps, V]``, computed by the
    backbone."""
    cache_ = model.new_cache(prompt, steps)
    logits = [model.prefill(prompt, cache_)]
    for step in range(steps):
        tokens = torch.full((len(prompt.lengths), 1), 3 + step)
        step_index = torch.full_like(tokens, step)
        longest = max(cache_.lengths) + 1
        mask = torch.stack(
            [(torch.arange(longest) <= length)[None, None] for length in cache_.lengths]
        )
        logits.append(model.forward(tokens, prompt.positions(step_index), cache_, mask))
    return torch.cat(logits, 1)


@torch.no_grad()
def twin(model: Backbone, prompt: Prompt, kept: list[Tensor], steps: int = 3) -> Tensor:
    """The same without `gather`, without a cache and one row at a time: the decoder is called on
    selected inputs."""
    rows = []
    for row, index in enumerate(kept):
        extra = {
            name: by_hand(name, value, prompt, row, index, steps)
            for name, value in prompt.extra.items()
        }
        answer = torch.arange(3, 3 + steps)[None]
        embeds = torch.cat([prompt.embeds[row : row + 1, index], model.embed(answer)], 1)
        following = prompt.next_position[..., row : row + 1, :] + torch.arange(steps)
        positions = torch.cat(
            [prompt.position_ids[..., row : row + 1, :][..., index], following], -1
        )
        output = model.decoder(
            inputs_embeds=embeds,
            position_ids=positions,
            attention_mask=torch.ones(
                1, embeds.shape[1], dtype=torch.long
            ),  # without, gaps would mean packed rows
            use_cache=False,
            **extra,
        )
        rows.append(model.head(output.last_hidden_state)[:, len(index) - 1 :])
    return torch.cat(rows)


def by_hand(name: str, value: Any, prompt: Prompt, row: int, index: Tensor, steps: int) -> Any:
    """One further argument for one row."""
    before = int(prompt.visual[:row].sum())
    numbers = {int(at): before + rank for rank, at in enumerate(prompt.visual[row].nonzero()[:, 0])}
    if name == "visual_pos_masks":
        return torch.tensor([[bool(prompt.visual[row, at]) for at in index] + [False] * steps])
    if name == "deepstack_visual_embeds":
        picked = [numbers[int(at)] for at in index if int(at) in numbers]
        return [features[picked] for features in value]
    assert not isinstance(value, Tensor), f"what is {name}?"
    return value


@pytest.mark.parametrize("kind", ["mixed", "video", "text"])
@pytest.mark.parametrize("family", SEEING, ids=str)
def test_keeping_everything_changes_nothing(family: Family, kind: str) -> None:
    prompt = encoded(family, kind)
    whole = gather(prompt, [torch.arange(length) for length in prompt.lengths])
    assert whole.lengths == prompt.lengths
    assert torch.equal(whole.next_position, prompt.next_position)
    for row, length in enumerate(prompt.lengths):
        assert torch.equal(whole.embeds[row, :length], prompt.embeds[row, :length])
        assert torch.equal(
            whole.position_ids[..., row, :length], prompt.position_ids[..., row, :length]
        )
        assert torch.equal(whole.visual[row], prompt.visual[row])
    assert whole.extra.keys() == prompt.extra.keys()
    torch.testing.assert_close(
        all_logits(backbone(family), whole), all_logits(backbone(family), prompt)
    )


@pytest.mark.parametrize("share", [0.6, 0.1, 0.0])
@pytest.mark.parametrize("kind", ["mixed", "video", "images"])
@pytest.mark.parametrize("family", SEEING, ids=str)
def test_the_model_runs_on_it_as_on_inputs_picked_by_hand(
    family: Family, kind: str, share: float
) -> None:
    prompt, model = encoded(family, kind), backbone(family)
    kept = some(prompt, share)
    assert len({len(row) for row in kept}) > 1, "ragged"
    pruned = gather(prompt, kept)
    assert pruned.lengths == [len(row) for row in kept]
    slow = twin(model, prompt, kept)
    torch.testing.assert_close(all_logits(model, pruned), slow, rtol=1e-4, atol=1e-4)
    everything = twin(model, prompt, [torch.arange(length) for length in prompt.lengths])
    assert not torch.allclose(slow, everything, atol=1e-2), "a removed token was read"


def test_deepstack_features_are_pruned() -> None:
    qwen3 = next(family for family in FAMILIES if family.name == "qwen3_vl")
    prompt = encoded(qwen3, "mixed")
    pruned = gather(prompt, some(prompt, 0.5))
    for before, after in zip(
        *(p.extra["deepstack_visual_embeds"] for p in (prompt, pruned)), strict=True
    ):
        assert before.shape[0] == int(prompt.visual.sum())
        assert (
            after.shape[0]
            == int(pruned.visual.sum())
            == int(pruned.extra["visual_pos_masks"].sum())
        )
        assert 0 < after.shape[0] < before.shape[0]


@pytest.mark.parametrize("family", [PLAIN, MROPE], ids=str)
def test_rows_of_a_ragged_batch_are_those_pruned_alone(family: Family) -> None:
    model, together = backbone(family), encoded(family, "mixed")
    kept = some(together, 0.3)
    batch = all_logits(model, gather(together, kept))
    for row in range(3):
        alone = encoded(family, "mixed", (row,))
        single = all_logits(model, gather(alone, kept[row : row + 1]))
        torch.testing.assert_close(batch[row : row + 1], single, rtol=1e-4, atol=1e-4)


def hand_made(positions: Tensor) -> Prompt:
    """Six tokens of one row, of which the middle four are visual, at positions ``[6]`` or ``[3,
    6]``."""
    at = positions[..., None, :]
    visual = torch.tensor([[False, True, True, True, True, False]])
    return Prompt(torch.arange(6.0)[None, :, None], at, [6], at[..., -1:] + 1, visual, {})


def test_compact_positions_close_the_gaps() -> None:
    kept = [torch.tensor([0, 2, 4, 5])]
    flat = gather(hand_made(torch.arange(6)), kept, "compact")
    assert flat.position_ids.tolist() == [[0, 1, 2, 3]]
    assert flat.next_position.tolist() == [[4]]
    original = gather(hand_made(torch.arange(6)), kept)
    assert original.position_ids.tolist() == [[0, 2, 4, 5]]
    assert original.next_position.tolist() == [[6]]


def test_compact_positions_of_several_axes_keep_what_any_axis_uses() -> None:
    # A picture of 2 x 2 cells at positions 1 and 2, then text at 3.
    axes = torch.tensor([[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]])
    one_row = gather(
        hand_made(axes), [torch.tensor([0, 1, 2, 5])], "compact"
    )  # the width still uses 2
    assert one_row.position_ids[:, 0].tolist() == [[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]
    assert one_row.next_position[:, 0].tolist() == [[4]] * 3
    one_cell = gather(hand_made(axes), [torch.tensor([0, 1, 5])], "compact")
    assert one_cell.position_ids[:, 0].tolist() == [[0, 1, 2]] * 3
    assert one_cell.next_position[:, 0].tolist() == [[3]] * 3


def test_an_axis_that_counts_tokens_is_closed_up_by_itself() -> None:
    # Text at 0, a picture of 2 x 2 cells, text at 3 and 4: its tokens are the sixth and seventh.
    axes = torch.tensor(
        [[0, 1, 2, 3, 4, 5], [0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]]
    )
    blind = gather(hand_made(axes), [torch.tensor([0, 5])], "compact")
    assert blind.position_ids[:, 0].tolist() == [[0, 1]] * 4
    assert blind.next_position[:, 0].tolist() == [[2]] * 4
    column = gather(
        hand_made(axes), [torch.tensor([0, 2, 4, 5])], "compact"
    )  # the left column is gone
    assert column.position_ids[:, 0].tolist() == [
        [0, 1, 2, 3],
        [0, 1, 1, 3],
        [0, 1, 2, 3],
        [0, 2, 2, 3],
    ]


def test_padding_of_shorter_rows_is_never_visual() -> None:
    """Padding repeats a row's first token, which may be visual."""
    visual = torch.tensor([[True, True, False], [True, True, False]])
    extra = {"visual_pos_masks": visual, "deepstack_visual_embeds": [torch.arange(4.0)[:, None]]}
    positions = torch.arange(3).expand(2, 3)
    prompt = Prompt(torch.zeros(2, 3, 1), positions, [3, 3], positions[:, -1:] + 1, visual, extra)
    pruned = gather(prompt, [torch.tensor([0, 1, 2]), torch.tensor([1])])
    expected = [[True, True, False], [True, False, False]]
    assert pruned.visual.tolist() == pruned.extra["visual_pos_masks"].tolist() == expected
    assert pruned.extra["deepstack_visual_embeds"][0][:, 0].tolist() == [0, 1, 3]


@pytest.mark.parametrize("family", [PLAIN, MROPE], ids=str)
def test_compact_without_pixels_is_the_text_alone(family: Family) -> None:
    prompt, model = encoded(family, "video"), backbone(family)
    blind = gather(prompt, some(prompt, 0.0), "compact")
    for row, length in enumerate(blind.lengths):
        steps = torch.arange(length)
        assert torch.equal(
            blind.position_ids[..., row, :length],
            steps.expand_as(blind.position_ids[..., row, :length]),
        )
        assert bool((blind.next_position[..., row, :] == length).all())
    expected = torch.cat(
        [
            all_logits(
                model, replace(blind, **one_row(blind, row))
            )  # a plain text prompt of the same embeddings
            for row in range(3)
        ]
    )
    torch.testing.assert_close(all_logits(model, blind), expected, rtol=1e-4, atol=1e-4)


def one_row(prompt: Prompt, row: int) -> dict[str, Any]:
    """A row as a prompt of its own, its positions counted from zero."""
    length = prompt.lengths[row]
    steps = torch.arange(length).expand(*prompt.position_ids.shape[:-2], 1, length)
    part = slice(row, row + 1)
    return {
        "embeds": prompt.embeds[part, :length],
        "position_ids": steps,
        "lengths": [length],
        "next_position": steps[..., -1:] + 1,
        "visual": prompt.visual[part, :length],
    }


def test_tensors_per_token_are_selected_too() -> None:
    prompt = encoded(PLAIN, "mixed")
    shape = prompt.visual.shape
    per_token = torch.arange(shape.numel()).view(shape)
    kept = some(prompt, 0.4)
    extra = {
        "ids": per_token,
        "wide": per_token[..., None].float().expand(-1, -1, 2),
        "flag": True,
        "none": None,
    }
    pruned = gather(replace(prompt, extra=extra), kept)
    for row, index in enumerate(kept):
        assert torch.equal(pruned.extra["ids"][row, : len(index)], per_token[row, index])
        assert torch.equal(
            pruned.extra["wide"][row, : len(index), 1], per_token[row, index].float()
        )
    assert pruned.extra["flag"] is True
    assert pruned.extra["none"] is None


def test_an_unknown_tensor_is_refused() -> None:
    prompt = replace(encoded(PLAIN, "mixed"), extra={"mystery": torch.zeros(5, 2)})
    with pytest.raises(UnsupportedModelError, match="takes mystery, which cannot be pruned"):
        gather(prompt, some(prompt, 0.5))


@pytest.mark.parametrize("wrong", [[2, 1], [1, 1], [-1, 0], [0, 10_000], []])
def test_invalid_indices_are_refused(wrong: list[int]) -> None:
    prompt = encoded(PLAIN, "mixed")
    kept = [torch.tensor(wrong, dtype=torch.long), *some(prompt, 1.0)[1:]]
    with pytest.raises(InputError, match="strictly rising"):
        gather(prompt, kept)


def test_a_row_too_few_is_refused() -> None:
    prompt = encoded(PLAIN, "mixed")
    with pytest.raises(InputError, match="2 rows of kept tokens for a prompt of 3"):
        gather(prompt, some(prompt, 1.0)[:2])


def test_unknown_positions_are_refused() -> None:
    prompt = encoded(PLAIN, "mixed")
    with pytest.raises(ConfigError, match="unknown positions 'packed'; known: original, compact"):
        gather(prompt, some(prompt, 1.0), "packed")
