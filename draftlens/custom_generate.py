"""The loop behind a caller's own `model.generate(..., custom_generate=...)`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftlens.call import MethodLike, check_rows, finish, sampling_rule, streamed
from draftlens.core.errors import ConfigError
from draftlens.core.result import Result
from draftlens.core.stats import Clock, Stats
from draftlens.decode.serial import decode
from draftlens.decode.session import Session
from draftlens.methods import resolve
from draftlens.models.backbone import Backbone
from draftlens.models.prompt import Prepared, capture_call

NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


class SpeculativeGenerate:
    """Our loop behind the caller's own ``model.generate(**inputs,
    custom_generate=SpeculativeGenerate(draft, ...))``.

    GenerationConfig, logits processors, stopping criteria and a streamer are honoured, and the
    return value is the one of `generate`. The result with its statistics is kept in `last`. Stop
    strings go into `stopping_criteria` as a `StopStringCriteria`: under a callable
    `custom_generate`, `generate` loses the tokenizer that `stop_strings` need.

    Args:
        draft: the draft model.
        draft_inputs: the draft's own inputs. Needed whenever the prompt has images or video: by the
            time we are called, `generate` has replaced pixels by the target's encoded features.
        method: as in `draftlens.generate`.
        seed: as in `draftlens.generate`.
    """

    def __init__(
        self,
        draft: Any,
        draft_inputs: Mapping[str, Any] | None = None,
        method: MethodLike = None,
        seed: int | None = None,
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
        asked = [name for name in NOT_RETURNED if getattr(generation_config, name, False)]
        if generation_config.return_dict_in_generate and asked:
            raise ConfigError(
                f"speculative decoding does not return what {', '.join(asked)} would add"
            )
        prepared = capture_call(
            model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs
        )
        target = Backbone.of(model)
        drafter = self.method.drafter(target, self.draft, self._inputs(prepared))
        session = Session(
            target,
            prepared,
            drafter,
            sampling_rule(prepared, self.method, self.seed),
            Clock(Stats()),
        )
        streamer = _callers_streamer()
        for _ in decode(session) if streamer is None else streamed(decode(session), streamer):
            pass
        self.last = finish(session)
        sequences = _sequences(prepared, self.last.tokens)
        return (
            GenerateDecoderOnlyOutput(sequences=sequences)
            if generation_config.return_dict_in_generate
            else sequences
        )

    def _inputs(self, prepared: Prepared) -> Mapping[str, Any]:
        if self.draft is None:
            return {}
        if self.draft_inputs is not None:
            check_rows(prepared, self.draft_inputs)
            return self.draft_inputs
        if prepared.model_kwargs.get("mm_encoder_outputs"):
            raise ConfigError(
                "generate has already encoded the images: give SpeculativeGenerate the draft_inputs"
            )
        kept = {
            k: v
            for k, v in prepared.model_kwargs.items()
            if isinstance(v, Tensor) and k != "position_ids"
        }
        return {"input_ids": prepared.input_ids, **kept}


def _sequences(prepared: Prepared, tokens: list[list[int]]) -> Tensor:
    """Prompt and answers as `generate` returns them, int64 ``[B, L + longest]``, padded behind."""
    pad = prepared.config._pad_token_tensor
    longest = max(map(len, tokens))
    rows = [row + [int(pad) if pad is not None else 0] * (longest - len(row)) for row in tokens]
    return torch.cat(
        [prepared.input_ids, torch.tensor(rows, device=prepared.input_ids.device)], dim=1
    )


def _callers_streamer() -> Any:
    """The streamer that the user gave to `generate`.

    `generate` keeps it to itself when `custom_generate` is a callable (transformers 5.23), and a
    streamer that is never ended leaves its reader waiting for ever. So it is taken from the call
    that we are inside of.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "generate" and "custom_generate" in frame.f_locals:
            return frame.f_locals.get("streamer")
        frame = frame.f_back
    return None
