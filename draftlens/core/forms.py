"""Answers of a given form: JSON of a schema, a regular expression, a grammar, or one of some texts.

llguidance compiles a form for a tokenizer. It says which tokens may follow an answer, the mask of a
logits processor, and which must follow it: these are draft tokens that need no draft model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.options import shown
from draftlens.core.text import shortened, tokenizer_of

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]

LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it: what lies between values is known, so it is drafted."""

ANY_LAYOUT = {"whitespace_flexible": True}


@dataclass(frozen=True)
class Form:
    """What answers look like, as a grammar of llguidance.

    Args:
        grammar: as `llguidance.grammar_from` returns it; the class methods make it.

    Example:

        >>> import draftlens
        >>> engine = draftlens.load(device="cpu")
        >>> engine.generate("Hello", form=draftlens.Form.regex("[a-c]{3}!")).texts[0][-1]
        '!'
    """

    grammar: str

    @classmethod
    def json(cls, schema: Any = None, *, any_layout: bool = False, lenient: bool = False) -> Form:
        """JSON of a schema, by default any object.

        Args:
            schema: a JSON schema, or a pydantic model. Properties come in its order, and no others
                if it says so (`additionalProperties`) or comes from a model that does not allow
                them.
            any_layout: whether spaces and line breaks are free; otherwise the layout is that of
                `json.dumps`, which leaves more tokens to be known beforehand.
            lenient: whether keywords that cannot be enforced are ignored instead of refused.

        Raises:
            ConfigError: the schema is no mapping.
        """
        if hasattr(schema, "model_json_schema"):
            schema = _closed(schema.model_json_schema())
        schema = {"type": "object"} if schema is None else schema
        if not isinstance(schema, (Mapping, bool)):
            raise ConfigError(
                f"the form must be a JSON schema or a pydantic model, not {shown(schema)}"
            )
        options = {**(ANY_LAYOUT if any_layout else LAYOUT), "lenient": lenient}
        try:
            text = json.dumps(schema)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the form is no JSON schema: {error}") from None
        return cls(_library().LLMatcher.grammar_from_json_schema(text, defaults=options))

    @classmethod
    def regex(cls, pattern: str) -> Form:
        """Texts that a regular expression matches as a whole, without groups that look around."""
        return cls(_library().LLMatcher.grammar_from_regex(_text("expression", pattern)))

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Form:
        """One of some texts."""
        if isinstance(texts, str) or not texts:
            raise ConfigError(f"the choices must be a list of texts, not {shown(texts)}")
        words = [json.dumps(_text("choice", text), ensure_ascii=False) for text in texts]
        return cls.lark("start: " + " | ".join(words))

    @classmethod
    def lark(cls, grammar: str) -> Form:
        """Texts of a grammar in the notation of Lark, or of GBNF (llama.cpp)."""
        try:
            return cls(_library().grammar_from("grammar", _text("grammar", grammar)))
        except ValueError as error:
            raise ConfigError(str(error)) from None


def form_of(value: Any) -> Form:
    """A form, or that of a JSON schema or a pydantic model. Raises `ConfigError` for others."""
    if isinstance(value, Form):
        return value
    if isinstance(value, str):
        raise ConfigError(
            f"form must be a JSON schema, a pydantic model or a Form, not {shown(value)}: an "
            "expression is Form.regex(...), a grammar Form.lark(...)"
        )
    return Form.json(value)


def _closed(schema: Any) -> Any:
    """The schema of a pydantic model, whose objects have no further properties unless it says so:
    the model would ignore them."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the {name} of a form must be a text that is not empty")
    return value


def _library() -> Any:
    import llguidance

    return llguidance


def with_form(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `generate` with the processor of their form, a `Form`, in its place.

    Raises:
        ConfigError: the form is wrong, or there is no tokenizer.
    """
    rest = {name: value for name, value in options.items() if name != "form"}
    processor = FormProcessor(options["form"], tokenizer_of(rest.get("tokenizer")))
    return {**rest, "logits_processor": [*(rest.get("logits_processor") or []), processor]}


