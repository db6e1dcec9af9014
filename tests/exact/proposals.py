"""What drafters propose during a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from draftlens.core.tree import DraftTree


def proposals_of(drafter: type, monkeypatch: pytest.MonkeyPatch) -> list[DraftTree]:
    """The trees of all drafters of a class from now on."""
    trees: list[DraftTree] = []
    right = drafter.propose  # type: ignore[attr-defined]

    def propose(self: Any, *args: Any) -> DraftTree:
        trees.append(right(self, *args))
        return trees[-1]

    monkeypatch.setattr(drafter, "propose", propose)
    return trees


def draft_ids_of(trees: Sequence[DraftTree]) -> set[int]:
    """All drafted ids, fillers left out."""
    draft_tokens: set[int] = set()
    for tree in trees:
        for topology, tokens in zip(tree.topologies, tree.tokens.tolist(), strict=True):
            draft_tokens.update(tokens[: len(topology)])
    return draft_tokens
