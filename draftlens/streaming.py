"""Answers of transformers models, piece by piece or at once: `stream` and `generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch

from draftlens.core.logprobs import name_logprobs
from draftlens.core.names import AUTO
from draftlens.core.result import Chunk, Result
from draftlens.core.stats import Clock
from draftlens.core.text import TextDecoder, tokenizer_of
from draftlens.decoding.plan import Plan
from draftlens.decoding.session import Session
from draftlens.methods.base import resolve, with_prefill
from draftlens.options import CallOptions, split_options
from draftlens.request import Call, Request, open_call


class Stream:
    """An answer that is being made: iterate over its `Chunk`s, then read `result`.

    An invalid request is refused when the stream is made, a model that does not fit before the
    first chunk, and a draft that cannot read its inputs when drafting begins: after the first
    chunk, or before it if the draft proposes the first tokens. Text is empty without the option
    `tokenizer`.

    Args:
        target, draft: transformers models, or backbones.
        request: the prompts and how to answer them.
        clock: started when the request came.

    Example:

        >>> import draftlens
        >>> stream = draftlens.load(device="cpu").stream("Hello", max_new_tokens=8)
        >>> tokens = [token for chunk in stream for token in chunk.tokens]
        >>> tokens == stream.result.tokens[0]
        True
    """

    def __init__(
        self,
        target: Any,
        draft: Any,
        request: Request,
        clock: Clock | None = None,
    ) -> None:
        self._call = open_call(target, draft, request, clock)
        self.tokenizer = tokenizer_of(request.options.get("tokenizer"))
        chunks = self._call.plan.schedule(self._call.session)
        streamer = request.options.get("streamer")
        if streamer is not None:
            chunks = with_streamer(chunks, streamer)
        self._without_text = chunks
        self._chunks = chunks
        if self.tokenizer is not None:
            self._chunks = with_text(chunks, partial(decoded, self.tokenizer))
            if request.options.get("logprobs"):
                name_logprobs(self._call.sequences, self.tokenizer)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def run(self) -> Result:
        """Consume the remaining chunks and return the result."""
        for _ in self._without_text:
            pass
        return self.result

    @property
    def plan(self) -> Plan:
        """The plan of the request's method."""
        return self._call.plan

    @property
    def session(self) -> Session:
        """The session that answers."""
        return self._call.session

    @property
    def result(self) -> Result:
        """The answer so far; the whole answer once the iteration has ended."""
        return result_of(self._call, texts_of(self._call, self.tokenizer))


def generate(
    target_model: Any, inputs: Mapping[str, Any], **options: Unpack[CallOptions]
) -> Result:
    """Answer a batch as ``target_model.generate(**inputs, **options)`` would, in fewer target
    forwards.

    Args:
        target_model: an unmodified transformers vision-language model.
        inputs: the output of its processor, padded on either side.
        draft: a smaller model of the same tokenizer, or None.
        draft_inputs: the output of the draft's processor for the same prompt; `inputs` if None.
            With a method whose draft reads the prompt in several views, its entry `views` may map
            the names of further views to the output of the draft's processor for them, such as
            ``{**draft_inputs, "views": {"text": processor(text=prompt_without_pictures)}}``.
        method: a method, its name, or a dict of its options; by default `auto`: `mixed` with a
            draft, else `lookup`.
        seed: seed of the sampling noise, or one seed for each row. None draws one from torch's
            global generator.
        references: texts or token ids that the answers are expected to repeat, for methods that
            draft from them (`auto`, `hsd`, `lookup`, `mixed`): one list for each row (for a single
            row the list itself). Texts need the option `tokenizer`, the target's.
        prefill: how the target reads the prompts (`prefill.base.PREFILLS`), as a name, a dict of
            its name and options, or a prefill; None for the method's own, by default `"full"`.
        compile: what computes decode forwards, as for `draftlens.load`. With `"auto"`, the default,
            the modules answer the first call of a model, which may be the only one, and passes are
            prepared at the next. False takes the modules.
        options: options of `generate`, such as `max_new_tokens`, `do_sample`, `temperature`,
            `eos_token_id`, `logits_processor`, `stopping_criteria`, a `generation_config` or a
            `streamer`; their defaults are in the model's own generation config. With a `tokenizer`,
            which `stop_strings` need, the result has text.

    Raises:
        ConfigError, InputError, UnsupportedModelError, IncompatiblePairError, HostError: before any
            token is made.

    Example:

        >>> import draftlens
        >>> engine = draftlens.load(device="cpu")
        >>> model, draft = engine.target.backbone.model, engine.draft.backbone.model
        >>> inputs = engine.read("Hello").target
        >>> result = draftlens.generate(model, inputs, draft=draft, max_new_tokens=8)
        >>> result.lossless
        True
    """
    return stream(target_model, inputs, **options).run()


