"""The decoding loop for ``model.generate(..., custom_generate=...)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftlens.core.errors import ConfigError, InputError
from draftlens.core.option_values import tokenizer as check_tokenizer
from draftlens.core.options import switch
from draftlens.core.references import GivenReferences
from draftlens.core.result import Result
from draftlens.core.stats import Clock, Stats
from draftlens.core.text import tokenizer_of
from draftlens.hf_generate.frame import callers_arguments
from draftlens.methods.base import MethodLike, plan_of, resolve, with_prefill
from draftlens.models.adapter import Backbone
from draftlens.models.checks import LONG_PROMPT, check_tokens, is_blind
from draftlens.models.prompt import Prepared, capture_call, with_checked_mask
from draftlens.models.support import PAST_REFUSAL
from draftlens.options import Seed, check_config
from draftlens.passes import Compile, check_compile
from draftlens.request import Request, models_of, open_prepared
from draftlens.streaming import result_of, texts_of, with_streamer


class SpeculativeGenerate:
    """The decoding loop for ``model.generate(**inputs, custom_generate=SpeculativeGenerate(...))``.

    GenerationConfig, logits processors, stopping criteria and a streamer are honoured, and the
    return value is that of `generate`. The result with its statistics is kept in `last`.
    `stop_strings` need the `tokenizer` here, because `generate` does not pass its own to a callable
    `custom_generate`. For the same reason `generate` refuses stop strings of a generation config
    before it calls anything: give them as `stop_strings`.

    Args:
        draft: the draft model; None for methods that need none, such as `lookup`.
        draft_inputs: the draft's own inputs. A draft model that takes images or video needs them
            whenever the prompt has any: before the callable runs, `generate` has replaced pixels by
            the target's encoded features. Further views of the prompt as for `draftlens.generate`;
            where the target drafts for itself, only these views are read.
        method, seed, references, prefill, compile: as for `draftlens.generate`.
        tokenizer: of the target, for references that are texts, for `stop_strings`, and for the
            texts of `last`.
        allow_long_prompt: whether a prompt of more positions than the target was made for is
            answered all the same.

    Example:

        >>> import draftlens
        >>> engine = draftlens.load(device="cpu")
        >>> inputs = engine.read("Hello", images=[]).target
        >>> model, draft = engine.target.backbone.model, engine.draft.backbone.model
        >>> custom = draftlens.SpeculativeGenerate(draft, draft_inputs=inputs)
        >>> ids = model.generate(**inputs, max_new_tokens=8, custom_generate=custom)
        >>> custom.last.lossless
        True
    """

    def __init__(
        self,
        draft: Any = None,
        draft_inputs: Mapping[str, Any] | None = None,
        method: MethodLike = None,
        seed: Seed = None,
        references: GivenReferences | None = None,
        tokenizer: Any = None,
        prefill: Any = None,
        compile: Compile = False,
        allow_long_prompt: bool = False,
    ) -> None:
        check_compile(compile)
        if draft_inputs is not None:
            check_tokens("draft_inputs", draft_inputs)
        if tokenizer is not None:
            check_tokenizer("tokenizer", tokenizer)
        self.draft = Backbone.of(draft) if draft is not None else None
        self.draft_inputs = draft_inputs
        self.seed = seed
        self.references = references
        self.tokenizer = tokenizer
        self.compile = compile
        self.allow_long_prompt = switch(LONG_PROMPT, allow_long_prompt)
        self.method = with_prefill(resolve(method), prefill)
        self.last: Result | None = None

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        stop_strings: str | list[str] | None = None,
        **kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Decode what stock `generate` prepared; called by it.

        `stop_strings` is a parameter here so that `generate` passes it on, without looking for the
        tokenizer that it needs.

        Raises:
            ConfigError: a requested output or strategy that speculative decoding does not have, or
                `stop_strings` without a tokenizer.
            InputError: the cache of an earlier turn is given, a row has no tokens, or a row is
                padded on the right.
        """
        check_config(generation_config)
        arguments = callers_arguments()
        if arguments.cache is not None:
            raise InputError(PAST_REFUSAL)
        kwargs = with_checked_mask(kwargs)
        _check_padding(kwargs)
        criteria = [*stopping_criteria, *self._stop_criteria(stop_strings)]
        prepared = capture_call(
            model, input_ids, logits_processor, criteria, generation_config, **kwargs
        )
        models = models_of(model, self.draft, self.compile)
        plan = plan_of(self.method, models)
        prepared = replace(prepared, notes=models.target.notes)
        plan.prefill.prepare(models.target, {"input_ids": input_ids})
        reads_words = models.draft is not None and is_blind(models.target, models.draft)
        if plan.uses_draft and self.draft_inputs is None and not reads_words:
            _check_pixels(prepared)
        request = Request(
            inputs=_own_inputs(prepared),
            draft_inputs=self.draft_inputs,
            method=self.method,
            seed=self.seed,
            options={LONG_PROMPT: self.allow_long_prompt, "tokenizer": self.tokenizer},
            extras={"references": self.references},
        )
        call = open_prepared(models, plan, prepared, request, Clock(Stats()))
        chunks = plan.schedule(call.session)
        if arguments.streamer is not None:
            chunks = with_streamer(chunks, arguments.streamer)
        for _ in chunks:
            pass
        self.last = result_of(call, texts_of(call, self.tokenizer))
        sequences = _sequences(prepared, self.last.tokens)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)
        return sequences

    def _stop_criteria(self, stop_strings: str | list[str] | None) -> list[StopStringCriteria]:
        if stop_strings is None:
            return []
        if self.tokenizer is None:
            raise ConfigError(
                "stop_strings need the model's tokenizer, which generate does not hand on: give it "
                "as SpeculativeGenerate(..., tokenizer=tokenizer)"
            )
        return [StopStringCriteria(tokenizer_of(self.tokenizer), stop_strings)]


def _own_inputs(prepared: Prepared) -> dict[str, Any]:
    """The target's inputs, except those that `generate` has replaced by encoded features."""
    tensors = {
        key: value
        for key, value in prepared.model_kwargs.items()
        if isinstance(value, Tensor) and key != "position_ids"
    }
    return {"input_ids": prepared.input_ids, **tensors}


def _check_pixels(prepared: Prepared) -> None:
    """Refuse pictures that a draft model cannot read from the target's inputs."""
    if prepared.model_kwargs.get("mm_encoder_outputs"):
        raise ConfigError(
            "generate has already encoded the images: give SpeculativeGenerate the draft_inputs"
        )


def _check_padding(kwargs: Mapping[str, Any]) -> None:
    """Refuse padding on the right, after which stock `generate` would continue."""
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool((mask[:, -1] != 0).all()):
        raise InputError(
            "generate needs padding on the left: set padding_side='left', or use "
            "draftlens.generate, which takes both"
        )


def _sequences(prepared: Prepared, tokens: list[list[int]]) -> Tensor:
    """Prompt and answers as `generate` returns them, int64 ``[B, L + longest]``."""
    longest = max(map(len, tokens))
    rows = [row + [prepared.pad_token_id] * (longest - len(row)) for row in tokens]
    answers = torch.tensor(rows, device=prepared.input_ids.device)
    return torch.cat([prepared.input_ids, answers], dim=1)
