"""Requests and responses in the form of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, ValidationError, field_validator

from draftlens.core.forms import Form
from draftlens.core.logprobs import MOST_TOP
from draftlens.core.text import shortened
from draftlens.serve import messages
from draftlens.serve.errors import ApiError
from draftlens.serve.messages import NEUTRAL, Message, Prediction, StreamOptions, ToolChoice, Tools
from draftlens.serve.options import ServeOptions
from draftlens.serve.response_format import FORMS, ResponseFormat, StructuredOutputs, one_form
from draftlens.serve.steering import Steering

Model = TypeVar("Model", bound="GenerationRequest")

MOST_DIGITS = 40
"""Of a whole number; Python takes long for thousands of them."""

# Strict: texts and truth values are no numbers.
Count = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
NumLogprobs = Annotated[int, Field(strict=True, ge=0, le=MOST_TOP)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class GenerationRequest(Steering):
    """What all kinds of requests have in common."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL

    model: str | None = None
    n: Count = 1
    seed: int | None = Field(None, strict=True, ge=-(2**63), lt=2**63)
    temperature: Real | None = Field(None, ge=0, le=2)
    top_p: Real | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, strict=True, ge=-1, lt=2**31)
    min_p: Real | None = Field(None, ge=0, le=1)
    repetition_penalty: Real | None = Field(None, ge=0.01, le=100)
    stop: Texts = Field(default_factory=list)
    max_tokens: Count | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    draftlens: bool = False

    @field_validator("n", "stream", "draftlens", mode="before")
    @classmethod
    def _default(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].default if value is None else value

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, value: float | None) -> float | None:
        if value and value < 1e-6:  # scores divided by it may be infinite
            raise ValueError("must be 0 or at least 1e-06")
        return value

    @field_validator("stop", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        texts = [] if value is None else [value] if isinstance(value, str) else value
        if isinstance(texts, list) and "" in texts:
            raise ValueError("a stop text must not be empty")
        return texts

    @property
    def length(self) -> int | None:
        return self.max_tokens

    @property
    def logprob_options(self) -> dict[str, Any]:
        """Options of `generate`; empty if no log probabilities are asked for."""
        return {}

    @property
    def keeps_special_tokens(self) -> bool:
        """Whether the text of the answer has its special tokens."""
        return getattr(self, "skip_special_tokens", None) is False

    def drop_prompt(self) -> None:
        """Discard what only the processors need, while the answer is made."""

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def form(self) -> Form | None:
        """What the answers look like. Raises `ApiError` for several forms or one that is wrong."""
        given = {name: value for name in FORMS if (value := getattr(self, name)) is not None}
        return one_form(**given) if given else None

    def sampling(self, samples: bool) -> dict[str, Any]:
        """Options of `generate`; `samples` is what the model's generation config says. Values that
        change nothing do not turn sampling on."""
        options: dict[str, Any] = {}
        if self.repetition_penalty not in (None, 1.0):
            options["repetition_penalty"] = self.repetition_penalty
        if self.temperature == 0:
            return {**options, "do_sample": False}
        top_k = 0 if self.top_k == -1 else self.top_k  # vLLM's word for all tokens
        sampling_options = {
            "temperature": self.temperature,
            "top_k": top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
        }
        sampling_options = {
            name: value for name, value in sampling_options.items() if value is not None
        }
        neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        is_sampling = any(neutral.get(name) != value for name, value in sampling_options.items())
        if not is_sampling and not samples:
            return {**options, "do_sample": False}
        return {**options, "do_sample": True, **sampling_options}


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(fail_fast=True)] = Field(min_length=1)
    max_completion_tokens: Count | None = None
    prediction: Prediction | None = None
    skip_special_tokens: bool | None = Field(None, strict=True)
    logprobs: bool | None = Field(None, strict=True)
    top_logprobs: NumLogprobs | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _with_logprobs(cls, value: int | None, info: Any) -> int | None:
        if value and not info.data.get("logprobs"):
            raise ValueError("needs logprobs: true")
        return value

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, strict=True)
    add_generation_prompt: bool | None = Field(None, strict=True)
    continue_final_message: bool | None = Field(None, strict=True)

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def logprob_options(self) -> dict[str, Any]:
        return {"logprobs": True, "top_logprobs": self.top_logprobs} if self.logprobs else {}

    @property
    def calls_tools(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.tools) and self.tool_choice != "none"

    def drop_prompt(self) -> None:
        self.messages.clear()


class CompletionRequest(GenerationRequest):
    prompt: str | Texts | TokenIds
    skip_special_tokens: bool | None = Field(None, strict=True)
    logprobs: NumLogprobs | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def _no_logprobs(cls, value: Any) -> Any:
        return None if value is False else value

    @property
    def logprob_options(self) -> dict[str, Any]:
        asked = self.logprobs is not None
        return {"logprobs": True, "top_logprobs": self.logprobs} if asked else {}

    def drop_prompt(self) -> None:
        self.prompt = ""


