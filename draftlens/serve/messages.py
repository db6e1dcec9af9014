"""Messages of a conversation, their parts and tools, in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr, model_validator


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


PARTS = ("text", "image_url", "video_url", "file")
"""The types of parts."""


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """Only the assistant's messages with calls have no content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Function(BaseModel):
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A function that the model may call. Chat templates get it as it is given."""

    type: Literal["function"]
    function: Function
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, check: Callable[[Any], Self]) -> Self:
        tool = check(value)
        tool._given = value
        return tool

    @property
    def given(self) -> dict[str, Any]:
        return self._given


class FunctionName(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: FunctionName


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=128)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Prediction(BaseModel):
    type: Literal["content"] = "content"
    content: str | Annotated[list[Text], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    include_usage: bool = False


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "audio": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "use_beam_search": (False,),
    "chat_template": (),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "prompt_logprobs": (),
}
"""Fields that are known and not supported (by one of both kinds of requests), and values of them
that change nothing."""
