"""`draftlens serve` with clients of OpenAI: each answer is that of stock `generate`."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import uvicorn
from openai.types.chat import ChatCompletionChunk
from PIL import Image

import draftlens
from draftlens.core.sampling import row_seeds
from draftlens.models.known_pairs import path_of
from draftlens.scheduling import SchedulerLimits
from draftlens.serve.app import create_app
from draftlens.serve.options import ServeOptions
from draftlens.serve.run import bind

CLIPS = Path(path_of("embedded", "target")).parent / "clips"
NEW = 24
KEY = "a key of the test"
WAIT = 30.0


def data_url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def png(width: int = 40, height: int = 40, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


PICTURE = data_url((CLIPS / "shapes.png").read_bytes(), "image/png")
CLIP = data_url((CLIPS / "shapes.mp4").read_bytes(), "video/mp4")


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def clip(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def said(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


CHATS: Mapping[str, list[dict[str, Any]]] = {
    "picture": said(image(PICTURE), text("Describe the image.")),
    "clip": said(clip(CLIP), text("Describe the video.")),
    "two pictures": said(image(PICTURE), image(data_url(png(), "image/png")), text("Compare.")),
    "words": [{"role": "user", "content": "Describe the image."}],
    "turns": [
        {"role": "system", "content": "You describe pictures."},
        {"role": "user", "content": [image(PICTURE), text("What is at the top?")]},
        {"role": "assistant", "content": "A square."},
        {"role": "user", "content": "And at the bottom?"},
    ],
}


class Running:
    """A server in a thread."""

    def __init__(self, engine: draftlens.Engine, options: ServeOptions) -> None:
        self.app = create_app(engine, options)
        self.state = self.app.state.server
        self.scheduler = self.app.state.answering.scheduler
        self._socket = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self.app, log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=[[self._socket]])
        self._thread.start()
        while httpx.get(f"{self.url}/health").status_code != 200:
            time.sleep(0.05)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": KEY, "max_retries": 0, **options}
        )

    def post(self, path: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", timeout=WAIT, **options)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        self._socket.close()


@contextmanager
def serving(engine: draftlens.Engine, options: ServeOptions) -> Iterator[Running]:
    running = Running(engine, options)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def server(engine: draftlens.Engine) -> Iterator[Running]:
    with serving(engine, ServeOptions(batch=SchedulerLimits(max_rows=6))) as running:
        yield running


@pytest.fixture(scope="module")
def locked(engine: draftlens.Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a key, a folder of media, method `lookup` and narrow limits."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "picture.png").write_bytes((CLIPS / "shapes.png").read_bytes())
    options = ServeOptions(
        model="shapes",
        api_keys=("another", KEY),
        batch=SchedulerLimits(max_rows=1, max_waiting=1),
        max_images=2,
        media_path=folder,
        max_body_bytes=200_000,
    )
    lookup = draftlens.Engine(
        engine.target, method={"method": "lookup", "num_speculative_tokens": 4}
    )
    with serving(lookup, options) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return server.client()


@pytest.fixture(scope="module")
def stock(engine: draftlens.Engine) -> Callable[..., str]:
    """What the unmodified library answers."""
    known: dict[tuple[str, int], str] = {}

    def answer(name: str, new: int = NEW) -> str:
        if (name, new) not in known:
            given = engine.read(messages=CHATS[name]).target
            model = engine.target.backbone.model
            ids = model.generate(**given, do_sample=False, max_new_tokens=new)
            tokens = ids[0, given["input_ids"].shape[1] :]
            tokenizer = engine.target.processor.tokenizer
            known[name, new] = tokenizer.decode(tokens, skip_special_tokens=True)
        return known[name, new]

    return answer


def ask(client: Any, name: str, **options: Any) -> Any:
    given = {"model": "embedded", "messages": CHATS[name], "max_tokens": NEW, **options}
    return client.chat.completions.create(**given)


def test_an_answer(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    response = ask(client, "picture", extra_body={"draftlens": True, "chat_id": "unknown"})
    (choice,) = response.choices
    assert choice.message.content == stock("picture")
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert response.usage.completion_tokens == NEW
    assert response.usage.total_tokens == NEW + response.usage.prompt_tokens
    assert response.draftlens["lossless"] is True
    assert response.draftlens["accepted_tokens"] <= response.draftlens["draft_tokens"]


def test_a_stream(client: openai.OpenAI, server: Running, stock: Callable[..., str]) -> None:
    chunks = list(ask(client, "clip", stream=True, stream_options={"include_usage": True}))
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    *parts, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in parts) == stock("clip")
    assert [chunk.choices[0].finish_reason for chunk in parts[-2:]] == [None, "length"]
    assert last.choices == []
    assert last.usage.completion_tokens == NEW
    body = {"messages": CHATS["words"], "stream": True, "max_tokens": 2, "draftlens": True}
    response = server.post(json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    pieces = [
        event["draftlens"]["pieces"] for event in events if "pieces" in event.get("draftlens", ())
    ]
    assert "".join(piece for each in pieces for piece, _ in each) == stock("words", 2)


def test_many_at_once(server: Running, stock: Callable[..., str]) -> None:
    """Greedy answers are those of stock `generate`, seeded ones those that they have alone."""
    names = [*CHATS] * 4
    draws = {"temperature": 1.9, "top_p": 0.95, "max_tokens": 12}

    async def one(client: openai.AsyncOpenAI, number: int, name: str) -> str:
        await asyncio.sleep(0.02 * number)
        if number % 2:
            parts = [
                chunk.choices[0].delta.content or ""
                async for chunk in await ask(client, name, stream=True, temperature=0)
            ]
            return "".join(parts)
        return str((await ask(client, name)).choices[0].message.content)

    async def drawn(client: openai.AsyncOpenAI, seed: int) -> str:
        response = await ask(client, "words", seed=seed, **draws)
        return str(response.choices[0].message.content)

    async def all_of_them() -> tuple[list[str], list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
            greedy = [one(client, number, name) for number, name in enumerate(names)]
            seeded = [drawn(client, seed) for seed in range(4)]
            answers = await asyncio.gather(*greedy, *seeded)
            alone = [await drawn(client, seed) for seed in range(4)]
        return answers[: len(names)], answers[len(names) :], alone

    greedy, seeded, alone = asyncio.run(all_of_them())
    for name, answer in zip(names, greedy, strict=True):
        assert answer == stock(name), name
    assert seeded == alone
    assert len(set(seeded)) > 1
    assert server.scheduler.num_rows == server.scheduler.num_waiting == 0


def test_a_conversation_is_remembered(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    """Its second turn reads only what is new."""
    first = ask(client, "turns", messages=CHATS["turns"][:2])
    again = ask(client, "turns", extra_body={"draftlens": True})
    assert again.choices[0].message.content == stock("turns")
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert first.usage.prompt_tokens // 2 < cached < again.usage.prompt_tokens
    assert again.draftlens["cached_tokens"] == cached
    seconds = again.draftlens["seconds"]
    parts = seconds["waiting"] + seconds["prefill"] + seconds["decode"]
    assert 0 < seconds["prefill"] < parts < seconds["total"] + 0.1


def test_clients_of_different_keys_share_no_prompts(locked: Running) -> None:
    messages = [{"role": "user", "content": "Who reads this?"}]
    given = {"model": "shapes", "messages": messages, "max_tokens": 2}
    keys = (KEY, KEY, "another", "another")
    usages = [ask(locked.client(api_key=key), "words", **given).usage for key in keys]
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0


def test_several_answers(client: openai.OpenAI, engine: draftlens.Engine) -> None:
    response = ask(client, "picture", n=3, seed=7, temperature=1.0, max_tokens=8)
    texts = [choice.message.content for choice in response.choices]
    expected = [
        engine.generate(
            messages=CHATS["picture"],
            seed=[seed],
            do_sample=True,
            temperature=1.0,
            max_new_tokens=8,
        ).text
        for seed in row_seeds(7, 3)
    ]
    assert texts == expected
    assert response.usage.completion_tokens == 24
    indices = {
        chunk.choices[0].index for chunk in ask(client, "words", n=2, stream=True, max_tokens=3)
    }
    assert indices == {0, 1}


def test_stop_texts(client: openai.OpenAI, stock: Callable[..., str]) -> None:
    whole = stock("picture")
    words = whole.split(" ")
    stop = " ".join(words[5:7])
    before = whole[: whole.index(stop)]
    response = ask(client, "picture", stop=stop)
    assert response.choices[0].message.content == before
    assert response.choices[0].finish_reason == "stop"
    chunks = list(ask(client, "picture", stop=["nothing of it", stop], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == before
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_prompts_without_a_template(client: openai.OpenAI, engine: draftlens.Engine) -> None:
    response = client.completions.create(
        model="embedded", prompt=["The picture", "The"], max_tokens=6
    )
    tokenizer = engine.target.processor.tokenizer
    for choice, prompt in zip(response.choices, ["The picture", "The"], strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        tokens = engine.target.backbone.model.generate(ids, do_sample=False, max_new_tokens=6)
        assert choice.text == tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)
    given = client.completions.create(model="embedded", prompt=ids[0].tolist(), max_tokens=6)
    assert given.choices[0].text == response.choices[1].text
    streamed = client.completions.create(model="embedded", prompt="The", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == given.choices[0].text


def test_a_prediction(locked: Running, stock: Callable[..., str]) -> None:
    prediction = {"type": "content", "content": stock("picture")}
    client = locked.client()
    messages = said(image(f"file://{locked.app.state.answering.options.media_path}/picture.png"))
    messages[0]["content"].append(text("Describe the image."))
    response = ask(client, "picture", model="shapes", messages=messages, prediction=prediction)
    assert response.choices[0].message.content == stock("picture")
    details = response.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > NEW // 2
    assert details.rejected_prediction_tokens >= 0
    without = ask(client, "picture", model="shapes", messages=messages)
    assert without.usage.completion_tokens_details is None


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 9}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": said(image("http://example.com/a.png"))}, "messages.0.content.0"),
        ({"messages": said(image("http:\\\\example.com/a.png"))}, "messages.0.content.0"),
        ({"messages": said(text("x"), clip("file:///etc/passwd"))}, "messages.0.content.1"),
        ({"messages": said(image("/etc/passwd"))}, "messages.0.content.0"),
    ],
)
def test_what_is_not_supported(server: Running, change: dict[str, Any], param: str) -> None:
    response = server.post(json={"messages": CHATS["words"], **change})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert "passwd" not in error["message"]


NEUTRAL = {
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logprobs": False,
    "logit_bias": {},
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


def test_hanging_up_frees_the_row(server: Running) -> None:
    body = {"messages": CHATS["picture"], "stream": True, "max_tokens": 1000, "stop": ["@@"]}
    body["repetition_penalty"] = 1.3  # it goes on for long
    url = f"{server.url}/v1/chat/completions"
    for streams in (True, False):
        with httpx.Client(timeout=WAIT) as http:
            request = http.build_request("POST", url, json={**body, "stream": streams})
            if streams:
                response = http.send(request, stream=True)
                next(response.iter_lines())
                assert server.scheduler.num_rows == 1
                response.close()
            else:
                with pytest.raises(httpx.TimeoutException):
                    http.send(
                        http.build_request(
                            "POST", url, json={**body, "stream": False}, timeout=0.05
                        )
                    )
        until(lambda: server.scheduler.num_rows == 0 and server.state.num_open == 0)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


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


def test_figures(server: Running, client: openai.OpenAI) -> None:
    ask(client, "picture")
    figures = httpx.get(f"{server.url}/metrics").text
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert f"\nvllm:spec_decode_num_{name}_total " in figures
    assert '\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} ' in figures
    for name in (
        "draftlens_requests_waiting",
        "draftlens_rows_running",
        "draftlens_generation_tokens_total",
        "draftlens_time_to_first_token_seconds_count",
        "draftlens_time_per_output_token_seconds_bucket",
        "draftlens_cache_bytes",
        "draftlens_prompt_cache_bytes",
        "draftlens_prompt_cached_tokens_total",
        "vllm:prefix_cache_hits_total",
    ):
        assert f"\n{name}" in figures
    assert httpx.get(f"{server.url}/version").json() == {"version": draftlens.__version__}
    card = client.models.retrieve("embedded")
    assert card.max_model_len == 32768


def test_the_page_needs_no_network(server: Running) -> None:
    response = httpx.get(server.url)
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "http://" not in response.text.replace("http://www.w3.org", "")
    assert "https://" not in response.text
