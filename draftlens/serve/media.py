"""Pictures and clips of strangers: where they may come from, and processes that decode them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote, urlsplit

from draftlens.core.errors import MediaError
from draftlens.media.conversation import Conversation
from draftlens.media.names import is_data, is_url
from draftlens.media.reader import MediaReader, ReadRequest
from draftlens.serve.errors import ApiError
from draftlens.serve.options import ServeOptions
from draftlens.serve.protocol import Message, Text


@dataclass(frozen=True)
class _Medium:
    kind: str
    source: str
    param: str  # its place in the request

    def refusal(self, cause: str, status: int = 422) -> ApiError:
        name = {"video": "clip", "image": "picture"}[self.kind]
        return ApiError(status, f"{self.param}: the {name} {cause}", self.param, "invalid_media")


class MediaRules:
    """Reads the media of requests within the server's rules."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._limits = replace(options.limits, hosts=options.media_hosts)
        self._readers = _Readers(options.readers, options.media_seconds)

    async def read(self, messages: Sequence[Message]) -> Conversation:
        """A conversation with its media; raises `ApiError` with the place of what is refused."""
        media = self._checked(messages)
        conversation = Conversation()
        left = self._limits.max_output_bytes
        for number, message in enumerate(messages):
            conversation.messages.append(_plain(message))
            for place, _ in enumerate(message.content):
                medium = media.get((number, place))
                if medium is None:
                    continue
                loaded = await self._load(medium, left)
                if medium.kind == "image":
                    conversation.images.append(loaded)
                    left -= loaded.width * loaded.height * 3
                else:
                    conversation.videos.append(loaded)
                    left -= loaded.frames.nbytes
                if left <= 0:
                    raise medium.refusal("has too many pixels, with those before it")
        return conversation

    def close(self) -> None:
        self._readers.close()

    def _checked(self, messages: Sequence[Message]) -> dict[tuple[int, int], _Medium]:
        """The media by message and place, before any of them is read."""
        media: dict[tuple[int, int], _Medium] = {}
        for number, message in enumerate(messages):
            if isinstance(message.content, str):
                continue
            for place, part in enumerate(message.content):
                if not isinstance(part, Text):
                    kind = part.type.removesuffix("_url")
                    param = f"messages.{number}.content.{place}"
                    media[number, place] = self._allowed(_Medium(kind, part.url, param))
        for kind, most in (
            ("image", self._options.max_images),
            ("video", self._options.max_videos),
        ):
            count = sum(medium.kind == kind for medium in media.values())
            if count > most:
                raise ApiError(
                    400, f"{count} media of kind {kind} are more than {most}", "messages"
                )
        return media

    def _allowed(self, medium: _Medium) -> _Medium:
        source = medium.source
        if is_data(source):
            return medium
        if source.lower().startswith("file:"):
            return replace(medium, source=self._file(medium))
        if is_url(source) and self._options.media_hosts:
            return medium
        allowed = "data: addresses"
        if self._options.media_hosts:
            allowed += " and addresses of some hosts"
        raise medium.refusal(f"is not read from there: this server reads {allowed}", 400)

    def _file(self, medium: _Medium) -> str:
        """The path of a file below the folder whose files clients may name."""
        folder = self._options.media_path
        try:
            if folder is None:
                raise ValueError
            root = folder.resolve(strict=True)
            path = Path(unquote(urlsplit(medium.source).path)).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise medium.refusal("is not a file that this server reads", 400) from None
        if not path.is_relative_to(root):
            raise medium.refusal("is not a file that this server reads", 400)
        return str(path)

    async def _load(self, medium: _Medium, left: int) -> Any:
        """A medium of at most `left` bytes of pixels."""
        most = min(self._limits.max_pixels, max(left // 3, 1))
        limits = replace(self._limits, max_output_bytes=left, max_pixels=most)
        request = ReadRequest(medium.kind, medium.source, self._options.frames, limits)
        try:
            return await self._readers.read(request)
        except MediaError:
            raise medium.refusal(
                "cannot be read: it is damaged, of an unknown format, too large or not available"
            ) from None


def _plain(message: Message) -> dict[str, Any]:
    """A message as chat templates take it; media are in lists of their own."""
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str):
        content = [{"type": "text", "text": message.content}]
    else:
        content = [
            {"type": "text", "text": part.text}
            if isinstance(part, Text)
            else {"type": part.type.removesuffix("_url")}
            for part in message.content
        ]
    return {"role": role, "content": content}


class _Readers:
    """Processes that read media, each killed when a medium takes too long."""

    def __init__(self, count: int, seconds: float) -> None:
        self._all = [MediaReader(seconds) for _ in range(count)]
        self._idle: SimpleQueue[MediaReader] = SimpleQueue()
        for reader in self._all:
            self._idle.put(reader)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="draftlens-media")

    async def read(self, request: ReadRequest) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, request)

    def _read(self, request: ReadRequest) -> Any:
        reader = self._idle.get()
        try:
            return reader.read(request)
        finally:
            self._idle.put(reader)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for reader in self._all:
            reader.kill()
        self._threads.shutdown()
        for reader in self._all:
            reader.close()
