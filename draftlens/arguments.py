"""The arguments of a request: one table of names and allowed values, for every entry point.

`checked_options` checks the options of `generate`, `check_question` what is asked about which
media. What transformers refuses is refused here, and what it takes and answers is accepted, except
for values that no caller means (a length of infinity, an empty stop string).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from inspect import signature
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any

from draftlens.core.checks import (
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
from draftlens.core.errors import ConfigError, InputError
from draftlens.core.text import tokenizer_of
from draftlens.media import Limits
from draftlens.media.given import is_clip, is_picture
from draftlens.models.cache_argument import CACHE_ARGUMENTS
from draftlens.models.prompt_checks import LONG_PROMPT

NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
"""Options of `generate` that would add something to an answer that speculative decoding does not
have."""


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
    """Accepts a list, array or tensor of token ids."""
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
    """Accepts what can be called."""
    if not callable(value):
        raise wrong(name, value, "a callable")
    return value


def functions(name: str, value: Any) -> Any:
    """Accepts a list of what can be called."""
    if not isinstance(value, (list, tuple)) or not all(map(callable, value)):
        raise wrong(name, value, "a list of callables")
    return value


def streamer(name: str, value: Any) -> Any:
    """Accepts a streamer of transformers."""
    if not callable(getattr(value, "put", None)) or not callable(getattr(value, "end", None)):
        raise wrong(name, value, "an object with the methods put and end")
    return value


def generation_config(name: str, value: Any) -> Any:
    """Accepts a `GenerationConfig` whose values are allowed."""
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
    """Accepts what stands for false."""
    if value:
        raise ConfigError(
            f"{name} must be left out: speculative decoding does not return what {name} would add"
        )
    return value


OPTIONS: Mapping[str, Check] = MappingProxyType(
    {
        "generation_config": generation_config,
        "max_new_tokens": whole(1),
        "max_length": whole(1),
        "min_new_tokens": whole(),
        "min_length": whole(),
        "do_sample": switch,
        "temperature": real(0),
        "top_k": whole(0),
        "top_p": real(0, 1),
        "min_p": real(0, 1),
        "top_h": real(0, 1, above=True),
        "typical_p": real(0, 1, above=True),
        "epsilon_cutoff": real(0, 1),
        "eta_cutoff": real(0, 1),
        "repetition_penalty": real(0, above=True),
        "encoder_repetition_penalty": real(0, above=True),
        "no_repeat_ngram_size": whole(),
        "encoder_no_repeat_ngram_size": whole(),
        "length_penalty": real(),
        "bad_words_ids": bad_words,
        "sequence_bias": biases,
        "suppress_tokens": list_of_token_ids,
        "begin_suppress_tokens": list_of_token_ids,
        "forced_bos_token_id": token_id,
        "forced_eos_token_id": token_ids,
        "exponential_decay_length_penalty": decay,
        "remove_invalid_values": switch,
        "renormalize_logits": switch,
        "prefix_allowed_tokens_fn": function,
        "logits_processor": functions,
        "stopping_criteria": functions,
        "stop_strings": texts,
        "max_time": real(0, endless=True),
        "tokenizer": tokenizer,
        "streamer": streamer,
        "eos_token_id": token_ids,
        "pad_token_id": token_id,
        "bos_token_id": token_id,
        "num_beams": one,
        "num_return_sequences": one,
        "use_cache": switch,
        LONG_PROMPT: switch,
        **dict.fromkeys((*NOT_RETURNED, "return_dict_in_generate"), not_returned),
    }
)
"""The options of `generate` and what is allowed. None stands for the default of each."""

ONLY_OPTIONS = ("generation_config", "return_dict_in_generate", *NOT_RETURNED)
"""Names of `OPTIONS` that are checked nowhere but among the options themselves."""

NOT_OPTIONS = ("self", "inputs", "kwargs", "custom_generate")
"""Arguments of transformers' `generate` that this library gives itself."""

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
"""Names that other libraries use, and the names here."""

QUESTION = (
    "prompt",
    "video",
    "images",
    "messages",
    "num_frames",
    "limits",
    "method",
    "seed",
    "references",
    "stop",
    "prefill",
)
"""Arguments of `Engine.stream` beside the options of transformers."""

OF_METHODS = (
    "num_speculative_tokens",
    "tree",
    "sampling_rule",
    "pruner",
    "prune_ratio",
    "schedule",
)
"""Options of methods, which are often written beside the method."""


def checked_options(
    options: Mapping[str, Any], further: Iterable[str] = (), inputs: Iterable[str] = ()
) -> dict[str, Any]:
    """The options of `generate`, numbers of numpy and torch as those of Python.

    Args:
        options: as they were given.
        further: names of the arguments beside the options, for the message about an unknown name.
        inputs: names that the processor's output holds.

    Raises:
        ConfigError: a name is unknown or a value is not allowed.
    """
    checked = dict(options)
    for name, value in options.items():
        check = OPTIONS.get(name)
        if check is None:
            _check_name(name, [*OPTIONS, *further], inputs)
        elif value is not None:
            checked[name] = check(name, value)
    config = checked.get("generation_config")
    samples = checked.get("do_sample", getattr(config, "do_sample", False))
    _check_temperature(checked.get("temperature"), samples)
    return checked


