"""A first request, so that the first client does not wait for what loads late."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Iterable

from PIL import Image

from draftlens.serve.answering import Answering
from draftlens.serve.guard import ServerState
from draftlens.serve.protocol import ChatRequest, parse

_log = logging.getLogger("draftlens.serve")


async def warm_up(answerings: Iterable[Answering], state: ServerState) -> None:
    """Let each model answer a prompt; then the server is ready."""
    for answering in answerings:
        await _answer_one(answering)
    state.warm = True


async def _answer_one(answering: Answering) -> None:
    """Answer a prompt about a small picture, or without one."""
    for content in _contents(answering):
        try:
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 16}
            (answer,) = await answering.chat(parse(ChatRequest, body), "")
            with answer.stream:
                while not answer.stream.done:
                    await answer.next_round()
            break
        except Exception:
            _log.warning("a first request failed", exc_info=True)


def _contents(answering: Answering) -> list[list[dict[str, object]]]:
    text: dict[str, object] = {"type": "text", "text": "Describe the picture."}
    if "image" not in answering.engine.target.backbone.modalities:
        return [[text]]
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return [[{"type": "image_url", "image_url": {"url": url}}, text], [text]]
