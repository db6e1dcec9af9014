"""Requests that would keep others waiting, or hold much memory."""

from __future__ import annotations

import gc
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from threading import Event
from typing import Any

import av
import httpx
import numpy as np
import pytest

import draftlens
from draftlens.media.reader import MediaReader
from draftlens.scheduling import SchedulerLimits
from draftlens.serve import app, completions
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import (
    CHATS,
    CLIPS,
    Running,
    clip,
    data_url,
    image,
    png,
    said,
    serving,
    text,
    until,
)

FIRST, SECOND = "first key", "second key"
MIB = 2**20


@pytest.fixture(scope="module")
def narrow(engine: draftlens.Engine) -> Iterator[Running]:
    """A server with two keys and small bounds."""
    options = ServeOptions(
        api_keys=(FIRST, SECOND),
        batch=SchedulerLimits(max_rows=4, max_waiting=8),
        max_body_bytes=MIB,
        max_bodies_bytes=4 * MIB,
        max_media_bytes=MIB,
        max_prediction=500,
        limits=replace(ServeOptions().limits, max_output_bytes=300_000, max_side=2000),
    )
    with serving(engine, options) as running:
        yield running


def post(
    server: Running, body: dict[str, Any], path: str = "/v1/chat/completions", key: str = FIRST
) -> httpx.Response:
    return server.post(path, json=body, headers={"authorization": f"Bearer {key}"})


def refused(response: httpx.Response, param: str, status: int = 400) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert len(error["message"]) < 300
    return str(error["message"])


@pytest.fixture
def untouched(narrow: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails if a tokenizer or a processor runs."""
    calls: list[object] = []
    monkeypatch.setattr(
        type(narrow.app.state.answering), "_chat_request", lambda *each: calls.append(each)
    )
    monkeypatch.setattr(completions, "_request", lambda *each: calls.append(each))
    yield
    assert not calls


@pytest.mark.usefixtures("untouched")
def test_characters_are_counted_before_the_tokenizer_runs(
    narrow: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = narrow.app.state.answering
    assert answering._context == 32768
    monkeypatch.setattr(answering, "_context", 100)
    for content in ("a" * 801, [text("a" * 400), text("b" * 401)]):
        messages = [{"role": "user", "content": content}]
        assert "801 characters" in refused(post(narrow, {"messages": messages}), "messages")
    turns = [{"role": "user", "content": "a" * 267}] * 3
    refused(post(narrow, {"messages": turns}), "messages")
    for prompt in ("a" * 801, ["a", "b" * 801], [1] * 101):
        refused(post(narrow, {"prompt": prompt}, "/v1/completions"), "prompt")
    body = {"messages": CHATS["words"], "prediction": {"content": "a" * 501}}
    refused(post(narrow, body), "prediction")


@pytest.mark.usefixtures("untouched")
def test_prompts_are_counted_before_the_first_is_read(narrow: Running) -> None:
    message = refused(post(narrow, {"prompt": ["a"] * 9}, "/v1/completions"), "prompt")
    assert "9 prompts are more than 8" in message
    narrow.app.state.answering._num_reading += 1
    try:
        response = post(narrow, {"prompt": ["a"] * 8}, "/v1/completions")
    finally:
        narrow.app.state.answering._num_reading -= 1
    assert response.status_code == 429


def test_prompts_up_to_the_bound(narrow: Running) -> None:
    body = {"prompt": ["a"] * 4, "max_tokens": 2}
    assert len(post(narrow, body, "/v1/completions").json()["choices"]) == 4


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("size", [(2, 3000), (3000, 2), (1, 201), (201, 1)])
def test_long_and_narrow_pictures(narrow: Running, size: tuple[int, int]) -> None:
    messages = said(image(data_url(png(*size), "image/png")), text("What?"))
    refused(post(narrow, {"messages": messages}), "messages.0.content.0", 422)


@pytest.mark.usefixtures("untouched")
def test_pictures_that_are_padded_to_one_size(narrow: Running) -> None:
    wide, high = (image(data_url(png(*size), "image/png")) for size in ((1000, 10), (10, 1000)))
    message = refused(post(narrow, {"messages": said(wide, high)}), "messages", 422)
    assert "1000x1000" in message


def test_equal_pictures_need_no_padding(narrow: Running) -> None:
    wide = image(data_url(png(1000, 10), "image/png"))
    body = {"messages": said(wide, wide, text("What?")), "max_tokens": 2}
    assert post(narrow, body).status_code == 200


def test_visual_tokens_are_counted_before_the_processor_runs(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = server.app.state.answering
    for kind, name in (("image", "picture"), ("video", "clip")):
        num_visual = answering.engine.read(messages=CHATS[name]).target["input_ids"]
        token = getattr(answering.engine.target.processor, f"{kind}_token_id")
        count = int((num_visual == token).sum())
        monkeypatch.setattr(answering, "_max_visual", count)
        assert server.post(json={"messages": CHATS[name], "max_tokens": 2}).status_code == 200
        monkeypatch.setattr(answering, "_max_visual", count - 1)
        with monkeypatch.context() as patch:
            patch.setattr(draftlens.Engine, "process", None)
            message = refused(server.post(json={"messages": CHATS[name]}), "messages")
        assert f"{count} tokens" in message


def test_a_clip_without_end_in_an_address(engine: draftlens.Engine) -> None:
    """As frames with commas between them, as some servers take it, and as a file."""
    frame = (CLIPS / "shapes.png").read_bytes()
    options = ServeOptions(limits=replace(ServeOptions().limits, max_frames=20))
    with serving(engine, options) as server:
        frames = ",".join([data_url(frame, "video/jpeg").partition(",")[2]] * 100)
        joined = data_url(unindexed(21), "video/jpeg")
        for url in (f"data:video/jpeg;base64,{frames}", joined):
            response = server.post(json={"messages": said(clip(url), text("What?"))})
            refused(response, "messages.0.content.0", 422)
        fewer = data_url(unindexed(20), "video/jpeg")
        body = {"messages": said(clip(fewer), text("What?")), "max_tokens": 2}
        assert server.post(json=body).status_code == 200


def unindexed(count: int) -> bytes:
    """A clip whose frames are known only from decoding it."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as output:
        stream = output.add_stream("mpeg4", Fraction(25))
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(count):
            pixels = np.full((64, 64, 3), number, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        output.mux(stream.encode())
    return file.getvalue()


def head_of(server: Running, key: str, length: int) -> bytes:
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: {server.url.removeprefix('http://')}",
        "Content-Type: application/json",
        f"Authorization: Bearer {key}",
        f"Content-Length: {length}",
        "\r\n",
    )
    return "\r\n".join(lines).encode()


def test_all_bodies_have_a_bound(narrow: Running) -> None:
    """A key may hold half of it: the other one is answered."""
    host, port = narrow.url.removeprefix("http://").split(":")
    budget = narrow.app.state.answering.bodies
    body = {"messages": CHATS["words"], "max_tokens": 1, "user": "a" * 1000}
    with ExitStack() as stack:
        for _ in range(2):
            connection = socket.create_connection((host, int(port)))
            stack.callback(connection.close)
            connection.sendall(head_of(narrow, FIRST, MIB) + b" " * (MIB - 300))
        until(lambda: budget.held == 2 * (MIB - 300))
        response = post(narrow, body)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) > 0
        assert post(narrow, body, key=SECOND).status_code == 200
    until(lambda: budget.held == 0)
    assert post(narrow, body).status_code == 200
    assert budget.held == 0


