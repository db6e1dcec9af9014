"""The options of answers: names, types, allowed values and defaults, for every entry point.

Those of `generate` are as in transformers, except for values that are never intended (a length of
infinity, an empty stop string), which are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from types import MappingProxyType
from typing import Annotated, Any, SupportsIndex, TypedDict, get_type_hints

from transformers import StopStringCriteria

from draftlens.core.errors import ConfigError
from draftlens.core.logprobs import MOST_TOP, kind_of_logprobs
from draftlens.core.names import SYNONYMS
from draftlens.core.option_values import (
    bad_words,
    biases,
    decay,
    flat_ids,
    form,
    function,
    list_of_token_ids,
    one,
    streamer,
    texts,
    token_id,
    token_ids,
    tokenizer,
)
from draftlens.core.options import (
    Check,
    real,
    shown,
    suggestion,
    switch,
    whole,
    wrong,
)
from draftlens.core.references import GivenReferences
from draftlens.media import Limits
from draftlens.methods.base import MethodLike
from draftlens.models.support import CACHE_ARGUMENTS
from draftlens.passes import Compile

NOT_OF_STOCK = ("allow_long_prompt", "form", "logprobs", "top_logprobs")
"""Options of answers that `generate` of transformers does not have."""

NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
"""Options of `generate` that request outputs which speculative decoding does not have."""


def functions(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not all(map(callable, value)):
        raise wrong(name, value, "a list of callables")
    return value


def generation_config(name: str, value: Any) -> Any:
    """Accepts a `GenerationConfig` with allowed values."""
    from transformers import GenerationConfig

    if not isinstance(value, GenerationConfig):
        raise wrong(name, value, "a GenerationConfig of transformers")
    check_config(value)
    return value


def not_returned(name: str, value: Any) -> Any:
    """Accepts false-like values."""
    if value:
        other = "; logprobs=True returns log probabilities" if name in NOT_RETURNED[:2] else ""
        raise ConfigError(
            f"{name} must be left out: speculative decoding does not return what {name} would add"
            f"{other}"
        )
    return value


class GenerateOptions(TypedDict, total=False):
    """Options of transformers' `generate` that work here, with the same meaning, and those of
    `NOT_OF_STOCK`:

    - `form`: what the answers look like, a JSON schema, a pydantic model or a `Form`; it needs the
      tokenizer, which an engine has.
    - `allow_long_prompt`: whether a prompt of more positions than the target was made for is
      answered, as in transformers, instead of refused.
    - `logprobs`: whether the log probability of each token is returned, and how it is computed:
      from the target's logits (`True` or `"raw"`; `output_logits` of transformers), or from the
      scores after temperature and all other processors (`"processed"`; `output_scores`).
    - `top_logprobs`: how many of the likeliest tokens are returned in each place, too.

    Arguments of the model's forward belong into the inputs.
    """

    generation_config: Annotated[Any, generation_config]
    max_new_tokens: Annotated[int | None, whole(1)]
    max_length: Annotated[int | None, whole(1)]
    min_new_tokens: Annotated[int | None, whole()]
    min_length: Annotated[int | None, whole()]
    do_sample: Annotated[bool, switch]
    temperature: Annotated[float | None, real(0)]
    top_k: Annotated[int | None, whole(0)]
    top_p: Annotated[float | None, real(0, 1)]
    min_p: Annotated[float | None, real(0, 1)]
    top_h: Annotated[float | None, real(0, 1, above=True)]
    typical_p: Annotated[float | None, real(0, 1, above=True)]
    epsilon_cutoff: Annotated[float | None, real(0, 1)]
    eta_cutoff: Annotated[float | None, real(0, 1)]
    repetition_penalty: Annotated[float | None, real(0, above=True)]
    encoder_repetition_penalty: Annotated[float | None, real(0, above=True)]
    no_repeat_ngram_size: Annotated[int | None, whole()]
    encoder_no_repeat_ngram_size: Annotated[int | None, whole()]
    length_penalty: Annotated[float | None, real()]
    bad_words_ids: Annotated[list[list[int]] | None, bad_words]
    sequence_bias: Annotated[Any, biases]
    suppress_tokens: Annotated[list[int] | None, list_of_token_ids]
    begin_suppress_tokens: Annotated[list[int] | None, list_of_token_ids]
    forced_bos_token_id: Annotated[int | None, token_id]
    forced_eos_token_id: Annotated[int | list[int] | None, token_ids]
    exponential_decay_length_penalty: Annotated[tuple[int, float] | None, decay]
    remove_invalid_values: Annotated[bool | None, switch]
    renormalize_logits: Annotated[bool | None, switch]
    form: Annotated[Any, form]
    prefix_allowed_tokens_fn: Annotated[Callable[..., list[int]] | None, function]
    logits_processor: Annotated[Any, functions]
    stopping_criteria: Annotated[Any, functions]
    stop_strings: Annotated[str | list[str] | None, texts]
    max_time: Annotated[float | None, real(0, endless=True)]
    tokenizer: Annotated[Any, tokenizer]
    streamer: Annotated[Any, streamer]
    eos_token_id: Annotated[int | list[int] | None, token_ids]
    pad_token_id: Annotated[int | None, token_id]
    bos_token_id: Annotated[int | None, token_id]
    num_beams: Annotated[int, one]
    num_return_sequences: Annotated[int, one]
    use_cache: Annotated[bool, switch]
    allow_long_prompt: Annotated[bool, switch]
    logprobs: Annotated[bool | str | None, kind_of_logprobs]
    top_logprobs: Annotated[int | None, whole(0, MOST_TOP)]


OPTIONS: Mapping[str, Check] = MappingProxyType(
    {
        **{
            name: hint.__metadata__[0]
            for name, hint in get_type_hints(GenerateOptions, include_extras=True).items()
        },
        **dict.fromkeys((*NOT_RETURNED, "return_dict_in_generate"), not_returned),
    }
)
"""The options of `generate` and what is allowed. None means the default of each."""

ONLY_OPTIONS = ("generation_config", "return_dict_in_generate", *NOT_RETURNED)
"""Names of `OPTIONS` that are only checked among the options themselves."""


def check_config(config: Any) -> None:
    """Raise ConfigError, which names the field, for a `GenerationConfig` with an invalid value."""
    for name, check in OPTIONS.items():
        value = getattr(config, name, None)
        if value is not None and name not in ONLY_OPTIONS:
            check(name, value)
    check_temperature(config.temperature, config.do_sample)
    if config.return_dict_in_generate:
        for name in NOT_RETURNED:
            not_returned(name, getattr(config, name, False))


def check_for_model(options: Mapping[str, Any], vocab_size: int, defaults: Any) -> None:
    """Raise ConfigError, which names the option, for token ids that the model does not have where
    transformers fails on them later, and for a penalty on the length of answers without an end.

    `options` are checked before; `defaults` is the model's generation config.
    """
    configs = (options.get("generation_config"), defaults)
    ends = [options.get("eos_token_id"), *(getattr(each, "eos_token_id", None) for each in configs)]
    decay_name = "exponential_decay_length_penalty"
    if options.get(decay_name) is not None and all(end is None for end in ends):
        raise ConfigError(f"{decay_name} must be left out of answers without an eos_token_id")
    for name, ids_of in _KNOWN_IDS.items():
        value = options.get(name)
        if value is None:
            value = getattr(options.get("generation_config"), name, None)
        for token in [] if value is None else ids_of(value):
            if not 0 <= int(token) < vocab_size:
                raise ConfigError(
                    f"{name} must be made of the model's token ids, 0 to {vocab_size - 1}, and "
                    f"holds {int(token)}"
                )


def _ids_of_words(words: Any) -> list[Any]:
    return [token for word in words for token in word]


def _ids_of_biases(biased: Any) -> list[Any]:
    words = biased if isinstance(biased, Mapping) else [pair[0] for pair in biased]
    return _ids_of_words(words)


_KNOWN_IDS: Mapping[str, Callable[[Any], list[Any]]] = MappingProxyType(
    {
        "bad_words_ids": _ids_of_words,
        "sequence_bias": _ids_of_biases,
        "forced_bos_token_id": flat_ids,
        "forced_eos_token_id": flat_ids,
    }
)
"""Options with ids that must be the model's, and how to extract them."""


