"""Whether reading the regions first saves time, as measured."""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = "page"
BOTH = "regions+page"

_MOST_SAVED = 0.5
"""Share of the rounds over a page that answers for its regions may save. In the paper they save a
tenth (HSD, table 8: 3.49 tokens a pass become 3.87)."""

_PROBE_TOKENS = 64
"""An answer shorter than this shows nothing about either way."""


@dataclass
class _Record:
    """What pages that were answered in one way have taken."""

    seconds: float = 0.0
    tokens: int = 0

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.tokens


@dataclass
class StageChooser:
    """Chooses the stages of `auto`.

    The first page is answered in one stage. Its times say what a first stage could save at most:
    half of the rounds. They also say what it costs at least: reading the crops, which takes about
    as long as reading their share of the page, and the rounds for the longest of them, since all
    are answered at once. Only where the one exceeds the other is a page answered in two stages, and
    from then on the way with fewer seconds a token is taken. What one way shows is forgotten by
    half with each page of its own, so that other documents are judged anew.
    """

    _records: dict[str, _Record] = field(default_factory=dict)
    _may_pay: bool = False

    def choose(self) -> str:
        """The stages of the next page."""
        if PAGE not in self._records or not self._may_pay:
            return PAGE
        if BOTH not in self._records:
            return BOTH
        return min((PAGE, BOTH), key=lambda way: self._records[way].seconds_per_token)

    def record(self, stages: str, seconds: float, tokens: int) -> None:
        """Learn what a page has taken.

        Args:
            stages: how it was answered.
            seconds: of all stages, without the pipeline.
            tokens: of the page's answer.
        """
        if tokens < _PROBE_TOKENS:
            return
        record = self._records.setdefault(stages, _Record())
        record.seconds = record.seconds / 2 + seconds
        record.tokens = record.tokens // 2 + tokens

    def estimate(self, reading: float, decoding: float, longest: float, tokens: int) -> None:
        """Learn from a page in one stage whether a first stage could save time.

        Args:
            reading: seconds of vision and prefill.
            decoding: seconds of all rounds.
            longest: share of the page's text that stands in the longest region, from 0 to 1.
            tokens: of the answer.
        """
        if tokens < _PROBE_TOKENS:
            return
        self._may_pay = _MOST_SAVED * decoding > reading + longest * decoding
