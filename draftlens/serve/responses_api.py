"""OpenAI's Responses API: requests as those of chats, and answers as items."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request
from pydantic import BaseModel, Discriminator, Field, Tag

from draftlens.serve.answering import Answer, Answering
from draftlens.serve.errors import ApiError, api_error
from draftlens.serve.messages import NEUTRAL, Clip
from draftlens.serve.metrics import Metrics
from draftlens.serve.protocol import ChatRequest, Count, GenerationRequest, parse
from draftlens.serve.responses import Responder, line_of
from draftlens.serve.steering import STEERING
from draftlens.serve.tools import Call

MOST_ITEMS = 1024

SAMPLING = ("seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop")
CHAT_FIELDS = (*SAMPLING, *sorted(STEERING), "parallel_tool_calls", "model")
"""Fields with the meaning that they have in a chat."""


class InputText(BaseModel):
    type: Literal["input_text", "output_text", "text"]
    text: str

    def part(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class InputImage(BaseModel):
    type: Literal["input_image"]
    image_url: str

    def part(self) -> dict[str, Any]:
        return {"type": "image_url", "image_url": self.image_url}


class InputFile(BaseModel):
    type: Literal["input_file"]
    file_data: str
    filename: str | None = None

    def part(self) -> dict[str, Any]:
        return {"type": "file", "file": {"file_data": self.file_data}}


class InputClip(Clip):
    """Of this server."""

    def part(self) -> dict[str, Any]:
        return {"type": "video_url", "video_url": self.url}


Parts = Annotated[
    list[Annotated[InputText | InputImage | InputFile | InputClip, Field(discriminator="type")]],
    Field(fail_fast=True),
]
Content = str | Parts


class InputMessage(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    def message(self) -> dict[str, Any]:
        return {"role": self.role, "content": _content(self.content)}


class FunctionCall(BaseModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def message(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}


class FunctionOutput(BaseModel):
    type: Literal["function_call_output"]
    call_id: str
    output: Content

    def message(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.call_id, "content": _content(self.output)}


def _kind(item: Any) -> str:
    """The type of an item, which messages may leave out."""
    if isinstance(item, BaseModel):
        return str(getattr(item, "type", ""))
    return str(item.get("type", "message")) if isinstance(item, dict) else "message"


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionOutput, Tag("function_call_output")],
    Discriminator(_kind),
]


class TextOptions(BaseModel):
    format: dict[str, Any] | None = None

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The same as a chat has it, where a schema has its name and flags inside."""
        if self.format is None or self.format.get("type") != "json_schema":
            return self.format
        inside = {name: value for name, value in self.format.items() if name != "type"}
        return {"type": "json_schema", "json_schema": inside}


class ResponsesRequest(GenerationRequest):
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **NEUTRAL,
        "background": (False,),
        "conversation": (),
        "include": ([],),
        "max_tool_calls": (),
        "previous_response_id": (),
        "prompt": (),
        "reasoning": ({},),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "truncation": ("disabled",),
    }

    input: str | Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=MOST_ITEMS)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=MOST_ITEMS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = Field(None, strict=True)
    metadata: dict[str, str] | None = Field(None, max_length=16)
    text: TextOptions | None = None

    @property
    def length(self) -> int | None:
        return self.max_output_tokens

    @property
    def includes_usage(self) -> bool:
        """The last event has it."""
        return False

    def drop_prompt(self) -> None:
        self.input = ""

    def chat(self) -> dict[str, Any]:
        """The same request in the form of a chat."""
        given = self.model_fields_set
        body = {name: getattr(self, name) for name in CHAT_FIELDS if name in given}
        body["messages"] = list(self._messages())
        if self.max_output_tokens is not None:
            body["max_completion_tokens"] = self.max_output_tokens
        if self.text is not None:
            body["response_format"] = self.text.response_format
        if self.tools:
            body["tools"] = [_nested(tool) for tool in self.tools]
        if self.tool_choice is not None:
            body["tool_choice"] = _nested(self.tool_choice)
        return body

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Calls that follow each other, or the assistant's words, belong to one message."""
        if self.instructions is not None:
            yield {"role": "system", "content": self.instructions}
        if isinstance(self.input, str):
            yield {"role": "user", "content": self.input}
            return
        last: dict[str, Any] | None = None
        for item in self.input:
            message = item.message()
            if last and last["role"] == "assistant" and "tool_calls" in message:
                last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
                continue
            if last:
                yield last
            last = message
        if last:
            yield last


def _content(content: Content) -> Any:
    return content if isinstance(content, str) else [part.part() for part in content]


