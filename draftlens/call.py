"""One call from its arguments to its result: the steps that every way in shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch

from draftlens.core.errors import InputError
from draftlens.core.result import Chunk, Result
from draftlens.core.stats import Clock
from draftlens.decode.session import Session
from draftlens.methods import Method, resolve
from draftlens.models.backbone import Backbone
from draftlens.models.prompt import Prepared
from draftlens.ops.sampling import SamplingRule, check_processors

MethodLike = Method | str | Mapping[str, Any] | None


def open_session(
    target_model: Any,
    inputs: Mapping[str, Any],
    draft: Any,
    draft_inputs: Mapping[str, Any] | None,
    method: MethodLike,
    seed: int | None,
    clock: Clock,
    **options: Any,
) -> Session:
    """A session that is ready to decode; raises whatever is wrong with the call."""
    target = Backbone.of(target_model)
    small = Backbone.of(draft) if draft is not None else None
    chosen = resolve(method, small is not None)
    drafter = chosen.drafter(target, small, inputs if draft_inputs is None else draft_inputs)
    given = {name: value for name, value in options.items() if value is not None}
    with clock.phase("vision"):
        prepared = target.prepare(inputs, **given)
    if draft_inputs is not None:
        check_rows(prepared, draft_inputs)
    return Session(target, prepared, drafter, sampling_rule(prepared, chosen, seed), clock)


def check_rows(prepared: Prepared, draft_inputs: Mapping[str, Any]) -> None:
    """Refuse draft inputs that belong to another batch.

    Raises:
        InputError: there are no `input_ids`, or not as many rows as the target has.
    """
    ids, rows = draft_inputs.get("input_ids"), prepared.input_ids.shape[0]
    if ids is None or len(ids) != rows:
        raise InputError(
            f"draft_inputs must hold input_ids for {rows} rows, not "
            f"{0 if ids is None else len(ids)}"
        )


def sampling_rule(prepared: Prepared, method: Method, seed: int | None) -> SamplingRule:
    """How this call chooses tokens.

    Raises:
        ConfigError: a logits processor cannot be asked about guesses.
    """
    check_processors(prepared.processors)
    do_sample = bool(prepared.config.do_sample)
    if seed is None:
        seed = int(torch.randint(2**62, ())) if do_sample else 0
    return SamplingRule(prepared.processors, do_sample, method.sampling_rule, seed)


def finish(session: Session, texts: list[str] | None = None) -> Result:
    """What a session has answered so far."""
    rows = session.rows
    approximate = approximations(session)
    tokens, from_draft, stats = deepcopy(
        (rows.tokens, rows.from_draft, session.stats)
    )  # the session may go on
    return Result(tokens, from_draft, stats, not approximate, approximate, texts or [])


def approximations(session: Session) -> tuple[str, ...]:
    """What on the target's side is not exact, by name.

    Below float32, checking several tokens at once is another matrix product than checking one, so
    near-ties may fall otherwise; `draftlens verify` measures whether they did.
    """
    dtype = session.target.dtype
    if len(session.drafter.topology) and dtype not in (torch.float32, torch.float64):
        return (f"near-ties in {str(dtype).removeprefix('torch.')}",)
    return ()


def streamed(chunks: Iterator[Chunk], streamer: Any) -> Iterator[Chunk]:
    """The same chunks, told to a streamer of transformers too; it is ended however they end, for
    somebody waits."""
    try:
        for chunk in chunks:
            streamer.put(torch.tensor(chunk.tokens))
            yield chunk
    finally:
        streamer.end()


def text_of(chunks: Iterator[Chunk], decode_ids: Callable[[list[int]], str]) -> Iterator[Chunk]:
    """The same chunks with `text` filled in.

    Text is held back while it ends inside a character: bytes of one may come in different tokens.
    What an answer's end leaves held back comes last, in a chunk without tokens.
    """
    context: dict[
        int, list[int]
    ] = {}  # the last tokens whose text is out: how a tokenizer spaces words depends on them
    pending: dict[int, list[int]] = {}

    def untold(row: int) -> str:
        before = context.get(row, [])
        return decode_ids([*before, *pending[row]])[len(decode_ids(before)) :]

    for chunk in chunks:
        new = pending.setdefault(chunk.row, [])
        new.extend(chunk.tokens)
        text = untold(chunk.row)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield chunk
            continue
        context[chunk.row], pending[chunk.row] = new, []
        yield Chunk(chunk.tokens, chunk.from_draft, text, chunk.row)
    for row in pending:
        rest = untold(row)
        if rest:
            yield Chunk((), (), rest, row)
