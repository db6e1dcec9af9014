"""A server in a thread, and what clients send to it."""

from __future__ import annotations

import base64
import io
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
from PIL import Image

import draftlens
from draftlens.models.known_pairs import path_of
from draftlens.serve.app import create_app
from draftlens.serve.options import ServeOptions
from draftlens.serve.run import HEAD_SECONDS, SEND_SECONDS, DrainingServer, bind

CLIPS = Path(path_of("embedded", "target")).parent / "clips"
NEW = 24
KEY = "a key of the test"
START = 120.0
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


def pdf(content: bytes) -> dict[str, Any]:
    data = data_url(content, "application/pdf")
    return {"type": "file", "file": {"filename": "pages.pdf", "file_data": data}}


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

    def __init__(
        self,
        engine: draftlens.Engine,
        options: ServeOptions,
        send_seconds: float = SEND_SECONDS,
        head_seconds: float = HEAD_SECONDS,
        further: Sequence[draftlens.Engine] = (),
    ) -> None:
        self.app = create_app(engine, options, further)
        self.state = self.app.state.server
        self.scheduler = self.app.state.answering.scheduler
        self._socket = bind("127.0.0.1", 0, send_seconds)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = DrainingServer(self.app, options, head_seconds)
        self._thread = threading.Thread(target=self._server.run, args=[[self._socket]])
        self._thread.start()
        last = time.monotonic() + START
        while (health := httpx.get(f"{self.url}/health")).status_code != 200:
            assert time.monotonic() < last, health.text
            assert self.scheduler.alive
            time.sleep(0.05)

    @property
    def connections(self) -> Collection[Any]:
        return self._server.server_state.connections

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
def serving(
    engine: draftlens.Engine,
    options: ServeOptions,
    send_seconds: float = SEND_SECONDS,
    head_seconds: float = HEAD_SECONDS,
    further: Sequence[draftlens.Engine] = (),
) -> Iterator[Running]:
    running = Running(engine, options, send_seconds, head_seconds, further)
    try:
        yield running
    finally:
        running.close()


def ask(client: Any, name: str, **options: Any) -> Any:
    given = {"model": "embedded", "messages": CHATS[name], "max_tokens": NEW, **options}
    return client.chat.completions.create(**given)


def until(condition: Callable[[], bool], seconds: float = WAIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
