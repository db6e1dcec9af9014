"""Captions of pictures and clips, which a draft reads in place of their tokens (TABED, 6)."""

from __future__ import annotations

import hashlib
import re
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens.core.names import IMAGE_PROMPT, VIDEO_PROMPT
from draftlens.core.stats import Clock, Stats
from draftlens.decoding.session import Session
from draftlens.media.chat_source import CaptionError, ChatSource, Processing
from draftlens.media.conversation import Conversation
from draftlens.media.rewriting import Medium, media_of, with_captions
from draftlens.methods.base import Models
from draftlens.methods.plain import PlainDecoding
from draftlens.models.adapter import Backbone

Describe = Callable[[Any], str]
"""From a PIL image or a `draftlens.media.Video` to its caption."""

CaptionerLike = str | Describe | Sequence[str]
"""Who writes captions: `"draft"` or `"target"` for these models, a callable, or the captions
themselves."""

Phase = Callable[[], AbstractContextManager[Any]]
"""Measures a stretch of time: ``with phase(): ...``."""

MODELS = ("draft", "target")

MAX_TOKENS = 32
"""Length of a caption where none is given."""

MOST_TOKENS = 1024

PROMPTS: Mapping[str, str] = {"image": IMAGE_PROMPT, "video": VIDEO_PROMPT}
"""What a model is asked for a caption of each kind."""

CHARACTERS_A_TOKEN = 8
"""Bounds the length of captions that are not made of tokens."""

REMEMBERED = 256
"""Captions that a captioner remembers."""

SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
"""Words that are written as special tokens are."""

BATCH = 8
"""Most pictures or clips that a model describes at once."""

SAMPLED = 8
"""Each eighth row and column of a clip's frames identify it."""


