"""The comparison of passes with a model's modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES
from stock import target
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.passes.structure import check_pass


def test_the_check_reads_no_special_tokens() -> None:
    """Which are often the first of a vocabulary; each token is another one."""
    backbone = Backbone.of(target(FAMILIES[0]))
    read: list[int] = []

    def forward(tokens: Tensor, *given: Any) -> Tensor:
        read.extend(tokens.flatten().tolist())
        return backbone.forward_modules(tokens, *given)

    check_pass(backbone, forward, 2, 3, ())
    assert len(set(read)) == 6
    assert min(read) >= backbone.vocab_size // 4

    with pytest.raises(UnsupportedModelError, match="differ from those of the model by"):
        check_pass(backbone, lambda *given: forward(*given) + torch.ones(1), 2, 3, ())