class FormProcessor:
    """Masks tokens after which an answer could not become one of a form.

    Args:
        form: what answers look like.
        tokenizer: of the target.

    Raises:
        ConfigError: the form is wrong, or no text has it, or the tokenizer is not a fast one.
    """

    _guard: Callable[[LogitsProcessor], LogitsProcessor] | None = None

    def __init__(self, form: Form, tokenizer: Any) -> None:
        self.form = form
        self.tokenizer = tokenizer
        tokens = _tokens_of(tokenizer)
        self._start = _Position(_matcher(form, tokens), tokens)
        self._start.allowed(tokens.vocab_size)  # takes long or fails here, not in a batch
        self._bind(0, ())

    def __copy__(self) -> FormProcessor:
        other = object.__new__(FormProcessor)
        other.__dict__ |= self.__dict__
        return other

    def __reduce__(self) -> Any:  # a matcher cannot be sent to another process
        return _rebuilt, (self.form, self.tokenizer, self._prompt_length, self._eos)

    def bound(self, prompt_length: int, eos: Collection[int]) -> FormProcessor:
        """The processor of one call, whose answers begin after so many ids and end with `eos`."""
        if not eos:
            raise ConfigError(
                "an answer of a form ends with an end-of-sequence token: give eos_token_id"
            )
        bound = copy(self)
        first = getattr(self.tokenizer, "eos_token_id", None)
        bound._bind(prompt_length, sorted(eos, key=lambda token: (token != first, token)))
        return bound

    def _bind(self, prompt_length: int, eos: Sequence[int]) -> None:
        self._prompt_length = prompt_length
        self._eos = list(eos)
        self._positions: dict[int, _Position] = {}
        self._lock = Lock()  # a draft may run in a thread of its own

    def guarded(self, guard: Callable[[LogitsProcessor], LogitsProcessor]) -> FormProcessor:
        """The same with a guard around the processor of each row."""
        guarded = copy(self)
        guarded._guard = guard
        return guarded

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores ``[B, V]`` of all rows, as stock `generate` calls a processor."""
        rows = [
            self.of_row(row)(ids[row : row + 1], scores[row : row + 1]) for row in range(len(ids))
        ]
        return torch.cat(rows)

    def of_row(self, row: int) -> LogitsProcessor:
        """The processor of one row of the call, for any histories of it."""

        def masked(ids: Tensor, scores: Tensor) -> Tensor:
            answers = ids[:, self._prompt_length :].tolist()
            with self._lock:
                masks = [self._mask(row, answer, scores.shape[-1]) for answer in answers]
            return scores.masked_fill(~torch.stack(masks).to(scores.device), -torch.inf)

        return masked if self._guard is None else self._guard(masked)

    def forced(self, row: int, answer: Sequence[int]) -> list[int]:
        """Tokens that follow an answer as nothing else may; none where there is a choice."""
        with self._lock:
            position = self._position(row)
            if not position.move_to(answer):
                return []
            tokens = position.forced()
            if position.move_to([*answer, *tokens]) and position.is_complete:
                tokens.append(self._eos[0])
            return tokens

    def _position(self, row: int) -> _Position:
        if row not in self._positions:
            self._positions[row] = self._start.copy()
        return self._positions[row]

    def _mask(self, row: int, answer: Sequence[int], size: int) -> Tensor:
        """Whether each token may follow, bool ``[size]``: every token after an answer that has
        ended or has another form, which is none that the target gives."""
        position = self._position(row)
        if not position.move_to(answer):
            return torch.ones(size, dtype=torch.bool)
        allowed, can_end = position.allowed(size)
        allowed[[token for token in self._eos if token < size]] = can_end
        return allowed


def _rebuilt(form: Form, tokenizer: Any, prompt_length: int, eos: Sequence[int]) -> FormProcessor:
    processor = FormProcessor(form, tokenizer)
    return processor.bound(prompt_length, eos) if eos else processor


class _Position:
    """A matcher after an answer. For the next one it goes back to what both have in common."""

    def __init__(self, matcher: Any, tokens: Any) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._answer: list[int] = []

    def copy(self) -> _Position:
        """A position before the first token, where this one is."""
        return _Position(self._matcher.deep_copy(), self._tokens)

    def move_to(self, answer: Sequence[int]) -> bool:
        """Whether the form allows all tokens of the answer."""
        shared = len(self._answer)
        if answer[:shared] != self._answer:
            pairs = enumerate(zip(self._answer, answer, strict=False))
            differing = (place for place, (mine, other) in pairs if mine != other)
            shared = next(differing, min(shared, len(answer)))

        if shared < len(self._answer):
            self._matcher.rollback(len(self._answer) - shared)
            del self._answer[shared:]
        # Ids that the tokenizer does not have would end all use of the matcher.
        further = list(takewhile(lambda token: token < self._tokens.vocab_size, answer[shared:]))
        self._answer += further[: self._matcher.try_consume_tokens(further)]
        return len(self._answer) == len(answer)

    def allowed(self, size: int) -> tuple[Tensor, bool]:
        """Whether each token may follow, bool ``[size]``, and whether the answer may end."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise ConfigError(f"the form is too complex: {_first_line(self._matcher.get_error())}")
        found = torch.from_numpy(np.unpackbits(bits, bitorder="little")).bool()
        found = found[: self._tokens.vocab_size]
        can_end = bool(found[self._tokens.eos_tokens].any())
        found[self._tokens.eos_tokens] = False
        return torch.nn.functional.pad(found, (0, size - len(found))), can_end

    def forced(self) -> list[int]:
        """The tokens that must follow."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())


def _matcher(form: Form, tokens: Any) -> Any:
    matcher = _library().LLMatcher(tokens, form.grammar, log_level=0)
    if matcher.is_error():
        raise ConfigError(f"the form is refused: {_first_line(matcher.get_error())}")
    return matcher


def _first_line(text: str) -> str:
    return shortened(" ".join(text.partition("<state>")[0].split()))


_TOKENS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Tokenizers as llguidance reads them; for a large vocabulary this takes about a second."""


def _tokens_of(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise ConfigError("form needs the option tokenizer: that of the target")
    if tokenizer not in _TOKENS:
        from llguidance.hf import from_tokenizer

        try:
            _TOKENS[tokenizer] = from_tokenizer(tokenizer)
        except ValueError as error:
            name = type(tokenizer).__name__
            raise ConfigError(f"answers of a form need a fast tokenizer, not {name}") from error
    return _TOKENS[tokenizer]