def check_temperature(temperature: Any, samples: Any) -> None:
    """Raise ConfigError for a temperature of 0 with sampling."""
    if samples and temperature == 0:
        raise ConfigError(
            "temperature must be a number above 0 with do_sample=True, not "
            f"{shown(temperature)}: greedy decoding is do_sample=False"
        )


NOT_OPTIONS = ("self", "inputs", "kwargs", "custom_generate")
"""Arguments of transformers' `generate` that this library sets itself."""

OF_METHODS = (
    "num_speculative_tokens",
    "tree",
    "sampling_rule",
    "pruner",
    "prune_ratio",
    "schedule",
)
"""Options of methods, which are often passed next to the method instead of in it."""


def names_beside_options(kind: Any) -> tuple[str, ...]:
    """The names of a `TypedDict` of arguments that are no options of `generate`."""
    return tuple(
        name for name in kind.__annotations__ if name not in GenerateOptions.__annotations__
    )


class CheckedOptions(dict[str, Any]):
    """Options of `generate` that are checked already: `checked_options` returns them as they
    are."""


def checked_options(
    options: Mapping[str, Any], further: Iterable[str] = (), inputs: Iterable[str] = ()
) -> CheckedOptions:
    """The options of `generate`, numbers of numpy and torch as those of Python.

    `further` are names of other arguments, for the message about an unknown name; `inputs` are
    names in the processor's output. Raises ConfigError for an unknown name or a value that is not
    allowed.
    """
    if isinstance(options, CheckedOptions):
        return options
    checked = CheckedOptions(options)
    for name, value in options.items():
        check = OPTIONS.get(name)
        if check is None:
            _check_name(name, [*OPTIONS, *further], inputs)
        elif value is not None:
            checked[name] = check(name, value)
    config = checked.get("generation_config")
    samples = checked.get("do_sample", getattr(config, "do_sample", False))
    check_temperature(checked.get("temperature"), samples)
    if checked.get("top_logprobs") and not checked.get("logprobs"):
        raise ConfigError("top_logprobs need logprobs=True")
    return checked


