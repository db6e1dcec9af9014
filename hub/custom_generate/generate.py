"""Speculative decoding by draftlens for ``model.generate(..., custom_generate=REPOSITORY)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from draftlens import ConfigError, SpeculativeGenerate

NOT_READ_BY_MODELS = ("inputs", "negative_prompt_ids", "negative_prompt_attention_mask")
"""Tensors among the arguments of `generate` that are no inputs of a model."""


def generate(
    model: Any,
    *,
    draft: Any = None,
    draft_inputs: Mapping[str, Any] | None = None,
    method: Any = None,
    seed: int | list[int] | None = None,
    references: Any = None,
    prefill: Any = None,
    compile: bool | str = False,
    allow_long_prompt: bool = False,
    results: list[Any] | None = None,
    assistant_model: Any = None,
    tokenizer: Any = None,
    **kwargs: Any,
) -> Any:
    """Generate with the tokens of stock `generate`.

    Args:
        model: the target; `generate` gives it.
        draft: the draft model, a smaller model with the same tokenizer; None for methods that need
            none. `assistant_model`, as in the assisted generation of transformers, is the same.
        draft_inputs: what the draft reads; by default what the target reads.
        method: a name or a dictionary of `draftlens.from_dict`, such as `lookup`; by default
            `mixed` with a draft and `lookup` without one.
        seed: of sampled answers; a list has one for each row.
        references: texts or tokens that the answers are expected to repeat.
        prefill: how the target reads the prompt.
        compile: what computes decode forwards.
        allow_long_prompt: whether a prompt beyond the positions of the target is answered.
        results: a list to which the `draftlens.Result` of the call is appended.
        assistant_model: see `draft`.
        tokenizer: of the target, for `stop_strings`, references that are texts, and the texts of
            the result.
        kwargs: all other arguments of `generate`.

    Returns:
        What `generate` returns: int64 ``[B, L + longest answer]``, or with
        `return_dict_in_generate` a `GenerateDecoderOnlyOutput` with `sequences`.

    Raises:
        draftlens.ConfigError: an argument is wrong, or `draft` and `assistant_model` are given.
        draftlens.IncompatiblePairError: the draft cannot draft for the target.
        draftlens.InputError: the prompt cannot be answered.
    """
    if draft is not None and assistant_model is not None:
        raise ConfigError("draft and assistant_model are the same argument: give one of them")
    draft = draft if draft is not None else assistant_model
    if draft is not None and draft_inputs is None:
        draft_inputs = _model_inputs(kwargs)
    custom = SpeculativeGenerate(
        draft,
        draft_inputs,
        method,
        seed,
        references,
        tokenizer,
        prefill,
        compile,
        allow_long_prompt,
    )
    output = model.generate(**kwargs, custom_generate=custom)
    if results is not None:
        results.append(custom.last)
    return output


def _model_inputs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors among the arguments of `generate`, which the processor has made."""
    read = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, Tensor) and name not in NOT_READ_BY_MODELS
    }
    if "input_ids" not in read and isinstance(arguments.get("inputs"), Tensor):
        read["input_ids"] = arguments["inputs"]
    return read
