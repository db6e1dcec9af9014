"""Requests and responses in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator

from draftlens.serve.errors import ApiError

Model = TypeVar("Model", bound="GenerationRequest")

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "audio": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "use_beam_search": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
}
"""Fields that are known and not supported, and values of them that change nothing."""


TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Text(BaseModel):
    type: Literal["text"]
    text: str


class Address(BaseModel):
    url: str


class Picture(BaseModel):
    type: Literal["image_url"]
    image_url: Address | str

    @property
    def url(self) -> str:
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class Clip(BaseModel):
    type: Literal["video_url"]
    video_url: Address | str

    @property
    def url(self) -> str:
        return self.video_url if isinstance(self.video_url, str) else self.video_url.url


class FileData(BaseModel):
    file_data: str
    filename: str | None = None


class Pdf(BaseModel):
    """A PDF file, whose pages become pictures."""

    type: Literal["file"]
    file: FileData

    @property
    def url(self) -> str:
        return self.file.file_data


Part = Annotated[Text | Picture | Clip | Pdf, Field(discriminator="type")]


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]


class Prediction(BaseModel):
    type: Literal["content"] = "content"
    content: str | list[Text]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    include_usage: bool = False


class GenerationRequest(BaseModel):
    """What both kinds of requests have in common."""

    model: str | None = None
    n: int = Field(1, ge=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, allow_inf_nan=False)
    stop: list[str] = Field(default_factory=list, max_length=4)
    max_tokens: int | None = Field(None, ge=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    draftlens: bool = False

    @field_validator("n", "stream", "draftlens", mode="before")
    @classmethod
    def _default(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].default if value is None else value

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
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

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
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    prediction: Prediction | None = None

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(GenerationRequest):
    prompt: str | list[str] | list[TokenId]


def parse(kind: type[Model], body: Any) -> Model:
    """A request from JSON. Unknown fields are ignored. Raises `ApiError`."""
    if not isinstance(body, dict):
        raise ApiError(400, "the body is a JSON object")
    for name, values in NEUTRAL.items():
        value = body.get(name)
        if value is not None and not any(_equal(value, neutral) for neutral in values):
            raise ApiError(400, f"{name} is not supported", name, "unsupported_parameter")
    for name in kind.model_fields:
        if not _is_encodable(body.get(name)):
            message = (
                f"{name} has half of a surrogate pair (\\ud800 to \\udfff): send whole characters"
            )
            raise ApiError(400, message, name, "invalid_value")
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(map(str, first["loc"]))
        raise ApiError(400, f"{param}: {first['msg']}", param, "invalid_value") from None
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


def _equal(value: Any, neutral: Any) -> bool:
    """`0` and `false` are different values."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def usage(
    prompt: int, cached: int, completion: int, prediction: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    """`cached` tokens of the prompt came from the prompt cache; `prediction` has the tokens of the
    prediction that are in the answers, and those that are not."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": prediction[0],
            "rejected_prediction_tokens": prediction[1],
        },
    }
