"""Media that clients name or send: the allowed sources, and the processes that decode them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote, urlsplit

from PIL.Image import Image

from draftlens.core.errors import MediaError
from draftlens.documents.reading.pdf import check_installed
from draftlens.media.conversation import Conversation
from draftlens.media.names import is_data, is_url
from draftlens.media.reader import MediaReader, MediaRequest, ReadRequest
from draftlens.serve.errors import ApiError
from draftlens.serve.options import ServeOptions
from draftlens.serve.protocol import Message, Part, Text


@dataclass(frozen=True)
class _Medium:
    kind: str  # image, video or file
    source: str
    param: str  # its place in the request

    def refusal(self, cause: str, status: int = 422) -> ApiError:
        name = {"video": "clip", "image": "picture", "file": "PDF file"}[self.kind]
        return ApiError(status, f"{self.param}: the {name} {cause}", self.param, "invalid_media")


@dataclass
class _Room:
    """What a request may still hold.

    Args:
        num_bytes: of pixels.
        num_pages: of PDF files, which count as pictures.
    """

    num_bytes: int
    num_pages: int


class MediaRules:
    """Reads the media of requests within the server's rules."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._limits = replace(options.limits, hosts=options.media_hosts)
        self._readers = _Readers(options.readers, options.media_seconds)

    async def read(self, messages: Sequence[Message]) -> Conversation:
        """A conversation with its media; raises `ApiError` with the place of what is refused."""
        media = self._checked(messages)
        num_images = sum(medium.kind == "image" for medium in media.values())
        room = _Room(self._limits.max_output_bytes, self._options.max_images - num_images)
        conversation = Conversation()
        for number, message in enumerate(messages):
            content: list[dict[str, Any]] = []  # as chat templates take it
            for place, part in enumerate(_parts(message)):
                if isinstance(part, Text):
                    content.append({"type": "text", "text": part.text})
                    continue
                medium = media[number, place]
                loaded = await self._load(medium, room)
                if medium.kind == "video":
                    conversation.videos += loaded
                    content.append({"type": "video"})
                else:
                    conversation.images += loaded
                    content += [{"type": "image"}] * len(loaded)
            role = "system" if message.role == "developer" else message.role
            conversation.messages.append({"role": role, "content": content})
        return conversation

    def close(self) -> None:
        self._readers.close()

    def _checked(self, messages: Sequence[Message]) -> dict[tuple[int, int], _Medium]:
        """The media by message and place, before any of them is read."""
        media: dict[tuple[int, int], _Medium] = {}
        for number, message in enumerate(messages):
            for place, part in enumerate(_parts(message)):
                if not isinstance(part, Text):
                    kind = part.type.removesuffix("_url")
                    param = f"messages.{number}.content.{place}"
                    media[number, place] = self._allowed(_Medium(kind, part.url, param))
        counts = Counter(medium.kind for medium in media.values())
        images, videos = counts["image"] + counts["file"], counts["video"]
        for count, limit, name in (
            (images, self._options.max_images, "pictures"),
            (videos, self._options.max_videos, "clips"),
        ):
            if count > limit:
                raise ApiError(400, f"{count} {name} are more than {limit}", "messages")
        if counts["file"]:
            check_installed()
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

    async def _load(self, medium: _Medium, room: _Room) -> list[Any]:
        """The clip, the picture, or the pictures of the pages, which are subtracted from `room`."""
        max_pixels = min(self._limits.max_pixels, max(room.num_bytes // 3, 1))
        limits = replace(self._limits, max_output_bytes=room.num_bytes, max_pixels=max_pixels)
        request: MediaRequest
        if medium.kind == "file":
            # It needs pypdfium2, which may be absent.
            from draftlens.documents.reading.pdf_pages import PdfPages

            request = PdfPages(medium.source, limits, room.num_pages)
        else:
            request = ReadRequest(medium.kind, medium.source, self._options.frames, limits)
        try:
            loaded = await self._readers.read(request)
        except MediaError:
            raise medium.refusal(
                "cannot be read: it is damaged, of an unknown format, too large or not available"
            ) from None
        if isinstance(loaded, str):
            raise medium.refusal(loaded)
        pictures = loaded if isinstance(loaded, list) else [loaded]
        room.num_bytes -= sum(map(_num_bytes, pictures))
        if room.num_bytes <= 0:
            raise medium.refusal("has too many pixels, with those before it")
        if medium.kind == "file":
            room.num_pages -= len(pictures)
        return pictures


def _parts(message: Message) -> Sequence[Part]:
    if isinstance(message.content, str):
        return [Text(type="text", text=message.content)]
    return message.content


def _num_bytes(medium: Any) -> int:
    """Of the pixels of a picture or clip."""
    if isinstance(medium, Image):
        return 3 * medium.width * medium.height
    return int(medium.frames.nbytes)


class _Readers:
    """Processes that read media, each killed when a medium takes too long."""

    def __init__(self, count: int, seconds: float) -> None:
        self._all = [MediaReader(seconds) for _ in range(count)]
        self._idle: SimpleQueue[MediaReader] = SimpleQueue()
        for reader in self._all:
            self._idle.put(reader)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="draftlens-media")

    async def read(self, request: MediaRequest) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, request)

    def _read(self, request: MediaRequest) -> Any:
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
