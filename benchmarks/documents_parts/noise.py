"""What readers of a page make of it: lines, hyphens, wrong characters and words, wrong order."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable

Regions = list[str]
Noise = Callable[[Regions, random.Random], Regions]

CONFUSIONS = {"l": "1", "1": "l", "O": "0", "0": "O", "e": "c", "n": "u", "i": "j", "a": "o"}
WIDTH = 46
"""Characters of a printed line."""


def clean(regions: Regions, rng: random.Random) -> Regions:
    """Without marks of Markdown, otherwise right."""
    return regions


def printed(regions: Regions, rng: random.Random) -> Regions:
    """In lines, with hyphens where a word would not fit."""
    return [_printed(region, "-\n") for region in regions]


def marked(regions: Regions, rng: random.Random) -> Regions:
    """In lines, with pdfium's mark where a word is broken, and with ligatures."""
    lines = [_printed(region, "\u0002\n") for region in regions]
    return [region.replace("fi", "\ufb01").replace("fl", "\ufb02") for region in lines]


def _printed(region: str, hyphen: str) -> str:
    if "\n" in region:  # code
        return region
    lines: list[str] = []
    for line in textwrap.wrap(region, WIDTH):
        lines.append(line)
    text = "\n".join(lines)
    words = text.split(" ")
    for place in range(5, len(words), 17):
        word = words[place]
        if len(word) > 6 and word.isalpha():
            words[place] = f"{word[:4]}{hyphen}{word[4:]}"
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


def words(share: float) -> Noise:
    """A share of the words is replaced, left out or said twice."""

    def noisy(regions: Regions, rng: random.Random) -> Regions:
        return [_with_words(region, share, rng) for region in printed(regions, rng)]

    return noisy


def _with_words(region: str, share: float, rng: random.Random) -> str:
    kept: list[str] = []
    for word in region.split(" "):
        if rng.random() >= share:
            kept.append(word)
        else:
            kept += rng.choice([[], [word, word], [rng.choice(("other", "made", "again"))]])
    return " ".join(kept)


def spaces(regions: Regions, rng: random.Random) -> Regions:
    """One space in twelve is missing."""
    noisy = []
    for region in printed(regions, rng):
        parts = region.split(" ")
        text = parts[0]
        for part in parts[1:]:
            text += ("" if rng.random() < 1 / 12 else " ") + part
        noisy.append(text)
    return noisy


def shuffled(regions: Regions, rng: random.Random) -> Regions:
    """In lines, the regions in any order."""
    lines = printed(regions, rng)
    rng.shuffle(lines)
    return lines


def missing(regions: Regions, rng: random.Random) -> Regions:
    """In lines; one region in three is missing, and the page has a head and a foot."""
    kept = [region for place, region in enumerate(printed(regions, rng)) if place % 3 != 1]
    return ["Draft, not for release", *kept, "page 12 of 340"]


def in_one(regions: Regions, rng: random.Random) -> Regions:
    """In lines, all regions as one text."""
    return ["\n".join(printed(regions, rng))]


def columns(regions: Regions, rng: random.Random) -> Regions:
    """One text whose lines alternate between the halves of the page."""
    lines = "\n".join(printed(regions, rng)).split("\n")
    half = (len(lines) + 1) // 2
    mixed = [line for pair in zip(lines[:half], [*lines[half:], ""], strict=False) for line in pair]
    return ["\n".join(mixed)]


KINDS: dict[str, Noise] = {
    "clean": clean,
    "lines and hyphens": printed,
    "pdfium's marks, ligatures": marked,
    "2% of characters": characters(0.02),
    "8% of characters": characters(0.08),
    "5% of words": words(0.05),
    "missing spaces": spaces,
    "shuffled regions": shuffled,
    "a third missing": missing,
    "one text": in_one,
    "mixed columns": columns,
}