def _check_name(name: str, known: Sequence[str], inputs: Iterable[str]) -> None:
    """Refuse the name of an option that transformers does not have either."""
    if name in inputs:
        raise ConfigError(f"{name} is given as an option, and the inputs hold it already")
    if name in CACHE_ARGUMENTS or name in _names_of_transformers():
        return
    if name in OF_METHODS:
        raise ConfigError(
            f"there is no option {name!r} beside the method: give it with the method, such as "
            f"method={{'method': 'speculative', {name!r}: ...}}"
        )
    meant = suggestion(name, known, SYNONYMS)
    raise ConfigError(
        f"there is no option {name!r}{meant or '; arguments of the model belong into the inputs'}"
    )


def _names_of_transformers() -> set[str]:
    """The options of `generate` in the installed version of transformers."""
    from transformers import GenerationConfig, GenerationMixin

    names = {*signature(GenerationMixin.generate).parameters, *vars(GenerationConfig())}
    return {name for name in names if not name.startswith("_")} - {*NOT_OPTIONS}


Seed = SupportsIndex | Sequence[SupportsIndex] | None
"""A seed for all rows of a call, one for each row, or None to draw one."""


class CallOptions(GenerateOptions, total=False):
    draft: Any
    draft_inputs: Mapping[str, Any] | None
    method: MethodLike
    seed: Seed
    references: GivenReferences | None
    prefill: Any
    compile: Compile


MAX_NEW_TOKENS = 256
"""Default length of an engine's answers, in tokens."""


class MediaOptions(TypedDict, total=False):
    """The media of a prompt (`Engine.stream`)."""

    video: Any
    images: Any
    messages: Sequence[Any] | None
    num_frames: int
    limits: Limits | None


class EngineOptions(GenerateOptions, total=False):
    """How an engine answers (`Engine.stream`)."""

    method: MethodLike
    seed: Seed
    references: GivenReferences | None
    stop: str | Sequence[str] | None
    prefill: Any


class PromptOptions(MediaOptions, EngineOptions, total=False):
    """All arguments of `Engine.stream` except the prompt."""


ARGUMENTS = ("prompt", *names_beside_options(PromptOptions))
"""Arguments of `Engine.stream` other than options of transformers."""


def split_options(options: Any, kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a `TypedDict` that are no options of `generate`, and the rest."""
    names = names_beside_options(kind)
    own = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    return own, rest


def completed_options(
    options: Mapping[str, Any], stop: str | Sequence[str] | None, tokenizer: Any
) -> CheckedOptions:
    """The options of `generate` with an engine's defaults: greedy, at most `MAX_NEW_TOKENS` long.

    Raises:
        ConfigError: an option is unknown or has a value that is not allowed.
    """
    completed = checked_options(options, ARGUMENTS)
    if stop is not None:
        stop = texts("stop", stop)
        strings = [stop] if isinstance(stop, str) else list(stop)
        criteria = completed.get("stopping_criteria") or []
        completed["stopping_criteria"] = [*criteria, StopStringCriteria(tokenizer, strings)]
    if completed.get("tokenizer") is None:
        completed["tokenizer"] = tokenizer
    if "generation_config" not in completed:
        completed.setdefault("do_sample", False)
        if "max_length" not in completed:
            completed.setdefault("max_new_tokens", MAX_NEW_TOKENS)
    return completed
