"""What lossy peers keep, on attention that a person can check, and which options they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from draftlens_lab.bench.lossy import DROPPINGS, Dropping
from draftlens_lab.bench.lossy.dycoke import DyCokeTarget
from draftlens_lab.bench.lossy.fastv import FastV
from draftlens_lab.bench.lossy.pdrop import PDrop
from draftlens_lab.bench.lossy.reading import reader_attention
from draftlens_lab.bench.lossy.sparsevlm import SparseVLM
from families import FAMILIES, inputs

from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt

ATTENTION = torch.tensor([[0.05, 0.3, 0.1, 0.25, 0.02, 0.28]])
"""Of the last token to six visual tokens."""

ONEVISION = next(family for family in FAMILIES if family.name == "llava_onevision")


def kept(dropping: Dropping, attention: torch.Tensor = ATTENTION) -> list[int]:
    found: list[int] = dropping.keep(attention).tolist()
    return found


def test_fastv_keeps_the_most_attended() -> None:
    assert kept(FastV(prune_ratio=0.5)) == [1, 3, 5]
    assert kept(FastV(prune_ratio=0.9)) == []
    assert kept(FastV(prune_ratio=0.0)) == list(range(6))
    assert FastV(layer=3).layers(20) == (3,)


def test_pdrop_has_four_equal_stages() -> None:
    assert PDrop().layers(32) == (8, 16, 24)
    assert PDrop().layers(20) == (5, 10, 15)
    assert PDrop().layers(2) == (1,)
    assert PDrop().layers(1) == ()
    assert PDrop(drop_layers=(2, 7)).layers(20) == (2, 7)
    assert kept(PDrop(keep_ratio=0.34)) == [1, 5]
    assert kept(PDrop(keep_ratio=1.0)) == list(range(6))


def test_sparsevlm_drops_more_where_the_rank_is_low() -> None:
    """One rater: rank 1, so 5 of 6 tokens are redundant. Two that disagree: rank 2."""
    assert SparseVLM().layers(32) == (2, 6, 15)
    assert kept(SparseVLM(prune_ratio=1.0)) == [1]
    assert kept(SparseVLM(prune_ratio=0.5)) == [1, 2, 3, 5]
    two = torch.cat([ATTENTION, ATTENTION.flip(1)])
    assert len(kept(SparseVLM(prune_ratio=1.0), two)) == 2
    same = torch.cat([ATTENTION, ATTENTION])
    assert kept(SparseVLM(prune_ratio=1.0), same) == [1]
    assert kept(SparseVLM(prune_ratio=1.0), torch.empty(3, 0)) == []


def made_prompt(embeds: torch.Tensor, visual: list[bool]) -> Prompt:
    length = len(visual)
    positions = torch.arange(length)[None]
    return Prompt(
        embeds[None],
        positions,
        [length],
        torch.tensor([[length]]),
        torch.tensor([visual]),
        {},
    )


def test_raters_are_the_words_that_the_pixels_resemble() -> None:
    """Words in front of the pixels cannot attend to them and are no raters."""
    red, blue, neither = torch.eye(3) * 5
    embeds = torch.stack([red, red, blue, red, neither, blue])
    prompt = made_prompt(embeds, [False, True, True, False, False, False])
    assert SparseVLM().readers(prompt).tolist() == [3, 5]
    assert FastV().readers(prompt).tolist() == [5]


def test_without_a_question_the_last_token_rates() -> None:
    prompt = made_prompt(torch.eye(3), [False, True, True])
    assert SparseVLM().readers(prompt).tolist() == [2]


@pytest.mark.parametrize("positions", ["compact", "original"])
def test_dycoke_keeps_the_first_frame_and_drops_what_repeats(positions: str) -> None:
    """Four frames of four tokens and a newline, which counts as the last frame's: 13 that may
    merge."""
    backbone = Backbone(ONEVISION.build())
    prompt = backbone.encode(
        backbone.prepare(inputs(ONEVISION, "video", (0,)), max_new_tokens=1, do_sample=False)
    )
    count = int(prompt.visual.sum())
    assert count == 17
    shorter = DyCokeTarget(merge_ratio=0.6, positions=positions).shorten(prompt)
    assert int(shorter.visual.sum()) == count - int(0.6 * 13)
    first = prompt.visual[0].nonzero()[:4, 0]
    assert torch.equal(shorter.embeds[0, first], prompt.embeds[0, first])
    is_compact = torch.equal(shorter.position_ids[0], torch.arange(shorter.lengths[0]))
    assert is_compact == (positions == "compact")
    assert DyCokeTarget(merge_ratio=0.0).shorten(prompt) is prompt
    assert DyCokeTarget(prune_ratio=0.0).recall is None


@pytest.mark.parametrize("num_keys", [9, 14])
def test_attention_of_readers_is_that_of_a_plain_softmax(num_keys: int) -> None:
    """Grouped queries, and queries of the last of more keys, as while decoding."""
    torch.manual_seed(0)
    query, key = torch.randn(6, 9, 8), torch.randn(2, num_keys, 8)
    readers = torch.tensor([0, 4, 8])
    found = reader_attention(query, key, readers, 0.3)
    for row, reader in enumerate(readers.tolist()):
        visible = num_keys - 9 + reader + 1
        expected = torch.zeros(num_keys)
        for head in range(6):
            scores = [
                math.exp(0.3 * float(query[head, reader] @ key[head // 3, column]))
                for column in range(visible)
            ]
            expected[:visible] += torch.tensor(scores) / sum(scores) / 6
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FastV(layer=0), "layer is the number of a layer, from 1, not 0"),
        (lambda: FastV(layer=1.5), "layer is the number of a layer"),
        (lambda: FastV(prune_ratio=1.1), "prune_ratio is a share between 0 and 1, not 1.1"),
        (lambda: PDrop(keep_ratio=-1), "keep_ratio is a share between 0 and 1"),
        (lambda: PDrop(drop_layers=(3, 2)), r"layers must increase, not \[3, 2\]"),
        (lambda: PDrop(drop_layers=(0,)), "each of layers is the number of a layer"),
        (lambda: PDrop(drop_layers=5), "layers are a list of numbers, not 5"),
        (lambda: SparseVLM(prune_ratio=2), "prune_ratio is a share"),
        (lambda: SparseVLM(drop_layers=(2, 2)), "layers must increase"),
        (lambda: DyCokeTarget(merge_ratio=3), "merge_ratio is a share"),
        (lambda: DyCokeTarget(layer=0), "layer is the number of a layer"),
        (lambda: DyCokeTarget(prune_ratio=-0.1), "prune_ratio is a share"),
        (lambda: DyCokeTarget(similarity=1.5), "similarity is a share"),
        (lambda: DyCokeTarget(group=0), "group must be at least 1 frame"),
        (lambda: DyCokeTarget(positions="loose"), "unknown positions 'loose'; known: original"),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()


def test_every_name_says_what_it_leaves_out() -> None:
    for name in DROPPINGS:
        text = DROPPINGS[name].__doc__
        assert "Implemented:" in text
        assert "Not implemented:" in text