def stream(target_model: Any, inputs: Mapping[str, Any], **options: Unpack[CallOptions]) -> Stream:
    """The same as `generate`, with token ids as they come; a consumer may stop at any time.

    Example:

        >>> import draftlens
        >>> engine = draftlens.load(device="cpu")
        >>> inputs = engine.read("Hello").target
        >>> chunk = next(draftlens.stream(engine.target.backbone.model, inputs, max_new_tokens=8))
        >>> len(chunk.tokens), chunk.row
        (1, 0)
    """
    own, generation = split_options(options, CallOptions)
    draft = own.pop("draft", None)
    method = resolve(own.pop("method", None))
    request = Request(
        inputs,
        draft_inputs=own.pop("draft_inputs", None),
        method=with_prefill(method, own.pop("prefill", None)),
        seed=own.pop("seed", None),
        options=generation,
        compile=own.pop("compile", AUTO),
        extras=own,
    )
    return Stream(target_model, draft, request)


def with_streamer(chunks: Iterator[Chunk], streamer: Any) -> Iterator[Chunk]:
    """The same chunks, also put into a streamer of transformers, which is ended even after an
    exception, since a reader may wait for its end."""
    try:
        for chunk in chunks:
            streamer.put(torch.tensor(chunk.tokens))
            yield chunk
    finally:
        streamer.end()


def with_text(chunks: Iterator[Chunk], decode_ids: Callable[[list[int]], str]) -> Iterator[Chunk]:
    """The same chunks with `text` filled in; text held back at the end (`core.text.TextDecoder`)
    comes in a last chunk without tokens."""
    decoders: dict[int, TextDecoder] = {}
    for chunk in chunks:
        decoder = decoders.setdefault(chunk.row, TextDecoder(decode_ids))
        text = decoder.add(chunk.tokens)
        yield replace(chunk, text=text)
    for row, decoder in decoders.items():
        rest = decoder.flush()
        if rest:
            yield Chunk((), (), rest, row)


def decoded(tokenizer: Any, ids: list[int]) -> str:
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
        approximate=(*session.target.passes.rounding, *approximate),
        texts=texts or [],
        notes=session.notes,
        logprobs=[list(each.logprobs.tokens) for each in call.sequences if each.logprobs],
    )


def approximations(call: Call) -> tuple[str, ...]:
    """Parts of the target's side that are not exact, in words for the user.

    Below float32, verifying several tokens at once is another matrix product than decoding one, and
    so is reading a prompt in parts, so near ties may be decided differently; `draftlens verify`
    measures how often.
    """
    prefill = call.plan.prefill.approximate
    happened = call.session.approximate
    names = [name for name in call.plan.approximate if name not in prefill or name in happened]
    in_parts = any(sequence.in_parts for sequence in call.sequences)
    is_low = call.dtype not in (torch.float32, torch.float64)
    if is_low and (in_parts or call.session.drafter.max_nodes):
        names.append(f"near-ties in {str(call.dtype).removeprefix('torch.')}")
    return tuple(names)
