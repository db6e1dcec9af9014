"""Which later tokens a prompt's tokens attend to, and where its blocks end."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.models import prompt_blocks
from draftlens.models.kv_cache import KVCache
from draftlens.models.layer_kinds import LayerKinds
from draftlens.models.prompt import Prompt, build_prompt
from draftlens.models.prompt_blocks import ends_of_parts
from draftlens.models.prompt_cache import prompt_digests
from draftlens.models.prompt_subset import gather

LENGTH = 8
GROUPS = torch.tensor(
    [[-1, 0, 0, -1, 1, 1, 1, -1], [-1, -1, -1, 0, 0, 0, -1, -1]]  # the second is padded by two
)
REAL = torch.tensor([[1] * 8, [0, 0, 1, 1, 1, 1, 1, 1]]) == 1


def stock_mask(window: int = LENGTH) -> Tensor:
    """As transformers makes it: bool ``[B, 1, L, L]``."""
    same = (GROUPS[:, :, None] == GROUPS[:, None]) & (GROUPS[:, :, None] >= 0)
    place = torch.arange(LENGTH)
    causal = place[:, None] >= place
    near = place[:, None] - place < window
    return ((causal | same) & near & REAL[:, None])[:, None]


def embed(ids: Tensor) -> Tensor:
    return ids[..., None].float().expand(*ids.shape, 2)


def prompt_of(mask: Any) -> Prompt:
    ids = torch.arange(16).view(2, 8)
    kwargs = {"input_ids": ids, "attention_mask": mask}
    return build_prompt("Some", kwargs, embed, GROUPS >= 0, REAL.long())


def adapter_with(kinds: LayerKinds) -> Any:
    """What is asked of the adapter."""
    return SimpleNamespace(kinds=kinds, attention_mask=lambda mask: mask)


def additive(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("convert", [lambda mask: mask, additive])
def test_the_order_of_both_axes_follows_the_rows(convert: Any) -> None:
    prompt = prompt_of(convert(stock_mask()))
    assert prompt.lengths == [8, 6]
    assert prompt.ahead is not None
    later = prompt.ahead[""]
    assert later[0].nonzero().tolist() == [[1, 2], [4, 5], [4, 6], [5, 6]]
    assert later[1].nonzero().tolist() == [[1, 2], [1, 3], [2, 3]]
    assert prompt.outline().ahead is None


def test_parts_of_all_rows_divide_no_block() -> None:
    """Rows of 8 and 6 tokens, whose blocks end after 1, 3, 4, 7 and 8 tokens, and after 1, 4, 5 and
    6; a causal prompt is divided anywhere."""
    prompt = prompt_of(stock_mask())
    ends = {most: ends_of_parts(prompt, most) for most in (1, 2, 4, 7, 8)}
    assert ends == {1: [1, 4, 7, 8], 2: [1, 4, 7, 8], 4: [4, 8], 7: [7, 8], 8: [8]}
    assert ends_of_parts(replace(prompt, ahead=None), 3) == [3, 6, 8]


def test_masks_of_a_whole_prompt_are_the_models() -> None:
    """Left-aligned; what is padded sees itself."""
    backbone = adapter_with(LayerKinds(3, (True, False), 2))
    given = {"full_attention": stock_mask(), "sliding_attention": stock_mask(3)}
    prompt = prompt_of(given)
    assert prompt.ahead is not None
    masks = prompt_blocks.masks(prompt.ahead, KVCache(2, 2, 8), backbone)
    for kind, mask in masks.items():
        assert torch.equal(mask[0], given[kind][0])
        assert torch.equal(mask[1, :, :6, :6], given[kind][1, :, 2:, 2:])
        assert not mask[1, :, :6, 6:].any()
        assert mask.diagonal(dim1=-2, dim2=-1).all()


def test_masks_of_a_part_are_rows_of_the_whole() -> None:
    backbone = adapter_with(LayerKinds(3, (True, False), 2))
    prompt = prompt_of({"full_attention": stock_mask(), "sliding_attention": stock_mask(3)})
    assert prompt.ahead is not None
    cache = KVCache(2, 2, 8)
    whole = prompt_blocks.masks(prompt.ahead, cache, backbone)
    starts, ends = [3, 4], [7, 6]
    part = gather(prompt, [torch.arange(*span) for span in zip(starts, ends, strict=True)])
    assert part.ahead is not None
    cache.lengths = starts
    masks = prompt_blocks.masks(part.ahead, cache, backbone)
    for kind, mask in masks.items():
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            expected = whole[kind][row, :, start:end, :end]
            assert torch.equal(mask[row, :, : end - start, :end], expected)


def test_a_pruned_prompt_loses_queries_and_keys() -> None:
    prompt = prompt_of(stock_mask())
    pruned = gather(prompt, [torch.tensor([0, 1, 4, 6, 7]), torch.tensor([0, 2, 3])])
    assert pruned.ahead is not None
    assert pruned.ahead[""].nonzero().tolist() == [[0, 2, 3], [1, 1, 2]]


def test_tokens_that_follow_are_not_seen() -> None:
    prompt = prompt_of(stock_mask())
    longer = prompt.followed_by(torch.zeros(2, 3, 2))
    assert longer.ahead is not None
    assert prompt.ahead is not None
    assert longer.ahead[""].shape == (2, 11, 11)
    assert torch.equal(longer.ahead[""].nonzero(), prompt.ahead[""].nonzero())


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_blocks_end_where_no_kind_of_layer_looks_further(kind: str) -> None:
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & REAL[:, None, None]
    masks = {"full_attention": causal, "sliding_attention": causal, kind: stock_mask()}
    prompt = prompt_of(masks)
    assert prompt_blocks.block_ends(prompt, 0).tolist() == [1, 3, 3, 4, 7, 7, 7, 8]
    assert prompt_blocks.block_ends(prompt, 1).tolist() == [1, 4, 4, 4, 5, 6]


def test_tokens_between_those_of_a_block_belong_to_it() -> None:
    """Molmo2's pictures see each other across the words between them."""
    mask = stock_mask()
    mask[0, :, 1, 5] = True
    prompt = prompt_of(mask)
    assert prompt_blocks.block_ends(prompt, 0).tolist() == [1, *[7] * 6, 8]


