"""How much of what a model says is right: captions fact by fact, questions word for word beside
blind guessing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from draftlens.evaluate.asking import Answer, Answerer, Done
from draftlens.evaluate.chance import Guesses
from draftlens.evaluate.samples import wording
from draftlens.evaluate.shares import Share
from draftlens.world import Facts, read_facts
from draftlens.world.caption import shown_value
from draftlens.world.samples import Sample
from draftlens.world.scene import NUMBERS, WORDS

BY_WORDING = ("ordering", "counting")
TEXT_KINDS = ("word", "number", "secret")


def captions_right(samples: Sequence[Sample], answers: Sequence[Answer]) -> dict[str, Any]:
    """The figures of captions, JSON values.

    Returns:
        `asked`; shares `exact` (captions right word for word), `facts` and `kinds` (facts by kind;
        facts that a caption invents count as wrong ones, as in `right_facts`), and `texts` (see
        `texts_right`).
    """
    exact = Share.of(a.text == s.turns[-1].answer for s, a in zip(samples, answers, strict=True))
    right, total = Counter[str](), Counter[str]()
    for sample, answer in zip(samples, answers, strict=True):
        count_facts(read_facts(sample.turns[-1].answer), read_facts(answer.text), right, total)
    kinds = {kind: Share(right[kind], total[kind]).to_json() for kind in sorted(total)}
    return {
        "asked": len(samples),
        "exact": exact.to_json(),
        "facts": Share(right.total(), total.total()).to_json(),
        "kinds": kinds,
        "texts": texts_right(samples, answers),
    }


def count_facts(truth: Facts, said: Facts, right: Counter[str], total: Counter[str]) -> None:
    """Add one caption's facts to the counts by kind."""
    total.update(fact_kind(name) for name in truth.keys() | said.keys())
    right.update(fact_kind(name) for name, value in truth.items() if said.get(name) == value)


def fact_kind(name: str) -> str:
    """What a fact is about, from its name: "first shot top left colour" is about colour."""
    words = name.split()
    if words[0] == "all":
        return "totals"
    if name == "text":
        return "no text"
    return f"text {words[-1]}" if "text" in words else words[-1]


def texts_right(samples: Sequence[Sample], answers: Sequence[Answer]) -> dict[str, Any]:
    """Words and numbers on the screen that the captions name, wherever in the caption: reading
    alone.

    Returns:
        shares by kind of text and of `all`; `named`: of all words and numbers that captions name,
        those shown.
    """
    found: dict[str, list[bool]] = {kind: [] for kind in TEXT_KINDS}
    named: list[bool] = []
    values = {word.upper() for word in WORDS} | set(NUMBERS)
    for sample, answer in zip(samples, answers, strict=True):
        said = set(re.findall(r"\w+", answer.text)) & values
        shown = {shown_value(text): text.kind for scene in sample.scenes for text in scene.texts}
        for value, kind in shown.items():
            found[kind].append(value in said)
        named += [value in shown for value in sorted(said)]
    shares = {kind: Share.of(truths) for kind, truths in found.items()}
    shares |= {
        "all": Share.of([t for truths in found.values() for t in truths]),
        "named": Share.of(named),
    }
    return {kind: share.to_json() for kind, share in shares.items()}


def questions_right(
    asker: Answerer,
    families: Mapping[str, Sequence[Sample]],
    frames: int,
    guesses: Guesses,
    done: Done,
) -> dict[str, Any]:
    """Ask the questions of each family; JSON values by family (see `family_right`)."""
    return {
        family: family_right(family, samples, asker.answer(samples, frames, done), guesses)
        for family, samples in families.items()
    }


def family_right(
    family: str, samples: Sequence[Sample], answers: Sequence[Answer], guesses: Guesses
) -> dict[str, Any]:
    """The figures of one family of questions.

    Returns:
        shares `right` (word for word) and `chance` (what `Guesses` get on the same questions),
        `above` (their difference), and for `BY_WORDING` the same by question in `wordings`.
    """
    truths = [a.text == s.turns[-1].answer for s, a in zip(samples, answers, strict=True)]
    lucky = [guesses.guess(family, s) == s.turns[-1].answer for s in samples]
    figures = _beside(truths, lucky)
    if family in BY_WORDING:
        asked = [wording(sample.turns[-1].question) for sample in samples]
        figures["wordings"] = {
            question: _beside(
                *(
                    [t for t, q in zip(of, asked, strict=True) if q == question]
                    for of in (truths, lucky)
                )
            )
            for question in sorted(set(asked))
        }
    return figures


def _beside(truths: list[bool], lucky: list[bool]) -> dict[str, Any]:
    right, chance = Share.of(truths), Share.of(lucky)
    above = (right.right - chance.right) / right.total if right.total else None
    return {"right": right.to_json(), "chance": chance.to_json(), "above": above}
