"""Media that clients name or send: the allowed sources, and the processes that decode them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Timer
from typing import Any
from urllib.parse import unquote, urlsplit

from PIL.Image import Image

from draftlens.core.errors import MediaError
from draftlens.core.memory import trim_memory
from draftlens.documents.reading.pdf import check_installed
from draftlens.media.conversation import Conversation
from draftlens.media.limits import is_data, is_url
from draftlens.media.reader import MediaReader, MediaRequest, ReadRequest
from draftlens.serve.errors import ApiError
from draftlens.serve.messages import Message, Part, Text
from draftlens.serve.options import ServeOptions
from draftlens.serve.sharing import Budget, Claim, Turns
from draftlens.serve.templates import tool_fields

SMALL = 2**20
"""Most characters of an address with a picture that does not count as large work."""

LARGE_PIXELS = 16 * 2**20
"""Bytes of pixels, after which unused memory is handed back to the system."""

TRIM_SECONDS = 0.5
"""Seconds from the end of such a request, until all of its memory is unused."""


@dataclass(frozen=True)
class _Medium:
    kind: str  # image, video or file
    source: str
    param: str  # its place in the request

    @property
    def is_large(self) -> bool:
        """Whether it may take long to read."""
        return self.kind != "image" or not is_data(self.source) or len(self.source) > SMALL

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
        many = len(options.api_keys) > 1
        self._pixels = Budget(options.max_media_bytes, many, "pictures and clips")
        self._readers = _Readers(options.readers, many, options.media_seconds)

    async def read(self, messages: Sequence[Message], client: str) -> Conversation:
        """A conversation with its media, whose pixels count until it is discarded; raises
        `ApiError` with the place of what is refused."""
        media = self._checked(messages)
        num_images = sum(medium.kind == "image" for medium in media.values())
        room = _Room(self._limits.max_output_bytes, self._options.max_images - num_images)
        conversation = Conversation()
        claim = Claim(self._pixels, client)
        weakref.finalize(conversation, _discard, claim).atexit = False
        for number, message in enumerate(messages):
            content: list[dict[str, Any]] = []  # as chat templates take it
            for place, part in enumerate(_parts(message)):
                if isinstance(part, Text):
                    content.append({"type": "text", "text": part.text})
                    continue
                medium = media[number, place]
                loaded = await self._load(medium, room, client)
                claim.take(sum(map(_num_bytes, loaded)))
                if medium.kind == "video":
                    conversation.videos += loaded
                    content.append({"type": "video"})
                else:
                    conversation.images += loaded
                    content += [{"type": "image"}] * len(loaded)
            role = "system" if message.role == "developer" else message.role
            turn = {"role": role, "content": content}
            if message.tool_calls or role == "tool":
                turn |= tool_fields(message, f"messages.{number}")
            conversation.messages.append(turn)
        self._check_padded(conversation.images)
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

    def _check_padded(self, pictures: Sequence[Image]) -> None:
        """Processors may pad the pictures of a request, or their tiles, to one size."""
        widest = max((picture.width for picture in pictures), default=0)
        highest = max((picture.height for picture in pictures), default=0)
        if 3 * len(pictures) * widest * highest > self._limits.max_output_bytes:
            cause = f"{len(pictures)} pictures are too large when padded to {widest}x{highest}"
            raise ApiError(422, f"{cause}: send those of other shapes apart", "messages")

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

    async def _load(self, medium: _Medium, room: _Room, client: str) -> list[Any]:
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
            loaded = await self._readers.read(request, client, medium.is_large)
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


def _discard(claim: Claim) -> None:
    """Runs when the pixels of a request are no longer needed."""
    if claim.count >= LARGE_PIXELS:
        timer = Timer(TRIM_SECONDS, trim_memory)
        timer.daemon = True
        timer.start()
    claim.release()


def _parts(message: Message) -> Sequence[Part]:
    if isinstance(message.content, str):
        return [Text(type="text", text=message.content)]
    return message.content or ()


def texts_of(messages: Sequence[Message]) -> list[str]:
    return [part.text for each in messages for part in _parts(each) if isinstance(part, Text)]


def num_bytes_of(conversation: Conversation) -> int:
    """Of the pixels of all pictures and clips."""
    return sum(map(_num_bytes, [*conversation.images, *conversation.videos]))


def _num_bytes(medium: Any) -> int:
    """Of the pixels of a picture or clip."""
    if isinstance(medium, Image):
        return 3 * medium.width * medium.height
    return int(medium.frames.nbytes)


class _Readers:
    """Processes that read media, each killed when a medium takes too long."""

    def __init__(self, count: int, many: bool, seconds: float) -> None:
        self._all = [MediaReader(seconds) for _ in range(count)]
        self._idle: SimpleQueue[MediaReader] = SimpleQueue()
        for reader in self._all:
            self._idle.put(reader)
        self._turns = Turns(count, many, "draftlens-media")

    async def read(self, request: MediaRequest, client: str, is_large: bool) -> Any:
        return await self._turns.run(client, partial(self._read, request), is_large)

    def _read(self, request: MediaRequest) -> Any:
        reader = self._idle.get()
        try:
            return reader.read(request)
        finally:
            self._idle.put(reader)

    def close(self) -> None:
        self._turns.close(wait=False)
        for reader in self._all:
            reader.kill()
        self._turns.close()
        for reader in self._all:
            reader.close()
