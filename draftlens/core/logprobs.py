"""Log probabilities of the tokens of an answer, from the logits of the passes that chose them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from draftlens.core.options import switch, wrong
from draftlens.core.result import Chunk, Result, TokenLogprob
from draftlens.core.text import REPLACEMENT
from draftlens.core.tree import Verdict, upload

if TYPE_CHECKING:
    from draftlens.core.sequence import Sequence as Row

Part = TypeVar("Part", Chunk, Result)

MOST_TOP = 20
"""Most likely tokens that are returned in each place."""


def kind_of_logprobs(name: str, value: Any) -> bool | str:
    """Accepts true and false, `raw` and `processed`."""
    if not isinstance(value, str):
        return switch(name, value)
    if value not in ("raw", "processed"):
        raise wrong(name, value, "true or false, 'raw' or 'processed'")
    return value


@dataclass(eq=False)
class LogprobRecord:
    """The log probabilities of a row so far.

    Args:
        top: how many of the likeliest tokens are recorded in each place.
        processed: whether they are those of the processed scores instead of the logits.
        texts: of the recorded tokens; None leaves them without.
    """

    top: int = 0
    processed: bool = False
    texts: TokenTexts | None = None
    tokens: list[TokenLogprob] = field(default_factory=list)

    def add(self, entries: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
        """Record these; returns them with their texts."""
        if self.texts is not None:
            entries = tuple(map(self.texts.filled, entries))
        self.tokens += entries
        return entries


def record_logprobs(rows: Sequence[Row], options: Mapping[str, Any]) -> None:
    """Let the rows of a call record log probabilities as its options say."""
    for row in rows:
        row.logprobs = LogprobRecord(
            options.get("top_logprobs") or 0, options["logprobs"] == "processed"
        )


def name_logprobs(rows: Sequence[Row], tokenizer: Any) -> None:
    """Let the rows of a call record the texts of tokens, too."""
    texts = TokenTexts(tokenizer)
    for row in rows:
        if row.logprobs is not None:
            row.logprobs.texts = texts


def logprobs_of(
    verdict: Verdict, logits: Tensor, scores: Tensor, rows: Sequence[Row]
) -> tuple[tuple[TokenLogprob, ...], ...]:
    """`Verdict.logprobs`. Each token of a verdict was chosen by the scores before it: the first by
    those at the root, the others by those at the accepted nodes. Only these are computed.

    `logits` ``[B, N+1, V]`` are the target's, and `scores` those after the processors.
    """
    found: list[tuple[TokenLogprob, ...]] = [()] * len(rows)
    for processed, table in ((False, logits), (True, scores)):
        records = {
            row: sequence.logprobs
            for row, sequence in enumerate(rows)
            if sequence.logprobs is not None and sequence.logprobs.processed is processed
        }
        places = [place for row in records for place in _places(verdict, row)]
        if places:
            top = max(record.top for record in records.values())
            measured = _measure(table, places, top)
            for row, record in records.items():
                entries = islice(measured, len(verdict.tokens[row]))
                found[row] = tuple(replace(each, top=each.top[: record.top]) for each in entries)
    return tuple(found)


def _places(verdict: Verdict, row: int) -> list[tuple[int, int, int]]:
    """The row, the index in the pass and the token of each choice of a verdict."""
    indices = [0, *(node + 1 for node in verdict.paths[row])]
    return [(row, index, token) for index, token in zip(indices, verdict.tokens[row], strict=False)]


def _measure(
    scores: Tensor, places: Sequence[tuple[int, int, int]], top: int
) -> Iterator[TokenLogprob]:
    """The log probability of a token and of the `top` likeliest ones, at places (`_places`) of
    scores ``[B, N+1, V]``."""
    row, index, token = upload(places, scores.device).unbind(1)
    log_p = scores[row, index].float().log_softmax(-1)
    best = log_p.topk(min(top, log_p.shape[-1]))
    own = log_p.gather(1, token[:, None])
    # One transfer for all; ids are exact in a double.
    table = torch.cat([own, best.values, best.indices.double()], 1).tolist()
    for (_, _, chosen), (logprob, *others) in zip(places, table, strict=True):
        pairs = zip(others[len(others) // 2 :], others, strict=False)
        yield TokenLogprob(
            chosen, logprob, top=tuple(TokenLogprob(int(other), value) for other, value in pairs)
        )


class TokenTexts:
    """The text of each token by itself, and the bytes that it adds to an answer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes | None]] = {}

    def text(self, token: int) -> str:
        """With leading spaces; of special tokens, too."""
        return self._of(token)[0]

    def added_bytes(self, token: int) -> bytes | None:
        """The bytes that a token adds to the text of an answer, also where it holds a part of a
        character; None for a special token, which adds nothing."""
        return self._of(token)[1]

    def fill(self, part: Part) -> Part:
        """The same with the texts of the tokens that have log probabilities."""
        if not part.logprobs:
            return part
        if isinstance(part, Chunk):
            return replace(part, logprobs=tuple(map(self.filled, part.logprobs)))
        return replace(part, logprobs=[list(map(self.filled, row)) for row in part.logprobs])

    def filled(self, entry: TokenLogprob) -> TokenLogprob:
        top = tuple(replace(other, text=self.text(other.token)) for other in entry.top)
        return replace(entry, text=self.text(entry.token), top=top)

    def _of(self, token: int) -> tuple[str, bytes | None]:
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def _read(self, token: int) -> tuple[str, bytes | None]:
        decode = self.tokenizer.decode
        once = decode([token], skip_special_tokens=False)
        if not decode([token, token], skip_special_tokens=True):
            return once, None
        # The first token of a text may lose its leading space, the second does not.
        text = decode([token, token], skip_special_tokens=False)[len(once) :]
        is_part = REPLACEMENT in text and hasattr(self.tokenizer, "convert_ids_to_tokens")
        return text, self._raw(token) if is_part else text.encode()

    def _raw(self, token: int) -> bytes:
        """The bytes of a token that is no whole text, from its name in the vocabulary."""
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        name: str = self.tokenizer.convert_ids_to_tokens(token)
        if byte := re.fullmatch("<0x([0-9A-F]{2})>", name):  # of SentencePiece
            return bytes([int(byte[1], 16)])
        values = {character: value for value, character in bytes_to_unicode().items()}
        if all(character in values for character in name):  # of byte-level BPE
            return bytes(values[character] for character in name)
        return name.encode()
