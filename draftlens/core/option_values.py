"""Checks of values that options of `generate` take besides numbers and switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.forms import form_of
from draftlens.core.options import as_real, as_whole, real, shown, wrong
from draftlens.core.text import tokenizer_of


def flat_ids(value: Any) -> list[Any]:
    """A token id, or several in any form, as a list."""
    value = getattr(value, "tolist", lambda: value)()
    return list(value) if isinstance(value, (list, tuple, Set, range)) else [value]


def texts(name: str, value: Any) -> Any:
    """Accepts a text that is not empty, or a list of such texts."""
    items = [value] if isinstance(value, str) else value
    is_list = isinstance(items, (Sequence, Set)) and not isinstance(items, bytes)
    if not is_list or not items or not all(isinstance(item, str) and item for item in items):
        raise wrong(name, value, "a text or a list of texts, none of them empty")
    return value if isinstance(value, str) else list(items)


def token_ids(name: str, value: Any) -> Any:
    """Accepts a token id, or a list, array or tensor of them."""
    if any(as_whole(item) is None for item in flat_ids(value)):
        raise wrong(name, value, "a token id or a list of token ids")
    return value


def token_id(name: str, value: Any) -> Any:
    """Accepts one token id, also as an array or tensor of one."""
    ids = flat_ids(value)
    if isinstance(value, (list, tuple)) or len(ids) != 1 or as_whole(ids[0]) is None:
        raise wrong(name, value, "a token id")
    return value


def list_of_token_ids(name: str, value: Any) -> Any:
    if as_whole(value) is not None or any(as_whole(item) is None for item in flat_ids(value)):
        raise wrong(name, value, "a list of token ids")
    return value


def bad_words(name: str, value: Any) -> Any:
    """Accepts a list of lists of token ids, at least one."""
    words = value if isinstance(value, (list, tuple)) else []
    if not words or not all(map(is_word, words)):
        raise wrong(name, value, "a list of lists of token ids, at least one")
    return value


def is_word(value: Any) -> bool:
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
        if not pair[0] or not is_word(pair[0]) or as_real(pair[1]) is None:
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


def streamer(name: str, value: Any) -> Any:
    if not callable(getattr(value, "put", None)) or not callable(getattr(value, "end", None)):
        raise wrong(name, value, "an object with the methods put and end")
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


def form(name: str, value: Any) -> Any:
    """Accepts a `Form`, a JSON schema or a pydantic model."""
    return form_of(value)
