"""Which conversation a request belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from draftlens.serve.sessions import session_of

SYSTEM = {"role": "system", "content": "You describe pictures."}
FIRST = {
    "role": "user",
    "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "What is this?"},
    ],
}
SECOND = [{"role": "assistant", "content": "A square."}, {"role": "user", "content": "Sure?"}]


def session(headers: Mapping[str, str] | None = None, **fields: Any) -> str:
    return session_of(headers or {}, json.dumps(fields).encode())


def test_headers_and_fields_in_their_order() -> None:
    given = {"messages": [FIRST], "prompt_cache_key": "key", "user": "somebody"}
    headers = {"x-openwebui-chat-id": "chat", "x-session-id": "session"}
    assert session(headers, **given) == "chat"
    assert session({"x-session-id": "session", "x-openwebui-chat-id": ""}, **given) == "session"
    assert session(**given) == "key"
    assert session(messages=[FIRST], prompt_cache_key="", user="somebody") == "somebody"
    assert session(messages=[FIRST], user=5) == session(messages=[FIRST])


@pytest.mark.parametrize("begin", [[], [SYSTEM]])
@pytest.mark.parametrize("field", ["messages", "input"])
def test_turns_of_one_conversation(begin: list[Any], field: str) -> None:
    first = session(**{field: [*begin, FIRST]}, temperature=0)
    later = session(**{field: [*begin, FIRST, *SECOND]}, stream=True, seed=3)
    assert first == later != ""


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [SYSTEM, {"role": "user", "content": "Another question"}]},
        {"messages": [SYSTEM, {**FIRST, "content": FIRST["content"][1:]}]},  # without the picture
        {"messages": [{**SYSTEM, "content": "Be short."}, FIRST]},
        {"messages": [FIRST]},
        {"input": [SYSTEM, FIRST], "instructions": "Be short."},
        {"input": "What is this?"},
        {"prompt": "What is this?", "instructions": 1},
    ],
)
def test_other_conversations(other: dict[str, Any]) -> None:
    assert session(**other) not in ("", session(messages=[SYSTEM, FIRST]))


def test_prompts_that_begin_alike() -> None:
    begin = "once upon a time " * 20
    assert session(prompt=begin) == session(prompt=begin + "there was") != session(prompt="x")
    assert session(prompt=list(range(300))) == session(prompt=list(range(400)))
    assert session(input=begin) == session(input=begin + "there was")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"messages": 5}', b'{"prompt": ""}', b"[" * 100_000]
)
def test_nothing_to_tell_it_by(body: bytes) -> None:
    assert session_of({}, body) == ""


def test_messages_without_a_user() -> None:
    assert session(messages=[SYSTEM]) != ""
    assert session(messages=["no object"]) != session(messages=[SYSTEM])
