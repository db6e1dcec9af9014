"""What a caller receives: chunks while an answer is made, and one result."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftlens.core.stats import Stats


@dataclass(frozen=True)
class Chunk:
    """Tokens that one row gained in one round.

    Args:
        tokens: new token ids.
        from_draft: for each of them, whether the draft supplied it (the bonus token is the target's
            own).
        text: what they add to the row's text; empty where no tokenizer is at hand.
        row: which row of the batch.
    """

    tokens: tuple[int, ...]
    from_draft: tuple[bool, ...]
    text: str = ""
    row: int = 0


@dataclass(frozen=True)
class Result:
    """One finished call.

    Args:
        tokens: per row the new token ids, the ending end-of-sequence id included as `generate`
            does.
        from_draft: per row and token, whether the draft supplied it.
        stats: counters, times and the metrics derived from them.
        lossless: true only if everything on the target's side was exact.
        approximate: the names of what was not.
        texts: per row the decoded text without special tokens; empty where no tokenizer is at hand.
    """

    tokens: list[list[int]]
    from_draft: list[list[bool]]
    stats: Stats
    lossless: bool
    approximate: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The first row's text."""
        return self.texts[0] if self.texts else ""
