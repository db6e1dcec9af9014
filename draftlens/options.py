"""The options of answers: names, types, allowed values and defaults, for every entry point.

Those of `generate` are as in transformers, except for values that are never intended (a length of
infinity, an empty stop string), which are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from inspect import signature
from types import MappingProxyType
from typing import Annotated, Any, SupportsIndex, TypedDict, get_type_hints

from transformers import StopStringCriteria

from draftlens.core.errors import ConfigError
from draftlens.core.options import (
    Check,
    as_real,
    as_whole,
    real,
    shown,
    suggestion,
    switch,
    whole,
    wrong,
)
from draftlens.core.references import GivenReferences
from draftlens.core.text import tokenizer_of
from draftlens.media import Limits
from draftlens.methods.base import MethodLike
from draftlens.models.support import CACHE_ARGUMENTS
from draftlens.passes import Compile

NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
"""Options of `generate` that request outputs which speculative decoding does not have."""


def texts(name: str, value: Any) -> Any:
    """Accepts a text that is not empty, or a list of such texts."""
    items = [value] if isinstance(value, str) else value
    is_list = isinstance(items, (Sequence, Set)) and not isinstance(items, bytes)
    if not is_list or not items or not all(isinstance(item, str) and item for item in items):
        raise wrong(name, value, "a text or a list of texts, none of them empty")
    return value if isinstance(value, str) else list(items)


def token_ids(name: str, value: Any) -> Any:
    """Accepts a token id, or a list, array or tensor of them."""
    if any(as_whole(item) is None for item in _flat_ids(value)):
        raise wrong(name, value, "a token id or a list of token ids")
    return value


def token_id(name: str, value: Any) -> Any:
    """Accepts one token id, also as an array or tensor of one."""
    ids = _flat_ids(value)
    if isinstance(value, (list, tuple)) or len(ids) != 1 or as_whole(ids[0]) is None:
        raise wrong(name, value, "a token id")
    return value


def list_of_token_ids(name: str, value: Any) -> Any:
    if as_whole(value) is not None or any(as_whole(item) is None for item in _flat_ids(value)):
        raise wrong(name, value, "a list of token ids")
    return value


def bad_words(name: str, value: Any) -> Any:
    """Accepts a list of lists of token ids, at least one."""
    words = value if isinstance(value, (list, tuple)) else []
    if not words or not all(map(_is_word, words)):
        raise wrong(name, value, "a list of lists of token ids, at least one")
    return value


def _is_word(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(as_whole(token) is not None for token in value)


def biases(name: str, value: Any) -> Any:
    """Accepts token ids with the number that is added to the last one's score."""
    allowed = "a mapping of tuples of token ids to numbers, or a list of such pairs, at least one"
    if not isinstance(value, (Mapping, list, tuple)) or not value:
        raise wrong(name, value, allowed)
    pairs = list(value.items() if isinstance(value, Mapping) else value)
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise wrong(name, value, allowed)
        if not pair[0] or not _is_word(pair[0]) or as_real(pair[1]) is None:
            raise wrong(name, value, allowed)
    return value


def decay(name: str, value: Any) -> Any:
    """Accepts the token at which a penalty begins, and its factor."""
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    if not is_pair or as_whole(value[0]) is None:
        raise wrong(name, value, "a pair of the first token that counts and a factor")
    real()(name, value[1])
    return value


def function(name: str, value: Any) -> Any:
    if not callable(value):
        raise wrong(name, value, "a callable")
    return value


def functions(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not all(map(callable, value)):
        raise wrong(name, value, "a list of callables")
    return value


def streamer(name: str, value: Any) -> Any:
    if not callable(getattr(value, "put", None)) or not callable(getattr(value, "end", None)):
        raise wrong(name, value, "an object with the methods put and end")
    return value


def generation_config(name: str, value: Any) -> Any:
    """Accepts a `GenerationConfig` with allowed values."""
    from transformers import GenerationConfig

    if not isinstance(value, GenerationConfig):
        raise wrong(name, value, "a GenerationConfig of transformers")
    check_config(value)
    return value


def one(name: str, value: Any) -> int:
    """Accepts 1: one answer, and one beam."""
    if as_whole(value) != 1:
        raise ConfigError(
            "only greedy decoding and sampling of one answer work: num_beams and "
            f"num_return_sequences must be 1, and {name} is {shown(value)}"
        )
    return 1


def tokenizer(name: str, value: Any) -> Any:
    """Accepts a tokenizer, or a processor that holds it."""
    decode = getattr(tokenizer_of(value), "decode", None)
    if not callable(decode) or isinstance(value, bytes | bytearray):
        raise wrong(name, value, "a tokenizer, or a processor that holds it")
    return value


def not_returned(name: str, value: Any) -> Any:
    """Accepts false-like values."""
    if value:
        raise ConfigError(
            f"{name} must be left out: speculative decoding does not return what {name} would add"
        )
    return value


class GenerateOptions(TypedDict, total=False):
    """Options of transformers' `generate` that work here, with the same meaning, and
    `allow_long_prompt`: whether a prompt of more positions than the target was made for is
    answered, as in transformers, instead of refused.

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


def _flat_ids(value: Any) -> list[Any]:
    value = getattr(value, "tolist", lambda: value)()
    return list(value) if isinstance(value, (list, tuple, Set, range)) else [value]


_KNOWN_IDS: Mapping[str, Callable[[Any], list[Any]]] = MappingProxyType(
    {
        "bad_words_ids": _ids_of_words,
        "sequence_bias": _ids_of_biases,
        "forced_bos_token_id": _flat_ids,
        "forced_eos_token_id": _flat_ids,
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

SYNONYMS = (
    ("image", "images"),
    ("picture", "images"),
    ("pictures", "images"),
    ("videos", "video"),
    ("clip", "video"),
    ("chat", "messages"),
    ("question", "prompt"),
    ("text", "prompt"),
    ("frames", "num_frames"),
    ("nframes", "num_frames"),
    ("max_tokens", "max_new_tokens"),
    ("max_completion_tokens", "max_new_tokens"),
    ("max_output_tokens", "max_new_tokens"),
    ("min_tokens", "min_new_tokens"),
    ("n", "num_return_sequences"),
    ("num_samples", "num_return_sequences"),
    ("beams", "num_beams"),
    ("beam_size", "num_beams"),
    ("sample", "do_sample"),
    ("sampling", "do_sample"),
    ("temp", "temperature"),
    ("timeout", "max_time"),
    ("stop_sequences", "stop"),
    ("stop_words", "stop"),
    ("stop", "stop_strings"),
    ("stop_token_ids", "eos_token_id"),
    ("random_seed", "seed"),
    ("draft_model", "draft"),
)
"""Names in other libraries, and the names here."""

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