def _nested(tool: Any) -> Any:
    """A function, or the choice of one, as a chat has it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    inside = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": inside}


async def respond(answering: Answering, body: ResponsesRequest, client: str) -> list[Answer]:
    """Begin to answer. Raises `ApiError` and the errors of the library."""
    try:
        chat = parse(ChatRequest, body.chat(), answering.options)
    except ApiError as error:
        param = str(error.param).replace("messages", "input", 1)
        raise ApiError(error.status, error.message, param, error.code) from None
    return await answering.chat(chat, client)


class ItemForm:
    """The form of one response and of its events.

    Attributes:
        output: items that have ended.
    """

    def __init__(self, model: str) -> None:
        self.output: list[dict[str, Any]] = []
        self._model = model
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._num_events = 0
        self._open: dict[str, Any] | None = None  # the message that is being written
        self._text = ""

    def response(self, body: ResponsesRequest, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": self.output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
            **fields,
        }

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number, self._num_events = self._num_events, self._num_events + 1
        return {"type": kind, "sequence_number": number, **fields}

    def gained(self, text: str) -> Iterator[dict[str, Any]]:
        """Events of further text, in a message that begins with it if none is open."""
        if self._open is None:
            self._open, self._text = _message("", "in_progress"), ""
            item = {**self._open, "content": []}
            yield self.event("response.output_item.added", output_index=self._index, item=item)
            yield self._of_part("response.content_part.added", part=_part(""))
        self._text += text
        yield self._of_part("response.output_text.delta", delta=text, logprobs=[])

    def closed(self) -> Iterator[dict[str, Any]]:
        """Events of the end of the open message, if there is one."""
        if self._open is None:
            return
        part = _part(self._text)
        item = {**self._open, "status": "completed", "content": [part]}
        yield self._of_part("response.output_text.done", text=self._text, logprobs=[])
        yield self._of_part("response.content_part.done", part=part)
        yield self.event("response.output_item.done", output_index=self._index, item=item)
        self.output.append(item)
        self._open = None

    def called(self, call: Call) -> Iterator[dict[str, Any]]:
        """Events of a call."""
        yield from self.closed()
        item = _call(call)
        place = {"output_index": self._index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self.event("response.output_item.added", **place, item=begun)
        place["item_id"] = item["id"]
        kind = "response.function_call_arguments"
        yield self.event(f"{kind}.delta", **place, delta=call.arguments)
        yield self.event(f"{kind}.done", **place, name=call.name, arguments=call.arguments)
        yield self.event("response.output_item.done", output_index=self._index, item=item)
        self.output.append(item)

    @property
    def _index(self) -> int:
        return len(self.output)

    def _of_part(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": self._index, "content_index": 0}
        return self.event(kind, **place, **fields)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(text: str, status: str) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_part(text)],
    }


def _call(call: Call) -> dict[str, Any]:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


class ItemResponder(Responder):
    """The answer of one request in items."""

    done = ""

    def __init__(
        self,
        answers: list[Answer],
        body: ResponsesRequest,
        form: ItemForm,
        metrics: Metrics,
        request: Request,
    ) -> None:
        super().__init__(answers, body, form, metrics, request)
        self._items = form
        self._asked = body

    def _ended(self) -> dict[str, Any]:
        """The whole response, at its end."""
        usage = self._usage()
        fields: dict[str, Any] = {
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
        }
        status = "completed"
        if self._answers[0].rows[0].finish_reason == "length":
            status = "incomplete"
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._asked.draftlens:
            fields["draftlens"] = self._details()
        return self._items.response(self._asked, status, **fields)

    async def _whole(self) -> dict[str, Any]:
        (answer,) = self._answers
        while not answer.stream.done:
            await answer.next_round()
        self._record()
        text = answer.rows[0].text
        if text.text or not text.calls:
            self._items.output.append(_message(text.text, "completed"))
        self._items.output += map(_call, text.calls)
        return self._ended()

    def _events_of(
        self, answer: Answer, row: int, index: int, pieces: Sequence[tuple[str, bool]]
    ) -> list[dict[str, Any]]:
        events = [] if self._begun else [*self._first_events()]
        if pieces:
            events += self._items.gained("".join(text for text, _ in pieces))
        for call in answer.rows[row].text.take_calls():
            events += self._items.called(call)
        return events

    def _first_events(self) -> Iterator[dict[str, Any]]:
        self._begun.add(0)
        response = self._items.response(self._asked, "in_progress", output=[])
        yield self._items.event("response.created", response=response)
        yield self._items.event("response.in_progress", response=response)

    def _last_events(self) -> list[dict[str, Any]]:
        events = [*self._items.closed()]
        response = self._ended()
        return [*events, self._items.event(f"response.{response['status']}", response=response)]

    def _failed(self, error: Exception) -> str:
        cause = api_error(error)
        response = self._items.response(
            self._asked, "failed", error={"code": "server_error", "message": cause.message}
        )
        fields = {"code": cause.code, "message": cause.message, "param": cause.param}
        return line_of(self._items.event("error", **fields)) + line_of(
            self._items.event("response.failed", response=response)
        )
