"""What a caller receives: chunks during decoding, and one result."""

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
        text: their addition to the row's text; empty without a tokenizer.
        row: the number of the row, in order of arrival.

    Example:

        >>> from draftlens import Chunk
        >>> sum(Chunk(tokens=(5, 8, 2), from_draft=(True, True, False)).from_draft)
        2
    """

    tokens: tuple[int, ...]
    from_draft: tuple[bool, ...]
    text: str = ""
    row: int = 0


@dataclass(frozen=True)
class Result:
    """One finished call.

    Args:
        tokens: per row the new token ids, including the final end-of-sequence id, as in `generate`.
        from_draft: per row and token, whether the draft supplied it.
        stats: counters, times and the metrics derived from them.
        lossless: true only if everything on the target's side was exact. Of a target whose weights
            are rounded (`Engine.compile`), it is about the rounded model.
        approximate: names of the parts that were not, and what is rounded.
        texts: per row the decoded text without special tokens; empty without a tokenizer.
        notes: remarks, such as that a clip was too short for the requested prefill and was read
            exactly.

    Example:

        >>> import draftlens
        >>> result = draftlens.load(device="cpu").generate("Hello", max_new_tokens=8)
        >>> result.lossless, result.approximate, len(result.tokens)
        (True, (), 1)
    """

    tokens: list[list[int]]
    from_draft: list[list[bool]]
    stats: Stats
    lossless: bool
    approximate: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The first row's text."""
        return self.texts[0] if self.texts else ""
