"""Accuracy of answers: captions fact by fact, questions word for word and compared with blind
guessing."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from draftlens_lab.evaluate.answers import Answer, Answerer, OnAnswers
from draftlens_lab.evaluate.chance import Guesses
from draftlens_lab.evaluate.samples import wording
from draftlens_lab.measure.statistics import Share
from draftlens_lab.world import Facts, read_facts
from draftlens_lab.world.captions import shown_value
from draftlens_lab.world.samples import Sample
from draftlens_lab.world.scene import NUMBERS, WORDS

BY_WORDING = ("ordering", "counting")
"""Families with figures that are also reported for each wording of a question."""

TEXT_KINDS = ("word", "number", "secret")

VOCABULARY = frozenset(word.upper() for word in WORDS) | frozenset(NUMBERS)
"""All words and numbers that the world shows on a screen."""


def captions_right(samples: Sequence[Sample], answers: Sequence[Answer]) -> dict[str, Any]:
    """Accuracy of captions.

    Returns:
        JSON values: `asked` (number of captions) and the shares `exact` (captions that are right
        word for word), `facts` and `kinds` (facts by kind; a fact that a caption invents counts as
        a wrong one, as in `right_facts`) and `texts` (see `texts_right`).
    """
    right = Counter[str]()
    total = Counter[str]()
    for sample, answer in zip(samples, answers, strict=True):
        count_facts(read_facts(sample.turns[-1].answer), read_facts(answer.text), right, total)
    kinds = {kind: Share(right[kind], total[kind]).to_json() for kind in sorted(total)}
    return {
        "asked": len(samples),
        "exact": Share.of(_exact_matches(samples, answers)).to_json(),
        "facts": Share(right.total(), total.total()).to_json(),
        "kinds": kinds,
        "texts": texts_right(samples, answers),
    }


def count_facts(truth: Facts, answer: Facts, right: Counter[str], total: Counter[str]) -> None:
    """Add the facts of one caption to the counts by kind."""
    total.update(fact_kind(name) for name in truth.keys() | answer.keys())
    right.update(fact_kind(name) for name, value in truth.items() if answer.get(name) == value)


def fact_kind(name: str) -> str:
    """The subject of a fact: "first shot top left colour" is about colour."""
    words = name.split()
    if words[0] == "all":
        return "totals"
    if name == "text":
        return "no text"
    return f"text {words[-1]}" if "text" in words else words[-1]


def texts_right(samples: Sequence[Sample], answers: Sequence[Answer]) -> dict[str, Any]:
    """Words and numbers on the screen that the captions name at any place: a measure of reading
    alone.

    Returns:
        Shares, as JSON values, by kind of text and of `all` texts; and `named`, the share of those
        words and numbers in the captions that were on the screen.
    """
    read: dict[str, list[bool]] = {kind: [] for kind in TEXT_KINDS}
    named: list[bool] = []
    for sample, answer in zip(samples, answers, strict=True):
        words = VOCABULARY.intersection(re.findall(r"\w+", answer.text))
        kinds = _text_kinds(sample)
        for text, kind in kinds.items():
            read[kind].append(text in words)
        named += [word in kinds for word in words]
    shares = {kind: Share.of(hits) for kind, hits in read.items()}
    shares["all"] = Share.of(itertools.chain(*read.values()))
    shares["named"] = Share.of(named)
    return {kind: share.to_json() for kind, share in shares.items()}


def _text_kinds(sample: Sample) -> dict[str, str]:
    texts = [text for scene in sample.scenes for text in scene.texts]
    return {shown_value(text): text.kind for text in texts}


def questions_right(
    answerer: Answerer,
    families: Mapping[str, Sequence[Sample]],
    frames: int,
    guesses: Guesses,
    on_answers: OnAnswers,
) -> dict[str, Any]:
    """Accuracy of answers to the questions of each family.

    Args:
        on_answers: called with the number of samples that were answered since the last call.

    Returns:
        JSON values by family, see `family_right`.
    """
    return {
        family: family_right(family, samples, answerer.answer(samples, frames, on_answers), guesses)
        for family, samples in families.items()
    }


def family_right(
    family: str, samples: Sequence[Sample], answers: Sequence[Answer], guesses: Guesses
) -> dict[str, Any]:
    """Accuracy of answers to the questions of one family.

    Returns:
        JSON values: the shares `right` (word for word) and `chance` (of `guesses` for the same
        questions), `above` (their difference), and for `BY_WORDING` the same by wording of the
        question in `wordings`.
    """
    hits = _exact_matches(samples, answers)
    guessed = [guesses.guess(family, sample) == sample.turns[-1].answer for sample in samples]
    figures = _compared(hits, guessed)
    if family in BY_WORDING:
        rows: dict[str, list[int]] = {}
        for index, sample in enumerate(samples):
            rows.setdefault(wording(sample.turns[-1].question), []).append(index)
        figures["wordings"] = {
            question: _compared(
                [hits[i] for i in rows[question]], [guessed[i] for i in rows[question]]
            )
            for question in sorted(rows)
        }
    return figures


def _exact_matches(samples: Sequence[Sample], answers: Sequence[Answer]) -> list[bool]:
    pairs = zip(samples, answers, strict=True)
    return [answer.text == sample.turns[-1].answer for sample, answer in pairs]


def _compared(hits: Sequence[bool], guessed: Sequence[bool]) -> dict[str, Any]:
    right = Share.of(hits)
    chance = Share.of(guessed)
    above = (right.right - chance.right) / right.total if right.total else None
    return {"right": right.to_json(), "chance": chance.to_json(), "above": above}
