"""Streams of chunks: with text, into a streamer of transformers, and to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch

from draftlens.core.result import Chunk, Result
from draftlens.core.text import TextDecoder, tokenizer_of
from draftlens.request import Call


def with_streamer(chunks: Iterator[Chunk], streamer: Any) -> Iterator[Chunk]:
    """The same chunks, also put into a streamer of transformers.

    The streamer is ended however the chunks end, since a reader may wait for its end.
    """
    try:
        for chunk in chunks:
            streamer.put(torch.tensor(chunk.tokens))
            yield chunk
    finally:
        streamer.end()


def with_text(chunks: Iterator[Chunk], decode_ids: Callable[[list[int]], str]) -> Iterator[Chunk]:
    """The same chunks with `text` filled in (`core.text.TextDecoder`).

    Text that the end of an answer leaves held back comes last, in a chunk without tokens.
    """
    decoders: dict[int, TextDecoder] = {}
    for chunk in chunks:
        decoder = decoders.setdefault(chunk.row, TextDecoder(decode_ids))
        text = decoder.add(chunk.tokens)
        yield Chunk(chunk.tokens, chunk.from_draft, text, chunk.row)
    for row, decoder in decoders.items():
        rest = decoder.flush()
        if rest:
            yield Chunk((), (), rest, row)


def decoded(tokenizer: Any, ids: list[int]) -> str:
    """The text of token ids without special tokens."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


def texts_of(call: Call, tokenizer: Any) -> list[str]:
    """The text of each row so far; none without a tokenizer."""
    if tokenizer is None:
        return []
    return [decoded(tokenizer_of(tokenizer), sequence.tokens) for sequence in call.sequences]


def result_of(call: Call, texts: list[str] | None = None) -> Result:
    """The answers of a call so far. The result does not change when the call goes on."""
    session = call.session
    stats = session.stats
    if session.cache is not None:
        stats.target_cache_bytes = session.cache.nbytes
    stats.draft_cache_bytes = session.drafter.cache_bytes
    approximate = approximations(call)
    return Result(
        tokens=[list(sequence.tokens) for sequence in call.sequences],
        from_draft=[list(sequence.from_draft) for sequence in call.sequences],
        stats=deepcopy(stats),
        lossless=not approximate,
        approximate=approximate,
        texts=texts or [],
        notes=session.notes,
    )


def approximations(call: Call) -> tuple[str, ...]:
    """What on the target's side is not exact, in words for the user.

    Below float32, checking several tokens at once is another matrix product than checking one, so
    near-ties may be decided differently; `draftlens verify` measures whether they are.
    """
    prefill = call.plan.prefill.approximate
    happened = call.session.approximate
    names = [name for name in call.plan.approximate if name not in prefill or name in happened]
    if call.session.drafter.max_nodes and call.dtype not in (torch.float32, torch.float64):
        names.append(f"near-ties in {str(call.dtype).removeprefix('torch.')}")
    return tuple(names)
