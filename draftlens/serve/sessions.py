"""Which conversation a request belongs to, so that all of its turns reach one replica."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

HEADERS = ("x-openwebui-chat-id", "x-session-id")
FIELDS = ("prompt_cache_key", "user")
"""Of OpenAI's requests."""

BEGINNING = 256
"""Characters, or tokens, of a prompt without messages that name its session."""


def session_of(headers: Mapping[str, str], body: bytes) -> str:
    """The name of a request's session: a header of `HEADERS`, a field of `FIELDS`, or a hash of
    the messages up to the user's first one with its media, which all turns of a conversation
    repeat. Empty where the request has none of them.

    Example:

        >>> first = b'{"messages": [{"role": "user", "content": "Hello"}]}'
        >>> later = first.replace(b"}]", b'}, {"role": "assistant", "content": "Hi"}]')
        >>> session_of({}, first) == session_of({}, later) != ""
        True
        >>> session_of({"x-session-id": "a"}, first)
        'a'
    """
    for name in HEADERS:
        if headers.get(name):
            return headers[name]
    request = _parsed(body)
    for name in FIELDS:
        if isinstance(request.get(name), str) and request[name]:
            return str(request[name])
    beginning = _beginning(request)
    if beginning is None:
        return ""
    text = json.dumps(beginning, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return request if isinstance(request, dict) else {}


def _beginning(request: Mapping[str, Any]) -> Any:
    """What is the same in all turns of a conversation; None if there is nothing."""
    turns = request.get("messages", request.get("input"))
    if isinstance(turns, list):
        first = [_is_of_user(turn) for turn in turns]
        end = first.index(True) + 1 if True in first else len(turns)
        return [request.get("instructions"), turns[:end]]
    prompt = turns if isinstance(turns, str) else request.get("prompt")
    if isinstance(prompt, (str, list)) and prompt:
        return [request.get("instructions"), prompt[:BEGINNING]]
    return None


def _is_of_user(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role") == "user"
