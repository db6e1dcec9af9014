"""Captions that a draft reads in place of pictures and clips (TABED, 6)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens.media.conversation import CaptionError, ChatSource
from draftlens.media.rewriting import Medium, media_of, with_captions
from draftlens.methods.base import Models
from draftlens.methods.tabed.caption_writers import (
    CallableWriter,
    Describe,
    ModelWriter,
    Writer,
    pixels_of,
)
from draftlens.models.model_state import Slot

# `"draft"` or `"target"` for these models, a callable, or the captions themselves.
CaptionerLike = str | Describe | Sequence[str]

MODELS = ("draft", "target")

MAX_TOKENS = 32  # Length of a caption by default.
MOST_TOKENS = 1024

CHARACTERS_A_TOKEN = 8  # Bounds the length of captions that are not made of tokens.
REMEMBERED = 256  # Captions that a captioner remembers.
SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")  # Words that are written like special tokens.
SAMPLED = 8  # Each eighth row and column of a clip's frames identify it.


# Of a target: captions by pixels, by options and draft.
_CAPTIONS = Slot[dict[Hashable, dict[bytes, str]]]("captions")


@dataclass(frozen=True)
class Captioning:
    """The options of captions, as in `CaptionView`.

    Raises:
        ConfigError: a value makes no sense.
    """

    captioner: CaptionerLike = "draft"
    prompt: str | None = None
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        check_captioner(self.captioner)
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise ConfigError(f"the prompt of captions is a string, not {self.prompt!r}")
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise ConfigError(
                "the length of captions is a whole number of tokens of at least 1, "
                f"not {self.max_tokens!r}"
            )
        if self.max_tokens > MOST_TOKENS:
            raise ConfigError(
                f"max_tokens of captions must be at most {MOST_TOKENS}, not {self.max_tokens}"
            )


def check_captioner(captioner: Any) -> None:
    """Raise `ConfigError` for what cannot write captions; the message lists what can."""
    if callable(captioner):
        return
    if isinstance(captioner, str):
        fits = captioner in MODELS
    else:
        fits = isinstance(captioner, Sequence) and all(map(_is_text, captioner))
    if not fits:
        raise ConfigError(
            "a captioner is 'draft', 'target', a callable that describes a picture or clip, or a "
            f"list of captions, not {captioner!r}"
        )


def make_captions(
    options: Captioning, models: Models, remembered: dict[bytes, str] | None = None
) -> Captions:
    """What makes the captions of one session, or of several; without a draft the target writes in
    its place. `remembered` holds earlier captions, and new ones are added."""
    captioner = options.captioner
    if isinstance(captioner, str):
        writes_target = captioner == "target" or models.draft is None
        backbone = models.target if writes_target else models.draft
        assert backbone is not None
        writer = ModelWriter(backbone, writes_target, options.prompt, options.max_tokens)
        return Captioner(writer, options.max_tokens, remembered)
    if callable(captioner):
        return Captioner(CallableWriter(captioner), options.max_tokens, remembered)
    return GivenCaptions(captioner, options.max_tokens)


def captions_of(options: Captioning, models: Models) -> Captions:
    """`make_captions` with those of earlier calls with these models, so that a picture of an
    earlier turn is not described again."""
    by_options = _CAPTIONS.get_or_make(models.target.model, dict)
    drafting = None if models.draft is None else id(models.draft.model)
    key = (options, drafting)
    return make_captions(options, models, by_options.setdefault(key, {}))


def captioned(captions: Captions, source: ChatSource) -> Mapping[str, Any]:
    """The draft's inputs with captions in place of pictures and clips.

    Raises:
        CaptionError: as `GivenCaptions.of`.
        InputError: the draft's processor refuses the conversations.
    """
    lines = captions.of(source)
    pairs = zip(source.conversations, lines, strict=True)
    return source.process([with_captions(chat, of_chat) for chat, of_chat in pairs])


class GivenCaptions:
    """Captions of the caller, one for each picture and clip of a batch, in order of appearance."""

    def __init__(self, captions: Sequence[str], max_tokens: int = MAX_TOKENS) -> None:
        self._captions = [shortened_caption(caption, max_tokens) for caption in captions]

    def of(self, source: ChatSource) -> list[list[str]]:
        """The captions of each conversation; a batch without pictures and clips takes none.

        Raises:
            CaptionError: there are more or fewer captions than pictures and clips.
        """
        numbers = [len(media_of(chat)) for chat in source.conversations]
        if sum(numbers) not in (0, len(self._captions)):
            raise CaptionError(
                f"{len(self._captions)} captions are given for {sum(numbers)} pictures and clips"
            )
        remaining = iter(self._captions)
        return [list(islice(remaining, number)) for number in numbers]


class Captioner:
    """Makes one caption for each picture and clip, also if it comes again in a later turn of a
    chat. At most `REMEMBERED` captions are kept, by a digest of the pixels."""

    def __init__(
        self,
        writer: Writer,
        max_tokens: int = MAX_TOKENS,
        remembered: dict[bytes, str] | None = None,
    ) -> None:
        self._writer = writer
        self._max_tokens = max_tokens
        self._remembered = {} if remembered is None else remembered

    def of(self, source: ChatSource) -> list[list[str]]:
        remembered = dict(self._remembered)
        keys_of_chats = []
        new: dict[bytes, Medium] = {}
        for chat in source.conversations:
            keys = []
            for medium in media_of(chat):
                key = _identity(medium)
                keys.append(key)
                if key not in remembered:
                    new[key] = medium
            keys_of_chats.append(keys)
        if new:
            remembered |= self._written(new, source)
        self._remembered.update(remembered)
        num_forgotten = max(0, len(self._remembered) - REMEMBERED)
        for key in list(islice(self._remembered, num_forgotten)):
            del self._remembered[key]
        return [[remembered[key] for key in keys] for keys in keys_of_chats]

    def _written(self, new: Mapping[bytes, Medium], source: ChatSource) -> dict[bytes, str]:
        """New captions; `CaptionError` if the writer fails or returns anything but strings."""
        try:
            texts = self._writer.write(list(new.values()), source)
        except CaptionError:
            raise
        except Exception as error:
            raise CaptionError(f"the captioner failed: {type(error).__name__}: {error}") from error
        for text in texts:
            if not _is_text(text):
                raise CaptionError(
                    f"the captioner returned {type(text).__name__} in place of a string"
                )
        lines = [shortened_caption(text, self._max_tokens) for text in texts]
        return dict(zip(new, lines, strict=True))


def shortened_caption(caption: str, max_tokens: int) -> str:
    """A caption as one line of at most `max_tokens` words.

    What a tokenizer could take for one of its special tokens, such as ``<image>``, is left out: a
    placeholder without its picture ruins what a draft writes. At most `CHARACTERS_A_TOKEN` times as
    many characters are kept, for languages that put no spaces between words.
    """
    words = SPECIAL.sub(" ", caption).split()
    line = " ".join(words[:max_tokens])
    return line[: CHARACTERS_A_TOKEN * max_tokens].rstrip()


def _identity(medium: Medium) -> bytes:
    """A digest of the pixels. Frames are sampled, as hashing a long clip takes time: a clip that is
    taken for another one costs draft tokens, not the answer."""
    pixels = pixels_of(medium)
    if medium.kind == "video":
        pixels = pixels[:, ::SAMPLED, ::SAMPLED]
    digest = hashlib.blake2b(f"{medium.kind} {pixels.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


Captions = GivenCaptions | Captioner
