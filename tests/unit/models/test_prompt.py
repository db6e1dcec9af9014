"""Prompts: padding moved to where it belongs, and nothing else changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.configuration_utils import GenerationMode

from draftlens.core.errors import ConfigError, InputError, UnsupportedModelError
from draftlens.models.prompt import (
    TOKEN_INPUTS,
    Prompt,
    build_prompt,
    capture_call,
    left_padded,
    with_checked_mask,
)
from draftlens.models.support import CACHE_ARGUMENT

ROWS = [[11, 12, 13], [21, 22, 23, 24, 25], [31]]
LENGTH, PAD = 6, 0


def padded(side: str) -> dict[str, Any]:
    """ROWS as a processor pads them; token types are the ids' tens."""
    ids, mask = torch.full((3, LENGTH), PAD), torch.zeros(3, LENGTH, dtype=torch.long)
    for number, row in enumerate(ROWS):
        begin = {"left": LENGTH - len(row), "right": 0, "both": (LENGTH - len(row)) // 2}[side]
        ids[number, begin : begin + len(row)] = torch.tensor(row)
        mask[number, begin : begin + len(row)] = 1
    types, pixels = ids // 10, torch.randn(3, LENGTH, 2)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": types,
        "pixel_values": pixels,
        "flag": True,
    }


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_moves_to_the_left(side: str) -> None:
    given, expected = padded(side), padded("left")
    moved = left_padded(given)
    for key in ("input_ids", "attention_mask", "mm_token_type_ids"):
        assert torch.equal(moved[key], expected[key]), key
    assert moved["pixel_values"] is given["pixel_values"]
    assert moved["flag"] is True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_of_floats_becomes_one_of_whole_numbers(dtype: torch.dtype) -> None:
    given = padded("left")
    floating = {**given, "attention_mask": given["attention_mask"].to(dtype)}
    checked = with_checked_mask(floating)
    assert torch.equal(checked["attention_mask"], given["attention_mask"])
    assert not checked["attention_mask"].is_floating_point()
    assert floating["attention_mask"].is_floating_point()  # the caller's is left as it is


def test_masks_of_whole_numbers_stay() -> None:
    given = padded("left")
    assert with_checked_mask(given)["attention_mask"] is given["attention_mask"]
    assert with_checked_mask({"flag": 1}) == {"flag": 1}
    given["attention_mask"][2] = 0
    with pytest.raises(InputError, match="hides every token of row 2"):
        with_checked_mask(given)


def test_no_padding_no_change() -> None:
    left = padded("left")
    assert left_padded(left) is left
    no_mask = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    assert left_padded(no_mask) is no_mask


def embed(ids: Tensor) -> Tensor:
    return torch.stack([ids, -ids], -1).float()


def call(side: str, positions: Tensor | None = None) -> dict[str, Any]:
    """What a model would hand to its language model for the padded rows."""
    inputs = padded(side)
    return {
        "inputs_embeds": embed(inputs["input_ids"]),
        "attention_mask": inputs["attention_mask"],
        "position_ids": positions,
        "visual_pos_masks": inputs["input_ids"] == 23,
        "deepstack_visual_embeds": [torch.randn(1, 2)],
        CACHE_ARGUMENT: None,
        "use_cache": True,
    }


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("axes", [0, 3])
def test_rows_are_left_aligned(side: str, axes: int) -> None:
    ids = padded(side)["input_ids"]
    # Under M-RoPE the axes differ and positions repeat inside an image: each token's are made from
    # its id.
    positions = (
        (ids % 10 + 5).expand(axes, -1, -1) + torch.arange(axes)[:, None, None] if axes else None
    )
    kwargs = call(side, positions)
    prompt = build_prompt("Some", kwargs, embed, ids == 23)
    assert prompt.lengths == [len(row) for row in ROWS]
    for number, row in enumerate(ROWS):
        real, count = torch.tensor(row), len(row)
        assert torch.equal(prompt.embeds[number, :count], embed(real))
        assert torch.equal(prompt.visual[number, :count], real == 23)
        assert torch.equal(prompt.extra["visual_pos_masks"][number, :count], real == 23)
        for axis in range(max(axes, 1)):
            expected = real % 10 + 5 + axis if axes else torch.arange(count)
            ours = prompt.position_ids[axis] if axes else prompt.position_ids
            following = prompt.next_position[axis] if axes else prompt.next_position
            assert torch.equal(ours[number, :count], expected)
            assert following[number].tolist() == [int(expected[-1]) + 1]
    assert set(prompt.extra) == {"visual_pos_masks", "deepstack_visual_embeds"}
    assert prompt.extra["deepstack_visual_embeds"] is kwargs["deepstack_visual_embeds"]