def test_pixels_count_until_the_answer_ends(narrow: Running) -> None:
    """Without the garbage collector, which may come late."""
    budget = narrow.app.state.answering.media._pixels
    part = image(data_url(png(200, 200), "image/png"))
    body = {"messages": said(part, text("What?")), "max_tokens": 60, "stream": True}
    headers = {"authorization": f"Bearer {FIRST}"}
    url = f"{narrow.url}/v1/chat/completions"
    gc.collect()
    until(lambda: budget.held == 0)
    gc.disable()
    try:
        with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            assert budget.held == 3 * 200 * 200
            assert list(lines)[-2] == "data: [DONE]"
        until(lambda: budget.held == 0)
        for _ in range(10):  # 1.2 MB in all
            assert post(narrow, {**body, "max_tokens": 1, "stream": False}).status_code == 200
    finally:
        gc.enable()


def test_memory_is_handed_back_after_large_media(
    narrow: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = Event()
    monkeypatch.setattr("draftlens.serve.media.trim_memory", trimmed.set)
    monkeypatch.setattr("draftlens.serve.media.LARGE_PIXELS", 3 * 200 * 200)
    monkeypatch.setattr("draftlens.serve.media.TRIM_SECONDS", 0.0)
    for side in (199, 200):
        assert not trimmed.is_set()
        part = image(data_url(png(side, 200), "image/png"))
        assert post(narrow, {"messages": said(part), "max_tokens": 1}).status_code == 200
    assert trimmed.wait(30)


def test_a_key_with_slow_media_leaves_a_decoder_to_others(
    narrow: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, begun = Event(), Event()
    read = MediaReader.read

    def slow(reader: MediaReader, request: Any) -> Any:
        if request.limits.max_output_bytes and len(request.source) < 700:
            begun.set()
            assert going.wait(30)
        return read(reader, request)

    monkeypatch.setattr(MediaReader, "read", slow)
    slow_one = {"messages": said(image(data_url(png(2, 2), "image/png"))), "max_tokens": 1}
    quick_one = {"messages": said(image(data_url(png(40, 40), "image/png"))), "max_tokens": 1}
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(post(narrow, slow_one))) for _ in range(4)
    ]
    try:
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        assert post(narrow, quick_one, key=SECOND).status_code == 200
    finally:
        going.set()
        for thread in threads:
            thread.join()
    assert [answer.status_code for answer in answers] == [200] * 4


def test_long_texts_leave_a_thread_to_short_ones(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, begun = Event(), Event()
    kind = type(server.app.state.answering)
    chat_request = kind._chat_request

    def slow(self: Any, conversation: Any, body: Any, client: str, engine: Any) -> Any:
        if len(body.messages[0].content) > 20_000:
            begun.set()
            assert going.wait(30)
            raise draftlens.InputError("too long")
        return chat_request(self, conversation, body, client, engine)

    monkeypatch.setattr(kind, "_chat_request", slow)
    long = {"messages": [{"role": "user", "content": "a" * 20_001}]}
    threads = [threading.Thread(target=server.post, kwargs={"json": long}) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        body = {"messages": CHATS["words"], "max_tokens": 1}
        assert server.post(json=body).status_code == 200
    finally:
        going.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "body", [b'{"messages":[' + b"[]," * 300_000 + b"[]]}", b'{"prompt":[' + b"1," * 300_000]
)
def test_many_values(server: Running, body: bytes) -> None:
    response = server.post(content=body, headers={"content-type": "application/json"})
    assert response.json()["error"]["code"] == "too_many_values"


def test_a_long_body_is_parsed_in_a_thread(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    load = app.load_json

    def noted(*arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return load(*arguments)

    monkeypatch.setattr(app, "load_json", noted)
    for size in (10, 100_000):
        body = {"messages": CHATS["words"], "max_tokens": 1, "user": "a" * size}
        assert server.post(json=body).status_code == 200
    assert names[0] != names[1]
    assert names[1].startswith("asyncio")
