"""What a server refuses, and how it says so."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from draftlens.core.errors import ConfigError
from draftlens.serve.run import bind
from tests.e2e.serve.running import (
    CHATS,
    KEY,
    WAIT,
    Running,
    ask,
    clip,
    data_url,
    image,
    png,
    said,
    text,
    until,
)

TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"n": 9}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"skip_special_tokens": 0}, "skip_special_tokens"),
        ({"temperature": 1e-38}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role"),
        ({"messages": said(image("http://example.com/a.png"))}, "messages.0.content.0"),
        ({"messages": said(image("http:\\\\example.com/a.png"))}, "messages.0.content.0"),
        ({"messages": said(text("x"), clip("file:///etc/passwd"))}, "messages.0.content.1"),
        ({"messages": said(image("/etc/passwd"))}, "messages.0.content.0"),
    ],
)
def test_what_is_not_supported(server: Running, change: dict[str, Any], param: str | None) -> None:
    response = server.post(json={"messages": CHATS["words"], **change})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert "passwd" not in error["message"]


HALF = "\\ud83d"


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        ("/v1/chat/completions", {"stop": HALF}, "stop"),
        ("/v1/chat/completions", {"stop": ["a", f"a{HALF}"]}, "stop"),
        ("/v1/chat/completions", {"messages": said(text(HALF))}, "messages"),
        ("/v1/chat/completions", {"messages": said({"type": HALF})}, "messages"),
        ("/v1/chat/completions", {"prediction": {"content": HALF}}, "prediction"),
        ("/v1/completions", {"prompt": HALF}, "prompt"),
        ("/v1/completions", {"prompt": ["a", HALF]}, "prompt"),
        ("/v1/responses", {"input": HALF}, "input"),
        ("/v1/responses", {"input": [{"role": "user", "content": HALF}]}, "input"),
    ],
)
def test_half_a_character(server: Running, path: str, change: dict[str, Any], param: str) -> None:
    """JSON may escape half of a surrogate pair, which no tokenizer takes."""
    asked = "input" if path == "/v1/responses" else "prompt"
    body = json.dumps({"messages": CHATS["words"], asked: "a", "max_tokens": 1, **change})
    content = body.replace("\\\\", "\\").encode()
    response = server.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert "surrogate pair" in error["message"]
    whole = body.replace(json.dumps(HALF)[1:-1], "\\ud83d\\ude00").encode()
    response = server.post(path, content=whole, headers={"content-type": "application/json"})
    assert "surrogate pair" not in response.text


NEUTRAL = {
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logprobs": False,
    "logit_bias": {},
    "ignore_eos": False,
    "min_tokens": 0,
    "continue_final_message": False,
    "user": "somebody",
    "metadata": {"session": "1"},
    "parallel_tool_calls": None,
    "n": None,
    "max_completion_tokens": 3,
    "max_tokens": 500,
}


def test_values_that_change_nothing(server: Running, stock: Callable[..., str]) -> None:
    response = server.post(json={"messages": CHATS["words"], **NEUTRAL})
    assert response.json()["choices"][0]["message"]["content"] == stock("words", 3)


def test_bodies_that_are_none(server: Running, locked: Running) -> None:
    json_type = {"content-type": "application/json"}
    assert server.post(content=b"{", headers=json_type).status_code == 400
    assert server.post(content=b"[" * 100_000, headers=json_type).status_code == 400
    assert server.post(content=b'{"temperature": NaN}', headers=json_type).status_code == 400
    assert server.post(json=[]).status_code == 400
    assert server.post(content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    key = {"authorization": f"Bearer {KEY}", **json_type}
    assert locked.post(content=b" " * 200_001, headers=key).status_code == 413
    chunks = iter([b" " * 50_000] * 5)
    assert locked.post(content=chunks, headers=key).status_code == 413
    assert server.post("/v1/nothing", json={}).status_code == 404
    assert httpx.get(f"{server.url}/v1/chat/completions").status_code == 405


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "application/octet-stream",
        "text/json",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_forms_are_refused_unread(server: Running, path: str, kind: str) -> None:
    """CVE-2026-40347, CVE-2026-42561 and CVE-2026-54283 concern readers of forms."""
    content = b'--x\r\nContent-Disposition: form-data; name="messages"\r\n\r\n[]\r\n--x--\r\n'
    response = server.post(path, content=content, headers={"content-type": kind})
    assert response.status_code == 415
    assert response.json()["error"]["message"] == "the body has the type application/json"


def test_the_page_runs_its_own_script_only(server: Running) -> None:
    response = httpx.get(server.url)
    policy = response.headers["content-security-policy"]
    assert "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert not re.search(r"<[^>]*\s(style|on\w+)=", response.text)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"


BAD_MEDIA = {
    "no picture": data_url(b"no picture", "image/png"),
    "cut off": data_url(png()[:200], "image/png"),
    "no base64": "data:image/png;base64,%%%",
    "plain": "data:text/plain,hello",
    "empty": "data:image/png;base64,",
    "a script": data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
    "huge": data_url(
        png(1, 1).replace(b"\0\0\0\x01\0\0\0\x01", b"\0\1\0\0\0\1\0\0", 1), "image/png"
    ),
}


@pytest.mark.parametrize("name", BAD_MEDIA)
def test_media_that_cannot_be_read(server: Running, name: str) -> None:
    for part in (image(BAD_MEDIA[name]), clip(BAD_MEDIA[name])):
        response = server.post(json={"messages": said(text("What?"), part), "stream": True})
        assert response.status_code == 422, response.text
        error = response.json()["error"]
        assert error["param"] == "messages.0.content.1"
        assert error["type"] == "unprocessable_entity_error"
        for word in ("0x", "/tmp", "PIL", "FFmpeg", "Errno"):
            assert word not in error["message"]


def test_a_picture_of_one_pixel(client: openai.OpenAI) -> None:
    messages = said(image(data_url(png(1, 1), "image/png")), text("What?"))
    assert ask(client, "picture", messages=messages, max_tokens=2).choices


def test_files_outside_of_the_folder_and_too_many_pictures(locked: Running, tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    folder = locked.app.state.answering.options.media_path
    (tmp_path / "secret.png").write_bytes(png())
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    for path in (tmp_path / "secret.png", folder / "link.png", folder / "../x.png", folder):
        body = {"messages": said(image(f"file://{path}"))}
        response = locked.post(json=body, headers=headers)
        assert response.status_code in (400, 422)
        assert str(tmp_path) not in response.text
    body = {"messages": said(*[image(data_url(png(), "image/png"))] * 3)}
    assert locked.post(json=body, headers=headers).json()["error"]["param"] == "messages"


def test_keys(locked: Running) -> None:
    assert httpx.get(f"{locked.url}/health").status_code == 200
    for path in ("/", "/metrics", "/version", "/v1/models", "/openapi.json"):
        assert httpx.get(f"{locked.url}{path}").status_code == 401, path
    with pytest.raises(openai.AuthenticationError):
        locked.client(api_key="wrong").models.list()
    assert [model.id for model in locked.client().models.list()] == ["shapes"]
    browser = httpx.get(locked.url, headers={"accept": "text/html"})
    assert browser.headers["www-authenticate"].startswith("Basic")
    assert httpx.get(locked.url, auth=("any name", KEY)).status_code == 200
    with pytest.raises(openai.NotFoundError, match="no such model"):
        ask(locked.client(), "words", model="gpt-5")


def test_a_full_queue_and_the_end(locked: Running) -> None:
    """One row runs, one request waits, and the third is refused; then the server closes."""
    client = locked.client()
    long = {
        "model": "shapes",
        "stream": True,
        "max_tokens": 1000,
        "extra_body": {"repetition_penalty": 1.4},
    }
    first = ask(client, "words", **long)
    next(iter(first))
    answers: list[Any] = []
    second = threading.Thread(
        target=lambda: answers.append(ask(client, "words", model="shapes", max_tokens=2))
    )
    second.start()
    until(lambda: locked.scheduler.num_waiting == 1)
    with pytest.raises(openai.RateLimitError) as full:
        ask(client, "words", model="shapes")
    assert int(full.value.response.headers["retry-after"]) > 0
    locked.state.closing = True
    try:
        with pytest.raises(openai.InternalServerError) as closing:
            ask(client, "words", model="shapes")
        assert closing.value.status_code == 503
        assert httpx.get(f"{locked.url}/health").status_code == 503
    finally:
        locked.state.closing = False
        first.close()
        second.join(WAIT)
    assert answers[0].choices[0].finish_reason == "length"


def test_an_error_in_a_stream(
    client: openai.OpenAI, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftlens.decoding.session import Session

    accept = Session.accept
    rounds = iter(range(1000))

    def fail(session: Session, verdict: Any) -> Any:
        if next(rounds) == 3:
            raise RuntimeError("at 0xdeadbeef in /root")
        return accept(session, verdict)

    monkeypatch.setattr(Session, "accept", fail)
    with pytest.raises(openai.APIError, match="send the request again") as raised:
        list(ask(client, "words", stream=True, max_tokens=200))
    assert "0x" not in str(raised.value)
    assert ask(client, "words", max_tokens=3).choices
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            bind("127.0.0.1", port)
    assert str(refused.value) == (
        f"port {port} of 127.0.0.1 is taken by another program: name another with --port, or 0 for "
        "a free one"
    )
