"""Facts that a text states about a scene, to measure how much of an answer is right.

A fact is a name and a value, both words. Names begin with where the fact holds: "first shot
background", "first shot top left colour", "second text ink". Names of facts about pictures begin
with "picture": "picture background".
"""

import re
from typing import NamedTuple

from draftlens_lab.world import wording
from draftlens_lab.world.captions import caption, still_caption
from draftlens_lab.world.scene import Scene

Facts = dict[str, str]

_SHOT_PATTERNS = (
    wording.sentence_pattern(wording.SHOT),
    wording.sentence_pattern(wording.STILL),
)
_REMAINING_PATTERNS = (wording.sentence_pattern(wording.SOME_LEFT),)
_THING_PATTERNS = (
    wording.sentence_pattern(wording.CHANGES),
    wording.sentence_pattern(wording.LARGE),
    wording.sentence_pattern(wording.SMALL),
    wording.sentence_pattern(wording.STILL_LARGE),
    wording.sentence_pattern(wording.STILL_SMALL),
)
_TEXT_PATTERNS = (
    wording.sentence_pattern(wording.WORD_TEXT),
    wording.sentence_pattern(wording.NUMBER_TEXT),
    wording.sentence_pattern(wording.SECRET_TEXT),
    wording.sentence_pattern(wording.STILL_WORD),
    wording.sentence_pattern(wording.STILL_NUMBER),
    wording.sentence_pattern(wording.PART_WORD),
    wording.sentence_pattern(wording.PART_NUMBER),
)
_PART_PATTERNS = (wording.sentence_pattern(wording.PART),)
_HERO_PATTERNS = (wording.sentence_pattern(wording.HERO),)
_COMPARED_PATTERNS = (wording.sentence_pattern(wording.COMPARED),)
_CHANGE_PATTERNS = (wording.sentence_pattern(wording.BEFORE_AND_AFTER),)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


class FactCount(NamedTuple):
    """The number of facts that a text states.

    Attributes:
        right: facts of the truth that the text states rightly.
        total: facts of the truth, and facts that the text invents.
    """

    right: int
    total: int


def facts(scene: Scene) -> Facts:
    """Every fact in the right answer to "Describe the video."."""
    return read_facts(caption(scene))


def still_facts(scene: Scene) -> Facts:
    """Every fact in the right answer to "Describe the image."."""
    return read_facts(still_caption(scene))


def read_facts(text: str) -> Facts:
    """The facts that a text states.

    Sentences that do not have the form of the world's own sentences state no facts.
    """
    reader = _FactReader()
    for sentence in re.findall(r"[^.]+\.", text):
        reader.read(sentence.strip())
    return reader.facts


def right_facts(text: str, truth: Facts) -> FactCount:
    """Count the facts that a text states rightly.

    A fact that the text invents (a thing in an empty quarter, for example) counts as one more wrong
    fact.

    Returns:
        The number of right facts, and the number of all facts that can be right or wrong.
    """
    stated = read_facts(text)
    right = sum(stated.get(name) == value for name, value in truth.items())
    return FactCount(right, len(truth.keys() | stated.keys()))


class _FactReader:
    """Reads the sentences of a caption in order.

    Attributes:
        facts: the facts of the sentences that have been read.
    """

    def __init__(self) -> None:
        self.facts: Facts = {}
        self._section = ""  # "first shot", "second shot" or "picture"
        self._num_texts = 0
        self._num_hero = 0

    def read(self, sentence: str) -> None:
        if self._read_fixed(sentence):
            return
        fields = _match(_SHOT_PATTERNS, sentence)
        if fields is not None:
            self._open_section(fields)
            return
        fields = _match(_REMAINING_PATTERNS, sentence)
        if fields is not None:
            self._add(self._section, fields)
            return
        fields = _match(_THING_PATTERNS, sentence)
        if fields is not None:
            place = fields.pop("place")
            self._add(f"{self._section} {place}", fields)
            return
        fields = _match(_TEXT_PATTERNS, sentence)
        if fields is not None:
            self._add_text(fields)
            return
        self._read_part(sentence)

    def _read_part(self, sentence: str) -> None:
        fields = _match(_PART_PATTERNS, sentence)
        if fields is not None:
            self._section = "shot"
            self._add(self._section, fields)
            return
        fields = _match(_HERO_PATTERNS, sentence)
        if fields is not None:
            fields.pop("turn")
            ordinal = _ORDINALS[min(self._num_hero, len(_ORDINALS) - 1)]
            self._num_hero += 1
            self._add(f"{ordinal} appearance", fields)
            return
        fields = _match(_COMPARED_PATTERNS, sentence)
        if fields is not None:
            self._add(f"{fields.pop('which')} shot", fields)
            return
        fields = _match(_CHANGE_PATTERNS, sentence)
        if fields is not None:
            place = fields.pop("place")
            for when, look in fields.items():
                self._add(f"{place} {when}", _look_facts(look))

    def _read_fixed(self, sentence: str) -> bool:
        """Add the facts of a sentence without fields; returns whether the sentence is one."""
        if sentence == wording.unmark(wording.ONE_SHOT):
            self.facts["shots"] = "one"
        elif sentence == wording.unmark(wording.TWO_SHOTS):
            self.facts["shots"] = "two"
        elif sentence == wording.unmark(wording.NO_TEXT):
            self.facts["text"] = "none"
        elif sentence == wording.unmark(wording.ALL_LEFT):
            count = self.facts.get(f"{self._section} count", "")
            self.facts[f"{self._section} left"] = count
        else:
            return False
        return True

    def _open_section(self, fields: Facts) -> None:
        ordinal = fields.pop("ordinal", None)
        self._section = "picture" if ordinal is None else f"{ordinal} shot"
        self._add(self._section, fields)

    def _add_text(self, fields: Facts) -> None:
        fields.pop("turn", None)
        ordinal = _ORDINALS[min(self._num_texts, len(_ORDINALS) - 1)]
        self._num_texts += 1
        self._add(f"{ordinal} text", fields)

    def _add(self, prefix: str, fields: Facts) -> None:
        for name, value in fields.items():
            self.facts[f"{prefix} {name}"] = value


def _look_facts(look: str) -> Facts:
    if look == wording.NOTHING:
        return {"look": look}
    _, texture, colour, shape = look.split()
    return {"texture": texture, "colour": colour, "shape": shape}


def _match(patterns: tuple[re.Pattern[str], ...], sentence: str) -> Facts | None:
    """The fields of a sentence by the first pattern that fits; None if no pattern fits."""
    for pattern in patterns:
        match = pattern.fullmatch(sentence)
        if match is not None:
            return match.groupdict()
    return None
