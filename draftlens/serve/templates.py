"""What of a request the chat template renders beside texts and media: tools and their calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from draftlens.serve.errors import ApiError
from draftlens.serve.messages import Message, Tool

if TYPE_CHECKING:
    from draftlens.serve.protocol import ChatRequest

TEMPLATE = frozenset({"add_generation_prompt", "continue_final_message", "tools", "tool_choice"})


def template_options(body: ChatRequest) -> dict[str, Any]:
    """Options of `apply_chat_template`. Raises `ApiError` for fields that exclude each other, and
    for a choice of tools that is not supported."""
    options = _continuation(body)
    _check_choice(body)
    if body.calls_tools:
        options["tools"] = [tool.given for tool in body.tools or ()]
    return options


def tool_fields(message: Message, param: str) -> dict[str, Any]:
    """The calls of a message, or whose result it is, in the form of chat templates."""
    fields: dict[str, Any] = {}
    calls = []
    for number, call in enumerate(message.tool_calls or ()):
        given = call.model_dump(exclude_none=True)
        place = f"{param}.tool_calls.{number}.function.arguments"
        given["function"]["arguments"] = _arguments(call.function.arguments, place)
        calls.append(given)
    if calls:
        fields["tool_calls"] = calls
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    return fields


def _arguments(text: str, param: str) -> Any:
    """As a mapping, which chat templates iterate over."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ApiError(400, f"{param}: the text is no JSON object", param, "invalid_value")
    return arguments


def demanded_tools(body: ChatRequest) -> list[Tool]:
    """The tools of which one must be called; none if a call is not demanded."""
    if body.tool_choice in (None, "none", "auto"):
        return []
    name = None if isinstance(body.tool_choice, str) else body.tool_choice.function.name
    return [tool for tool in body.tools or () if name in (None, tool.function.name)]


def _check_choice(body: ChatRequest) -> None:
    """Raise `ApiError` if a call is demanded of no tool, or beside another form of the answer."""
    if body.tool_choice in (None, "none", "auto"):
        return
    if not demanded_tools(body):
        cause = "tool_choice demands a call, and tools has no such tool"
        raise ApiError(400, cause, "tool_choice", "invalid_value")
    if body.form is not None:
        cause = "tool_choice demands a call, and the answer has another form"
        raise ApiError(400, cause, "tool_choice", "invalid_value")


def _continuation(body: ChatRequest) -> dict[str, Any]:
    """Whether an answer begins after the messages, or continues the last one."""
    if not body.continue_final_message:
        return {"add_generation_prompt": body.add_generation_prompt is not False}
    if body.add_generation_prompt:
        cause = "a message that is continued has no prompt for a new one after it"
        raise ApiError(400, cause, "add_generation_prompt", "invalid_value")
    return {"continue_final_message": True, "add_generation_prompt": False}
