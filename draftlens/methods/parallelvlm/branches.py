"""Second choices of a draft and what it would say behind them (hedges)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Branch:
    """A second choice and its continuation.

    Args:
        tokens: the second choice first.
        chances: the draft's probability of each.
    """

    tokens: tuple[int, ...]
    chances: tuple[float, ...]

    def followed_by(self, token: int, chance: float) -> Branch:
        """The branch with one token more."""
        return Branch((*self.tokens, token), (*self.chances, chance))


@dataclass(frozen=True)
class Rider:
    """Tokens of a branch that are forwarded in the same pass as the guesses of a row.

    Args:
        row: index of the row.
        position: index in the answer of the first one.
        tokens: the whole branch.
        offset: index in the pass of the first one.
    """

    row: int
    position: int
    tokens: tuple[int, ...]
    offset: int


class Branches:
    """The branches of one row, by the position whose guess they replace."""

    def __init__(self) -> None:
        self._branches: dict[int, Branch] = {}
        self._chances: dict[int, float] = {}

    def guessed(self, position: int, chance: float, second: int, its_chance: float) -> None:
        """The row has gained a guess.

        Args:
            position: of the guess.
            chance: the draft's probability of it.
            second: the second choice there.
            its_chance: its probability.
        """
        self._chances[position] = chance
        self._branches[position] = Branch((second,), (its_chance,))

    def grow(self, position: int, token: int, chance: float) -> None:
        """A branch has gained a token."""
        self._branches[position] = self._branches[position].followed_by(token, chance)

    def forget_before(self, position: int) -> None:
        """Drop what the target has decided."""
        for decided in [place for place in self._chances if place < position]:
            del self._chances[decided]
            self._branches.pop(decided, None)

    def switch(self, position: int, tokens: Sequence[int]) -> tuple[int, ...]:
        """The target says something else; all branches end.

        Args:
            position: of the first guess that is wrong.
            tokens: what the target says from there on.

        Returns:
            What the branch at this position says behind these tokens; nothing if there is none or
            if it does not begin with them.
        """
        branch = self._branches.get(position)
        self._branches.clear()
        self._chances.clear()
        if branch is None or branch.tokens[: len(tokens)] != tuple(tokens):
            return ()
        for place, chance in enumerate(branch.chances, position):
            self._chances[place] = chance
        return branch.tokens[len(tokens) :]

    def likeliest(self, room: int) -> list[tuple[int, Branch]]:
        """The branches that are likeliest to need one token more, with their positions.

        Args:
            room: most tokens of all of them.
        """
        needs = []
        reached = 1.0
        for position in sorted(self._chances):
            branch = self._branches.get(position)
            if branch is not None:
                needs.append((reached * prod(branch.chances), position, branch))
            reached *= self._chances[position]
        needs.sort(key=lambda need: need[0], reverse=True)
        chosen = []
        for _, position, branch in needs:
            if len(branch.tokens) <= room:
                room -= len(branch.tokens)
                chosen.append((position, branch))
        return chosen


def let_ride(
    riders: Sequence[Rider], cached: Sequence[int], counts: Sequence[int], width: int
) -> tuple[Tensor, Tensor]:
    """Steps and windows of a pass whose rows have branches behind their own new tokens.

    Args:
        riders: the branches.
        cached: tokens of each row's answer that the cache holds.
        counts: new tokens of each row's own, which lie before its branches.
        width: W, tokens of the pass.

    Returns:
        Index in the answer of each token, int64 ``[B, W]``, and which tokens of the pass each one
        attends to, bool ``[B, W, W]``.
    """
    steps = torch.tensor(cached)[:, None] + torch.arange(width)
    window = torch.ones(width, width, dtype=torch.bool).tril().repeat(len(cached), 1, 1)
    for rider in riders:
        length = len(rider.tokens)
        own = slice(rider.offset, rider.offset + length)
        before = min(max(rider.position - cached[rider.row], 0), counts[rider.row])
        steps[rider.row, own] = rider.position + torch.arange(length)
        window[rider.row, own] = False
        window[rider.row, own, :before] = True
        window[rider.row, own, own] = torch.ones(length, length, dtype=torch.bool).tril()
    return steps, window