@pytest.mark.parametrize(
    ("start", "most", "end"),
    [(0, 1, 1), (0, 2, 1), (0, 3, 3), (1, 1, 3), (2, 1, 3), (3, 2, 4), (4, 1, 7), (7, 5, 8)],
)
def test_parts_never_split_a_block(start: int, most: int, end: int) -> None:
    assert prompt_blocks.end_of_part(prompt_of(stock_mask()), 0, start, most) == end


def test_digests_name_the_whole_block() -> None:
    """Of the last token of a picture, of words in it, and of what its tokens see."""
    prompt = prompt_of(stock_mask())
    assert prompt.ahead is not None
    digests = prompt_digests(prompt, 0)

    def changed(other: Prompt) -> list[int]:
        differs: list[int] = (prompt_digests(other, 0) != digests).any(1).nonzero()[0].tolist()
        return differs

    embeds = prompt.embeds.clone()
    embeds[0, 6] += 1
    assert changed(replace(prompt, embeds=embeds)) == [4, 5, 6]
    embeds = prompt.embeds.clone()
    embeds[0, 3] += 1
    assert changed(replace(prompt, embeds=embeds)) == [3]
    seen = prompt.ahead[""].clone()
    seen[0, 4, 5] = False
    assert changed(replace(prompt, ahead={"": seen})) == [4, 5, 6]
    assert changed(replace(prompt, ahead=None)) == [1, 2, 4, 5, 6]


def test_without_a_mask_a_model_may_attend_both_ways() -> None:
    """Only where there is no padding: its masks of padding are causal."""
    real = torch.ones(1, 3) == 1
    for given, expected in ((real, True), (real & (torch.arange(3) > 0), False)):
        ahead = prompt_blocks.read_ahead("Some", None, given, both_ways=True)
        assert ahead is not None
        assert bool(ahead[""].any()) is expected
    assert prompt_blocks.read_ahead("Some", {"full_attention": None}, real, False) is None


def test_windows_are_those_of_sliding_layers_only() -> None:
    with pytest.raises(UnsupportedModelError, match="Some hides earlier tokens"):
        prompt_of({"full_attention": stock_mask(3)})
