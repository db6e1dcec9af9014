"""What a caller receives: chunks during decoding, and one result."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftlens.core.stats import Stats


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the target finds one token in its place of an answer.

    Args:
        token: its id.
        logprob: natural logarithm of its probability; -inf if it cannot be chosen.
        text: its text, special tokens and leading spaces included; empty without a tokenizer.
        top: the likeliest tokens in this place, best first, if they are asked for.

    Example:

        >>> import draftlens
        >>> engine = draftlens.load(device="cpu")
        >>> result = engine.generate("Hello", max_new_tokens=8, logprobs=True, top_logprobs=2)
        >>> first = result.logprobs[0][0]
        >>> first.token == first.top[0].token == result.tokens[0][0]
        True
    """

    token: int
    logprob: float
    text: str = ""
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Chunk:
    """Tokens that one row gained in one round.

    Args:
        tokens: new token ids.
        from_draft: for each of them, whether the draft supplied it (the bonus token is the target's
            own).
        text: their addition to the row's text; empty without a tokenizer.
        row: the number of the row, in order of arrival.
        logprobs: for each of the tokens, its log probability; empty unless `logprobs` is given.

    Example:

        >>> from draftlens import Chunk
        >>> sum(Chunk(tokens=(5, 8, 2), from_draft=(True, True, False)).from_draft)
        2
    """

    tokens: tuple[int, ...]
    from_draft: tuple[bool, ...]
    text: str = ""
    row: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


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
        logprobs: per row and token its log probability; empty unless `logprobs` is given.

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
    logprobs: list[list[TokenLogprob]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The first row's text."""
        return self.texts[0] if self.texts else ""