def test_positions_of_the_answer_follow_each_row() -> None:
    steps = torch.tensor([[0, 1], [3, 4], [1, 1]])
    flat = build_prompt("Some", call("right"), embed, torch.zeros(3, LENGTH, dtype=torch.bool))
    assert flat.positions(steps).tolist() == [[3, 4], [8, 9], [2, 2]]
    positions = torch.arange(LENGTH).expand(3, 3, -1) * 2
    axes = build_prompt(
        "Some", call("right", positions), embed, torch.zeros(3, LENGTH, dtype=torch.bool)
    )
    assert axes.positions(steps).shape == (3, 3, 2)
    assert axes.positions(steps)[1].tolist() == [[5, 6], [12, 13], [2, 2]]


@pytest.mark.parametrize("mask", [None, torch.ones(2, 3, dtype=torch.long)])
@pytest.mark.parametrize(
    "positions", [None, torch.arange(3)[None], torch.arange(3).expand(3, 1, 3)]
)
def test_without_padding_everything_stays(mask: Tensor | None, positions: Tensor | None) -> None:
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    kwargs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    prompt = build_prompt("Some", kwargs, embed, ids == 2)
    assert torch.equal(prompt.embeds, embed(ids))
    assert prompt.lengths == [3, 3]
    assert prompt.position_ids.shape == (
        (3, 2, 3) if positions is not None and positions.ndim == 3 else (2, 3)
    )
    assert torch.equal(prompt.next_position, torch.full_like(prompt.next_position, 3))
    assert prompt.extra == {}


ALL = torch.ones(1, 1, 3, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    "mask", [ALL.tril() & ALL.triu(-1), {"full_attention": ALL.triu()}, ALL.repeat(1, 2, 1, 1)]
)
def test_a_mask_that_hides_earlier_tokens_is_refused(mask: Any) -> None:
    kwargs = {"inputs_embeds": torch.zeros(1, 3, 2), "attention_mask": mask}
    with pytest.raises(UnsupportedModelError, match="Some hides earlier tokens of a prompt"):
        build_prompt("Some", kwargs, embed, torch.zeros(1, 3, dtype=torch.bool))


def test_a_callers_mask_of_four_dimensions_is_refused() -> None:
    kwargs = {"inputs_embeds": torch.zeros(1, 3, 2), "attention_mask": ALL}
    with pytest.raises(UnsupportedModelError, match="attention mask of 4 dimensions"):
        build_prompt("Some", kwargs, embed, torch.zeros(1, 3, dtype=torch.bool), ALL)


@pytest.mark.parametrize(
    "mask",
    [
        *(ALL.tril(), torch.zeros(1, 1, 3, 3).masked_fill(~ALL.tril(), -1e30)),
        {"full_attention": None, "sliding_attention": ALL.tril() & ALL.triu(-1)},
    ],
)
def test_causal_masks_leave_a_prompt_plain(mask: Any) -> None:
    kwargs = {"inputs_embeds": torch.zeros(1, 3, 2), "attention_mask": mask}
    prompt = build_prompt("Some", kwargs, embed, torch.zeros(1, 3, dtype=torch.bool))
    assert prompt.ahead is None
    assert not prompt.further


@pytest.mark.parametrize("value", [torch.ones(1, 3), [torch.ones(2)], (None, [torch.ones(2)])])
def test_tensors_that_answers_may_need_as_well_are_refused(value: Any) -> None:
    kwargs = {"inputs_embeds": torch.zeros(1, 3, 2), "vision_states": value}
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    with pytest.raises(
        UnsupportedModelError,
        match="Some hands its language model vision_states, which later tokens",
    ):
        build_prompt("Some", kwargs, embed, nothing)
    known = {
        "inputs_embeds": kwargs["inputs_embeds"],
        "deepstack_visual_embeds": value,
        "flag": 3,
        "no": None,
    }
    assert set(build_prompt("Some", known, embed, nothing).extra) == {
        "deepstack_visual_embeds",
        "flag",
    }


class Config:
    num_beams, num_return_sequences = 1, 1
    mode = GenerationMode.GREEDY_SEARCH

    def get_generation_mode(self) -> GenerationMode:
        return self.mode


