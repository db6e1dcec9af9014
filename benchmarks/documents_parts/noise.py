"""What readers of a page make of it: wrong characters."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable

Regions = list[str]
Noise = Callable[[Regions, random.Random], Regions]

CONFUSIONS = {"l": "1", "1": "l", "O": "0", "0": "O", "e": "c", "n": "u", "i": "j", "a": "o"}
WIDTH = 46
"""Characters of a printed line."""


def printed(regions: Regions, rng: random.Random) -> Regions:
    """In lines, with hyphens where a word would not fit."""
    return [_printed(region) for region in regions]


def _printed(region: str) -> str:
    if "\n" in region:  # code
        return region
    words = "\n".join(textwrap.wrap(region, WIDTH)).split(" ")
    for place in range(5, len(words), 17):
        word = words[place]
        if len(word) > 6 and word.isalpha():
            words[place] = f"{word[:4]}-\n{word[4:]}"
    return " ".join(words)


def characters(share: float) -> Noise:
    """A share of the characters is taken for others."""

    def noisy(regions: Regions, rng: random.Random) -> Regions:
        return [
            "".join(_confused(c, rng) if rng.random() < share else c for c in region)
            for region in printed(regions, rng)
        ]

    return noisy


def _confused(character: str, rng: random.Random) -> str:
    if character.isspace():
        return character
    return CONFUSIONS.get(character, rng.choice(["", character * 2, "~"]))
