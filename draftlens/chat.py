"""`Chat`: a conversation about pictures and clips in which each turn reads only what is new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from draftlens.core.errors import InputError
from draftlens.core.options import whole
from draftlens.core.result import Result
from draftlens.core.stats import Clock, Stats
from draftlens.inputs import check_question
from draftlens.media import Limits
from draftlens.media.conversation import Conversation, Message, ask, read
from draftlens.streaming import Stream

AnswerChat = Callable[..., Stream]
"""Answers a conversation: called with a `Conversation`, the `clock` and further arguments of
`Engine.answer`."""


class Chat:
    """A conversation. Its media are decoded once; each answer has the tokens of `generate` on the
    whole conversation, and reads only the tokens that the prompt cache does not have.

    Args:
        answer: answers a conversation (`Engine.chat` gives the engine's).
        video, images: media of the first question, as for `Engine.stream`.
        system: the text of a system message, for models whose chat template takes one.
        num_frames: frames to sample from each clip that is a file.
        limits: bounds on the size of media.
        check: raises InputError for a conversation that the processors refuse.

    Raises:
        InputError, MediaError: the media cannot be read.

    Example:

        >>> import draftlens, numpy
        >>> picture = numpy.zeros([32, 32, 3], numpy.uint8)
        >>> chat = draftlens.load(device="cpu").chat(images=picture)
        >>> first = chat.ask("What is this?", max_new_tokens=8)
        >>> second = chat.ask("Are you sure?", max_new_tokens=8)
        >>> [message["role"] for message in chat.messages]
        ['user', 'assistant', 'user', 'assistant']
    """

    def __init__(
        self,
        answer: AnswerChat,
        *,
        video: Any = None,
        images: Any = None,
        system: str | None = None,
        num_frames: int = 8,
        limits: Limits | None = None,
        check: Callable[[Conversation], object] | None = None,
    ) -> None:
        self.num_frames = whole(1)("num_frames", num_frames)
        self.limits = limits
        self._answer = answer
        self._check = check
        self._conversation = Conversation()
        self._waiting: list[Conversation] = []  # media of the next question
        self._last: Stream | None = None  # the answer to the last question
        if system is not None:
            message = {"role": "system", "content": system}
            self._conversation = read([message], self.num_frames)
        if video is not None or images is not None:
            self.add(video=video, images=images)

    @property
    def messages(self) -> list[Message]:
        """The conversation so far in the form of chat templates, without its media. An answer that
        was not read to its end is as long as it was read."""
        return list(self._so_far().messages)

    def add(self, *, video: Any = None, images: Any = None, frames: Any = None) -> None:
        """Add media to the next question. `frames` are those of a clip that is still growing,
        uint8 ``[T, H, W, 3]``: each call adds a further clip. Raises InputError, and adds nothing,
        where the processor does not take clips of different numbers of frames."""
        if frames is not None:
            if video is not None:
                raise InputError("frames are a video: give one of both")
            video = frames
        check_question("", video, images, None, self.limits)
        added = read(ask("", video, images), self.num_frames, self.limits)
        parts = [self._conversation, *self._waiting, added]
        counts = {len(clip.frames) for part in parts for clip in part.videos}
        if self._check is not None and added.videos and len(counts) > 1:
            self._check(joined([self._so_far(), joined_turn([*self._waiting, added])]))
        self._waiting.append(added)

    def ask(self, question: str, **options: Any) -> Result:
        """Answer a question; arguments as for `stream`."""
        return self.stream(question, **options).run()

    def stream(
        self, question: str, *, video: Any = None, images: Any = None, **options: Any
    ) -> Stream:
        """Answer a question, piece by piece. The conversation has as much of the answer as is read.

        Args:
            question: the prompt.
            video, images: further media of this question, as for `Engine.stream`.
            options: further arguments of `Engine.answer`.

        Raises:
            InputError, MediaError, ConfigError: before any token is made; the conversation is as
                before then.
        """
        clock = Clock(Stats())
        with clock.phase("frames"):
            check_question(question, video, images, None, self.limits)
            new_turn = read(ask(question, video, images), self.num_frames, self.limits)
            conversation = joined([self._so_far(), joined_turn([*self._waiting, new_turn])])
        answer = self._answer(conversation, clock=clock, **options)
        self._conversation, self._waiting, self._last = conversation, [], answer
        return answer

    def _so_far(self) -> Conversation:
        """The conversation with the last answer as far as it was read."""
        if self._last is None:
            return self._conversation
        text = self._last.result.text
        message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
        return joined([self._conversation, Conversation([message])])


def joined(conversations: Sequence[Conversation]) -> Conversation:
    """The messages and media of conversations, one after the other."""
    return Conversation(
        [message for each in conversations for message in each.messages],
        [image for each in conversations for image in each.images],
        [video for each in conversations for video in each.videos],
    )


def joined_turn(parts: Sequence[Conversation]) -> Conversation:
    """One user message with the contents of conversations of one user message each."""
    both = joined(parts)
    content = [item for message in both.messages for item in message["content"]]
    content = [item for item in content if item["type"] != "text" or item["text"]]
    both.messages = [{"role": "user", "content": content}]
    return both