def test_capture_call_hands_back_what_it_was_given() -> None:
    ids, config = torch.ones(1, 2), Config()
    prepared = capture_call(None, ids, ["processor"], ["criterion"], config, pixel_values=7)
    assert prepared.input_ids is ids
    assert (prepared.processors, prepared.criteria, prepared.config) == (
        ("processor",),
        ("criterion",),
        config,
    )
    assert prepared.model_kwargs == {"pixel_values": 7}


@pytest.mark.parametrize("option", ["num_beams", "num_return_sequences"])
def test_beams_are_refused(option: str) -> None:
    config = Config()
    setattr(config, option, 2)
    with pytest.raises(ConfigError, match="num_beams and num_return_sequences must be 1"):
        capture_call(None, torch.ones(1, 2), [], [], config)


@pytest.mark.parametrize("option", ["prompt_lookup_num_tokens", "assistant_early_exit"])
def test_stock_drafting_is_refused(option: str) -> None:
    config = Config()
    setattr(config, option, 2)
    with pytest.raises(ConfigError, match=f"{option} would draft too"):
        capture_call(None, torch.ones(1, 2), [], [], config)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_only_greedy_decoding_and_sampling_work(mode: GenerationMode) -> None:
    config = Config()
    config.mode = mode
    if mode in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        assert capture_call(None, torch.ones(1, 2), [], [], config).config is config
        return
    words = mode.value.replace("_", " ")
    with pytest.raises(ConfigError, match=f"these options request {words}"):
        capture_call(None, torch.ones(1, 2), [], [], config)


@pytest.mark.parametrize("axes", [(), (3,)])
def test_tokens_behind_each_row(axes: tuple[int, ...]) -> None:
    """They stand directly after the row's last token, at the next positions; padding comes last,
    and only masks of tokens are extended."""
    lengths = [3, 5, 1]
    embeds = torch.randn(3, LENGTH, 2)
    positions = torch.randint(0, 50, (*axes, 3, LENGTH))
    next_position = torch.tensor([[30], [50], [10]]).expand(*axes, 3, 1)
    visual = torch.zeros(3, LENGTH, dtype=torch.bool)
    visual[1, 2:4] = True
    features = [torch.randn(2, 4)]
    extra = {"visual_pos_masks": visual.clone(), "deepstack_visual_embeds": features, "flag": 1}
    prompt = Prompt(embeds, positions, lengths, next_position, visual, extra)
    new = torch.randn(3, 2, 2)
    longer = prompt.followed_by(new)
    assert longer.lengths == [5, 7, 3]
    assert longer.embeds.shape == (3, LENGTH + 2, 2)
    for row, length in enumerate(lengths):
        assert torch.equal(longer.embeds[row, :length], embeds[row, :length])
        assert torch.equal(longer.embeds[row, length : length + 2], new[row])
        old = longer.position_ids[..., row, :length]
        assert torch.equal(old, positions[..., row, :length])
        begin = int(next_position.reshape(-1, 3)[0, row])
        behind = longer.position_ids[..., row, length : length + 2]
        assert behind.reshape(-1, 2).tolist() == [[begin, begin + 1]] * (3 if axes else 1)
    for mask in (longer.visual, longer.extra["visual_pos_masks"]):
        assert torch.equal(mask[:, :LENGTH], visual)
        assert not mask[:, LENGTH:].any()
    assert longer.extra["deepstack_visual_embeds"] is features
    assert longer.extra["flag"] == 1
    assert torch.equal(longer.next_position, next_position + 2)
    assert prompt.lengths == lengths  # the prompt itself is as it was


@pytest.mark.parametrize("side", ["left", "right"])
def test_inputs_for_layers_move_with_their_tokens(side: str) -> None:
    """Of Gemma 3n and 4: ``[B, L, layers, D]``, reordered with the rows."""
    ids = padded(side)["input_ids"]
    inputs = torch.stack([ids * 10, ids * 100], -1)[..., None].expand(*ids.shape, 2, 3).float()
    prompt = build_prompt("Some", {**call(side), TOKEN_INPUTS: inputs}, embed, ids == 23)
    for number, row in enumerate(ROWS):
        kept = prompt.extra[TOKEN_INPUTS][number, : len(row)]
        assert kept[:, 0, 0].tolist() == [10 * id for id in row]
        assert kept[:, 1, 2].tolist() == [100 * id for id in row]
