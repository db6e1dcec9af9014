"""Prompts with a part of their visual tokens."""

from __future__ import annotations

import torch
from draftlens_lab.measure.pruning import kept_indices


def test_all_text_and_the_chosen_visual_tokens_remain() -> None:
    visual = torch.tensor([False, True, True, False, True, True, False])
    assert kept_indices(visual, torch.tensor([3, 1])).tolist() == [0, 2, 3, 5, 6]
    assert kept_indices(visual, torch.arange(4)).tolist() == list(range(7))
    assert kept_indices(visual, torch.arange(0)).tolist() == [0, 3, 6]