def check_config(config: Any) -> None:
    """Refuse a `GenerationConfig` with a value that is not allowed.

    Raises:
        ConfigError: names the field.
    """
    for name, check in OPTIONS.items():
        value = getattr(config, name, None)
        if value is not None and name not in ONLY_OPTIONS:
            check(name, value)
    _check_temperature(config.temperature, config.do_sample)
    if config.return_dict_in_generate:
        for name in NOT_RETURNED:
            not_returned(name, getattr(config, name, False))


def check_for_model(options: Mapping[str, Any], vocab_size: int, defaults: Any) -> None:
    """Refuse token ids that a model does not have where transformers fails on them later, and a
    penalty on the length of answers that have no end.

    Args:
        options: of `generate`, checked.
        vocab_size: of the model.
        defaults: its generation config.

    Raises:
        ConfigError: names the option.
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
"""Options whose ids must be the model's, and how they are read out of them."""


def _check_temperature(temperature: Any, samples: Any) -> None:
    if samples and temperature == 0:
        raise ConfigError(
            "temperature must be a number above 0 with do_sample=True, not "
            f"{shown(temperature)}: greedy decoding is do_sample=False"
        )


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
    """The options of `generate` in the version of transformers that is installed."""
    from transformers import GenerationConfig, GenerationMixin

    names = {*signature(GenerationMixin.generate).parameters, *vars(GenerationConfig())}
    return {name for name in names if not name.startswith("_")} - {*NOT_OPTIONS}


def model_name(role: str, value: Any) -> str:
    """The name of a model as text.

    Raises:
        ConfigError: it is none; a model that is loaded already goes into an `Engine`.
    """
    name = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(name, str) or not name.strip():
        raise wrong(
            role,
            value,
            "the name of a model, a folder or a Hub id (draftlens.Engine takes loaded models)",
        )
    return name


PROMPT = "a text, or a list of texts"
PICTURES = "a path, an address, a PIL image, an array or a tensor, or a list of these"
CLIP = "a path, an address or frames (an array, a tensor, a list of pictures)"


def check_question(prompt: Any, video: Any, images: Any, messages: Any, limits: Any) -> None:
    """Refuse what is no prompt about media, before any medium is read.

    Args:
        prompt, video, images, messages, limits: as for `Engine.stream`.

    Raises:
        InputError: an argument has another form; what a file holds is not looked at.
        ConfigError: the limits are none.
    """
    if prompt == [] or not (prompt is None or _all(prompt, lambda each: isinstance(each, str))):
        raise InputError(f"prompt must be {PROMPT}, not {shown(prompt)}")
    # With several prompts, media are a list with an entry for each; None for no media.
    is_batch = isinstance(prompt, (list, tuple))
    for pictures in images if is_batch and isinstance(images, (list, tuple)) else [images]:
        if pictures is not None and not _all(pictures, is_picture):
            raise InputError(f"images must be {PICTURES}, not {shown(images)}")
    for clip in video if is_batch and isinstance(video, (list, tuple)) else [video]:
        if clip is not None and not is_clip(clip):
            raise InputError(f"video must be {CLIP}, not {shown(video)}")
    if messages is not None:
        _check_messages(messages)
    if limits is not None and not isinstance(limits, Limits):
        raise wrong("limits", limits, "a draftlens.media.Limits")


def check_clips(clips: Any, prompt: Any) -> None:
    """Refuse what is no series of clips, and what is no prompt about each of them.

    Raises:
        InputError: names the argument.
    """
    if isinstance(clips, (str, bytes, PathLike)) or not isinstance(clips, Iterable):
        raise InputError(f"clips must be several clips, such as a list, not {shown(clips)}")
    if not isinstance(prompt, str):
        raise InputError(f"prompt must be a text, not {shown(prompt)}")


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    """Whether a value fits, or all members of a list of values do."""
    return all(map(fits, value)) if isinstance(value, (list, tuple)) else fits(value)


def _check_messages(messages: Any) -> None:
    allowed = "a list of messages, or a list of such lists"
    if not isinstance(messages, (list, tuple)):
        raise InputError(f"messages must be {allowed}, not {shown(messages)}")
    if not messages:
        raise InputError("messages are empty")
    chats = messages if isinstance(messages[0], (list, tuple)) else [messages]
    for chat in chats:
        if not isinstance(chat, (list, tuple)) or not chat:
            raise InputError(f"messages must be {allowed}, none of them empty, not {shown(chat)}")
        for message in chat:
            if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
                raise InputError(
                    f"messages must be {allowed}, and a message is a dict with role and content, "
                    f"not {shown(message)}"
                )
            if not isinstance(message["role"], str):
                raise InputError(
                    "messages must be dicts whose role is a text, such as 'user', not "
                    f"{shown(message['role'])}"
                )
