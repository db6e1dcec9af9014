"""What Python callers use: `generate` and `stream` on transformers models, `SpeculativeGenerate` inside their own call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftlens.config import Method, resolve
from draftlens.engine import Clock, Session, Stats, decode
from draftlens.errors import ConfigError
from draftlens.models.backbone import Backbone
from draftlens.models.prompt import Prepared, capture_call
from draftlens.ops.sampling import SamplingRule, check_processors
from draftlens.types import Chunk, Result

MethodLike = Method | str | Mapping[str, Any] | None


def generate(
    target_model: Any,
    inputs: Mapping[str, Any],
    *,
    draft: Any = None,
    draft_inputs: Mapping[str, Any] | None = None,
    method: MethodLike = None,
    seed: int | None = None,
    do_sample: bool = False,
    **options: Any,
) -> Result:
    """Answer a batch as ``target_model.generate(**inputs, ...)`` would, in fewer target forwards.

    Args:
        target_model: an unmodified transformers vision-language model.
        inputs: what its processor returned, padded on either side.
        draft: a smaller model of the same tokenizer, or None for plain decoding.
        draft_inputs: what the draft's processor returned for the same prompt; `inputs` if None.
        method: a method, its name, or a dict of its options; by default speculative if there is a draft.
        seed: of the sampling noise; None draws one from torch's global generator.
        do_sample: draw tokens instead of taking the best.
        options: everything else that `generate` takes: `max_new_tokens`, `temperature`, `top_k`, `top_p`, `min_p`,
            `repetition_penalty`, `eos_token_id`, `logits_processor`, `stopping_criteria`, `generation_config`, ...

    Raises:
        ConfigError, InputError, UnsupportedModelError, IncompatiblePairError: before any token is made.
    """
    clock = Clock(Stats())
    session = open_session(
        target_model, inputs, draft, draft_inputs, method, seed, clock, do_sample=do_sample, **options
    )
    for _ in decode(session):
        pass
    return finish(session)


def stream(
    target_model: Any,
    inputs: Mapping[str, Any],
    *,
    draft: Any = None,
    draft_inputs: Mapping[str, Any] | None = None,
    method: MethodLike = None,
    seed: int | None = None,
    do_sample: bool = False,
    **options: Any,
) -> Iterator[Chunk]:
    """The same as `generate`, token ids as they come; a consumer may stop at any time."""
    clock = Clock(Stats())
    session = open_session(
        target_model, inputs, draft, draft_inputs, method, seed, clock, do_sample=do_sample, **options
    )
    yield from decode(session)


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
    return Session(target, prepared, drafter, sampling_rule(prepared, chosen, seed), clock)


def sampling_rule(prepared: Prepared, method: Method, seed: int | None) -> SamplingRule:
    """How this call chooses tokens.

    Raises:
        ConfigError: a logits processor cannot be asked about guesses.
    """
    check_processors(prepared.processors, prepared.input_ids.shape[0])
    do_sample = bool(prepared.config.do_sample)
    if seed is None:
        seed = int(torch.randint(2**62, ())) if do_sample else 0
    return SamplingRule(prepared.processors, do_sample, method.sampling_rule, seed)


def finish(session: Session) -> Result:
    """The result of a session that has ended."""
    rows = session.rows
    approximate = approximations(session)
    return Result(rows.tokens, rows.from_draft, session.stats, not approximate, approximate)


def approximations(session: Session) -> tuple[str, ...]:
    """What on the target's side is not exact, by name.

    Below float32, checking several tokens at once is another matrix product than checking one, so near-ties may fall
    otherwise; `draftlens verify` measures whether they did.
    """
    dtype = session.target.dtype
    if len(session.drafter.topology) and dtype not in (torch.float32, torch.float64):
        return (f"near-ties in {str(dtype).removeprefix('torch.')}",)
    return ()


class SpeculativeGenerate:
    """Our loop behind the caller's own ``model.generate(**inputs, custom_generate=SpeculativeGenerate(draft, ...))``.

    GenerationConfig, logits processors, stopping criteria and a streamer are honoured, and the return value is the
    one of `generate`. The result with its statistics is kept in `last`.

    Args:
        draft: the draft model.
        draft_inputs: the draft's own inputs. Needed whenever the prompt has images or video: by the time we are
            called, `generate` has replaced pixels by the target's encoded features.
        method: as in `draftlens.generate`.
        seed: as in `draftlens.generate`.
    """

    def __init__(
        self, draft: Any, draft_inputs: Mapping[str, Any] | None = None, method: MethodLike = None, seed: int | None = None
    ) -> None:
        self.draft = Backbone.of(draft) if draft is not None else None
        self.draft_inputs, self.seed = draft_inputs, seed
        self.method = resolve(method, draft is not None)
        self.last: Result | None = None

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Decode what stock `generate` prepared; called by it."""
        prepared = capture_call(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
        target = Backbone.of(model)
        drafter = self.method.drafter(target, self.draft, self._inputs(prepared))
        session = Session(target, prepared, drafter, sampling_rule(prepared, self.method, self.seed), Clock(Stats()))
        streamer = _callers_streamer()
        for chunk in decode(session):
            if streamer is not None:
                streamer.put(torch.tensor(chunk.tokens))
        if streamer is not None:
            streamer.end()
        self.last = finish(session)
        sequences = _sequences(prepared, self.last.tokens)
        if not generation_config.return_dict_in_generate:
            return sequences
        if generation_config.output_scores or generation_config.output_logits or generation_config.output_attentions:
            raise ConfigError("scores, logits and attentions are not returned by speculative decoding")
        return GenerateDecoderOnlyOutput(sequences=sequences)

    def _inputs(self, prepared: Prepared) -> Mapping[str, Any]:
        if self.draft_inputs is not None or self.draft is None:
            return self.draft_inputs or {}
        if prepared.model_kwargs.get("mm_encoder_outputs"):
            raise ConfigError("generate has already encoded the images: give SpeculativeGenerate the draft_inputs")
        kept = {k: v for k, v in prepared.model_kwargs.items() if isinstance(v, Tensor) and k != "position_ids"}
        return {"input_ids": prepared.input_ids, **kept}


def _sequences(prepared: Prepared, tokens: list[list[int]]) -> Tensor:
    """Prompt and answers as `generate` returns them, int64 ``[B, L + longest]``, padded behind."""
    pad = prepared.config._pad_token_tensor
    longest = max(map(len, tokens))
    rows = [row + [int(pad) if pad is not None else 0] * (longest - len(row)) for row in tokens]
    return torch.cat([prepared.input_ids, torch.tensor(rows, device=prepared.input_ids.device)], dim=1)


def _callers_streamer() -> Any:
    """The streamer that the user gave to `generate`.

    `generate` keeps it to itself when `custom_generate` is a callable (transformers 5.23), and a streamer that is
    never ended leaves its reader waiting for ever. So it is taken from the call that we are inside of.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "generate" and "custom_generate" in frame.f_locals:
            return frame.f_locals.get("streamer")
        frame = frame.f_back
    return None


def text_of(chunks: Iterator[Chunk], decode_ids: Callable[[list[int]], str]) -> Iterator[Chunk]:
    """The same chunks with `text` filled in.

    Text is held back while it ends inside a character: bytes of one may come in different tokens.
    """
    held: dict[int, list[int]] = {}
    told: dict[int, int] = {}
    for chunk in chunks:
        ids = held.setdefault(chunk.row, [])
        ids.extend(chunk.tokens)
        text = decode_ids(ids)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield chunk
            continue
        begin = told.get(chunk.row, 0)
        told[chunk.row] = len(text)
        yield Chunk(chunk.tokens, chunk.from_draft, text[begin:], chunk.row)
