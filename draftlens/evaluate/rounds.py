"""What speculation would do, from which of the target's tokens the draft ranks first: no model
needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftlens.evaluate.shares import Share

GAMMAS = tuple(range(1, 11))
GAMMA = 5


def rounds(hits: Sequence[bool], gamma: int) -> list[int]:
    """Accepted guesses of each verification pass over one greedy answer.

    Args:
        hits: for each token behind the first (which prefill yields), whether the draft, having read
            the answer so far, ranks it first.
        gamma: guesses of a pass.
    """
    at, accepted = 0, []
    while at < len(hits):
        window = hits[at : at + gamma]
        run = next((index for index, hit in enumerate(window) if not hit), len(window))
        accepted.append(run)
        at += run + 1
    return accepted


def acceptance_length(answers: Sequence[Sequence[bool]], gamma: int) -> float | None:
    """Tokens emitted by verification passes / passes, bonus included, as `engine.stats` defines
    it."""
    passes = sum(len(rounds(hits, gamma)) for hits in answers)
    return sum(map(len, answers)) / passes if passes else None


def by_depth(answers: Sequence[Sequence[bool]], gamma: int) -> dict[str, Any]:
    """Depth to the share of guesses accepted there, of those whose forerunners in the pass were all
    accepted.

    Guesses behind the end of an answer do not count.
    """
    right, total = [0] * gamma, [0] * gamma
    for hits in answers:
        at = 0
        for run in rounds(hits, gamma):
            for depth in range(min(run + 1, gamma, len(hits) - at)):
                total[depth] += 1
                right[depth] += depth < run
            at += run + 1
    return {
        str(d + 1): Share(r, t).to_json() for d, (r, t) in enumerate(zip(right, total, strict=True))
    }