def load_json(body: bytes | bytearray, max_items: int) -> Any:
    """Raises `ApiError` for what is no JSON or has too many values."""
    if _num_marks(body) > max_items and _num_marks(_without_texts(body, max_items)) > max_items:
        raise ApiError(400, f"the body has more than {max_items} values", code="too_many_values")
    try:
        return json.loads(body, parse_constant=_no_constant, parse_int=_whole)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not valid JSON") from None


def _num_marks(body: bytes | bytearray) -> int:
    """Characters, each of which begins a value or a name."""
    return len(body) - len(body.translate(None, b",:[{"))


def _without_texts(body: bytes | bytearray, max_items: int) -> bytes:
    """What is outside of JSON's texts, if it has not too many of them."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * max_items:
        return b"," * (max_items + 1)
    return b"".join(plain.split(b'"')[::2])


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(digits)
    return int(digits)


def parse(kind: type[Model], body: Any, options: ServeOptions = ServeOptions()) -> Model:  # noqa: B008 - frozen
    """A request from JSON. Unknown fields are ignored. Raises `ApiError`."""
    if not isinstance(body, dict):
        raise ApiError(400, "the body is a JSON object")
    _check_counts(body, options)
    for name, values in kind.neutral.items():
        value = None if name in kind.model_fields else body.get(name)
        if value is not None and not any(_equal(value, neutral) for neutral in values):
            raise ApiError(400, f"{name} is not supported", name, "unsupported_parameter")
    for name in kind.model_fields:
        if not _is_encodable(body.get(name)):
            message = (
                f"{name} has half of a surrogate pair (\\ud800 to \\udfff): send whole characters"
            )
            raise ApiError(400, message, name, "invalid_value")
    _check_parts(body.get("messages"))
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(map(str, first["loc"]))
        message = shortened(f"{param}: {first['msg']}")
        raise ApiError(400, message, param, "invalid_value") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options need stream: true", "stream_options")
    return request


def _is_encodable(value: Any) -> bool:
    """Whether all texts in a value from JSON, which may have half surrogate pairs, are Unicode."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and value.encode("utf-8", "replace").decode() != value:
            return False
    return True


def _check_counts(body: dict[str, Any], options: ServeOptions) -> None:
    """Bounds that hold before anything is validated."""
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    if len(stops) > options.max_stops:
        cause = f"{len(stops)} stop texts are more than {options.max_stops}"
        raise ApiError(400, cause, "stop", "invalid_value")
    for text in stops:
        if isinstance(text, str) and len(text) > options.max_stop_length:
            cause = f"a stop text has {len(text)} characters, more than {options.max_stop_length}"
            raise ApiError(400, cause, "stop", "invalid_value")
    messages = body.get("messages")
    if isinstance(messages, list):
        contents = []
        for number, each in enumerate(messages):
            content = each.get("content") if isinstance(each, dict) else ""
            if content is None and not each.get("tool_calls"):
                param = f"messages.{number}.content"
                raise ApiError(400, f"{param}: a message has content", param, "invalid_value")
            contents.append(content)
        num_parts = sum(len(content) if isinstance(content, list) else 1 for content in contents)
        count = max(len(messages), num_parts)
        if count > options.max_messages:
            cause = f"{count} messages and parts are more than {options.max_messages}"
            raise ApiError(400, cause, "messages", "invalid_value")


def _check_parts(given: Any) -> None:
    """Refuse parts of messages of other types, such as audio, by their names."""
    for number, message in enumerate(given if isinstance(given, list) else []):
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            named = part.get("type") if isinstance(part, dict) else None
            if isinstance(named, str) and named not in messages.PARTS:
                param = f"messages.{number}.content"
                cause = f"a part is {', '.join(messages.PARTS)}, not {shortened(named)!r}"
                raise ApiError(400, f"{param}: {cause}", param, "invalid_value")


def _equal(value: Any, neutral: Any) -> bool:
    """`0` and `false` are different values."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


NOT_READ = "the prediction was ignored: the method of this server drafts from no given text"


def usage(
    prompt: int, cached: int, completion: int, prediction: tuple[int, int] | None = (0, 0)
) -> dict[str, Any]:
    """`cached` tokens of the prompt came from the prompt cache; `prediction` has the tokens of the
    prediction that are in the answers, and those that are not, as OpenAI defines the two. None, for
    a prediction that is not read, adds a field of our own, which OpenAI's clients pass on."""
    accepted, rejected = prediction or (0, 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
            **({"prediction_note": NOT_READ} if prediction is None else {}),
        },
    }