# By target model: captions by pixels, by options and draft. The values hold no model, which would
# keep the target alive.
_CAPTIONS: weakref.WeakKeyDictionary[Any, dict[Hashable, dict[bytes, str]]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class Captioning:
    """The options of captions.

    Args:
        captioner: who writes them. Captions that are given stand for the pictures and clips of a
            batch in order of appearance.
        prompt: what a model is asked; None for `PROMPTS`.
        max_tokens: most tokens of a caption that a model writes; bounds others, too (`shortened`).

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
    """Refuse what cannot write captions.

    Raises:
        ConfigError: lists what can.
    """
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


class Captions(Protocol):
    """Captions of whatever conversations come, one after the other."""

    @property
    def seconds(self) -> float:
        """Time that captions have taken so far."""
        ...

    @property
    def forwards(self) -> int:
        """Decode forwards of models that wrote captions so far; a batch counts once."""
        ...

    def of(self, source: ChatSource, phase: Phase = nullcontext) -> list[list[str]]:
        """The captions of each conversation, in order of appearance.

        Args:
            source: the conversations, and what makes a model's inputs of them.
            phase: measures the time, such as a phase of a clock. It is not called where no caption
                has to be written.

        Raises:
            CaptionError: they cannot be made; the message says why.
        """
        ...


def make_captions(
    options: Captioning, models: Models, remembered: dict[bytes, str] | None = None
) -> Captions:
    """What makes the captions of one session, or of several.

    Args:
        options: of the captions.
        models: of the call. Without a draft the target writes in its place.
        remembered: captions that were written before, to which new ones are added; none by default.
    """
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
    """`make_captions`, which remember what was written in earlier calls with these models, so that
    a picture of an earlier turn is not described again."""
    by_options = _CAPTIONS.setdefault(models.target.model, {})
    drafting = None if models.draft is None else id(models.draft.model)
    key = (options, drafting)
    return make_captions(options, models, by_options.setdefault(key, {}))


def captioned(
    captions: Captions, source: ChatSource, phase: Phase = nullcontext
) -> Mapping[str, Any]:
    """The draft's inputs with captions in place of pictures and clips (for `Plan.views`).

    Args:
        captions: makes the captions.
        source: the conversations.
        phase: as for `Captions.of`.

    Raises:
        CaptionError: as `Captions.of`.
        InputError: the draft's processor refuses the conversations.
    """
    lines = captions.of(source, phase)
    pairs = zip(source.conversations, lines, strict=True)
    return source.process([with_captions(chat, of_chat) for chat, of_chat in pairs])


class GivenCaptions:
    """Captions that somebody else wrote.

    Args:
        captions: one for each picture and clip of a batch, in order of appearance.
        max_tokens: bounds their length (`shortened`).
    """

    seconds: float = 0.0
    forwards: int = 0

    def __init__(self, captions: Sequence[str], max_tokens: int = MAX_TOKENS) -> None:
        self._captions = [shortened(caption, max_tokens) for caption in captions]

    def of(self, source: ChatSource, phase: Phase = nullcontext) -> list[list[str]]:
        """See `Captions.of`. A batch without pictures and clips takes none.

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


class Writer(Protocol):
    """Describes pictures and clips."""

    forwards: int
    """Decode forwards of a model so far."""

    def write(self, media: Sequence[Medium], source: ChatSource) -> list[str]:
        """A text about each. Whatever is raised here is caught."""
        ...


class Captioner:
    """Has each picture and clip described once.

    Captions are remembered by the pixels, because a chat is read anew in every turn: a picture of
    an earlier turn, or one that appears twice, is not described again. At most `REMEMBERED`
    captions are kept, and no pixels.

    Args:
        writer: describes pictures and clips.
        max_tokens: bounds the length of captions (`shortened`).
        remembered: captions by pixels that were written before; new ones are added.

    Attributes:
        seconds: time that captions have taken so far.
    """

    def __init__(
        self,
        writer: Writer,
        max_tokens: int = MAX_TOKENS,
        remembered: dict[bytes, str] | None = None,
    ) -> None:
        self.seconds = 0.0
        self._writer = writer
        self._max_tokens = max_tokens
        self._remembered = {} if remembered is None else remembered

    @property
    def forwards(self) -> int:
        """Decode forwards of a model that writes; a batch counts once."""
        return self._writer.forwards

    def of(self, source: ChatSource, phase: Phase = nullcontext) -> list[list[str]]:
        """See `Captions.of`."""
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
            with phase(), self._measured():
                remembered |= self._written(new, source)
        self._remembered.update(remembered)
        num_forgotten = max(0, len(self._remembered) - REMEMBERED)
        for key in list(islice(self._remembered, num_forgotten)):
            del self._remembered[key]
        return [[remembered[key] for key in keys] for keys in keys_of_chats]

    def _written(self, new: Mapping[bytes, Medium], source: ChatSource) -> dict[bytes, str]:
        """New captions.

        Raises:
            CaptionError: the writer raised something, or returned something else than texts.
        """
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
        lines = [shortened(text, self._max_tokens) for text in texts]
        return dict(zip(new, lines, strict=True))

    @contextmanager
    def _measured(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


class CallableWriter:
    """A callable describes one picture or clip after the other.

    Args:
        describe: the callable.
    """

    forwards: int = 0

    def __init__(self, describe: Describe) -> None:
        self._describe = describe

    def write(self, media: Sequence[Medium], source: ChatSource) -> list[str]:
        """See `Writer`."""
        return [self._describe(medium.content) for medium in media]


class ModelWriter:
    """A model describes pictures and clips by plain greedy decoding.

    Those of one kind and size are described together: they take equally many tokens, so that no
    row of a batch waits for another one's prompt.

    Args:
        backbone: the model.
        is_target: whether its inputs are made by the target's processor.
        prompt: what it is asked; None for `PROMPTS`.
        max_tokens: length of a caption.
    """

    def __init__(
        self, backbone: Backbone, is_target: bool, prompt: str | None, max_tokens: int
    ) -> None:
        self.forwards: int = 0
        self._backbone = backbone
        self._is_target = is_target
        self._prompt = prompt
        self._max_tokens = max_tokens

    def write(self, media: Sequence[Medium], source: ChatSource) -> list[str]:
        """See `Writer`.

        Raises:
            CaptionError: the model cannot see something of this kind, or the target is to write
                and its processor is not known.
        """
        processing = self._processing(source)
        alike: dict[Any, list[int]] = {}
        for index, medium in enumerate(media):
            if medium.kind not in self._backbone.modalities:
                raise CaptionError(f"{self._backbone.name} takes no {medium.kind}")
            alike.setdefault((medium.kind, _pixels(medium).shape), []).append(index)
        texts = [""] * len(media)
        for indices in alike.values():
            for first in range(0, len(indices), BATCH):
                batch = indices[first : first + BATCH]
                answers = self._answers([media[index] for index in batch], processing)
                for index, answer in zip(batch, answers, strict=True):
                    texts[index] = answer
        return texts

    def _processing(self, source: ChatSource) -> Processing:
        if not self._is_target:
            return Processing(source.process, source.decode)
        if source.target is None:
            raise CaptionError("the target's processor is not known")
        return source.target

    def _answers(self, media: Sequence[Medium], processing: Processing) -> list[str]:
        """What the model says of pictures, or clips, of one size."""
        inputs = processing.process([self._question(medium) for medium in media])
        prepared = self._backbone.prepare_prompt(inputs, self._max_tokens)
        plan = PlainDecoding().plan(Models(self._backbone))
        session = Session(self._backbone, plan, Clock(Stats()))
        sequences = session.add(prepared, seeds=[0] * len(media))
        for _ in plan.schedule(session):
            pass
        self.forwards += session.stats.target_forwards
        return [processing.decode(sequence.tokens) for sequence in sequences]

    def _question(self, medium: Medium) -> Conversation:
        """One turn about a picture or clip."""
        prompt = PROMPTS[medium.kind] if self._prompt is None else self._prompt
        items = [{"type": medium.kind}, {"type": "text", "text": prompt}]
        conversation = Conversation([{"role": "user", "content": items}])
        if medium.kind == "video":
            conversation.videos.append(medium.content)
        else:
            conversation.images.append(medium.content)
        return conversation


def shortened(caption: str, max_tokens: int) -> str:
    """A caption as one line of limited length.

    What a tokenizer could take for one of its special tokens, such as ``<image>``, is left out: a
    placeholder without its picture ruins what a draft writes.

    Args:
        caption: in any number of lines.
        max_tokens: most words. At most `CHARACTERS_A_TOKEN` times as many characters are kept, for
            languages that put no spaces between words.
    """
    words = SPECIAL.sub(" ", caption).split()
    line = " ".join(words[:max_tokens])
    return line[: CHARACTERS_A_TOKEN * max_tokens].rstrip()


def _identity(medium: Medium) -> bytes:
    """A digest of the pixels.

    Frames are sampled, as hashing a long clip takes time: a clip that is taken for another one
    costs guesses and no answer.
    """
    pixels = _pixels(medium)
    if medium.kind == "video":
        pixels = pixels[:, ::SAMPLED, ::SAMPLED]
    digest = hashlib.blake2b(f"{medium.kind} {pixels.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _pixels(medium: Medium) -> Any:
    """The pixels of a picture, uint8 ``[H, W, 3]``, or of a clip's frames, ``[T, H, W, 3]``."""
    if medium.kind == "video":
        return np.asarray(medium.content.frames)
    return np.asarray(medium.content)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
