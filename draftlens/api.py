"""What Python callers use: `load` and `Engine` for names and files, `generate` and `stream` for
transformers models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import StopStringCriteria

from draftlens.call import MethodLike, finish, open_session, streamed, text_of
from draftlens.core.errors import InputError
from draftlens.core.result import Chunk, Result
from draftlens.core.stats import Clock, Stats
from draftlens.decode.serial import decode
from draftlens.decode.session import Session
from draftlens.media import Limits
from draftlens.media.conversation import Conversation, ask, process, read, same_processing
from draftlens.methods import resolve
from draftlens.models.load import Loaded, load_pair

MAX_NEW_TOKENS = 256
"""Length of an engine's answers where the caller names none."""


def generate(
    target_model: Any,
    inputs: Mapping[str, Any],
    *,
    draft: Any = None,
    draft_inputs: Mapping[str, Any] | None = None,
    method: MethodLike = None,
    seed: int | None = None,
    do_sample: bool = False,
    **options: Any,
) -> Result:
    """Answer a batch as ``target_model.generate(**inputs, ...)`` would, in fewer target forwards.

    Args:
        target_model: an unmodified transformers vision-language model.
        inputs: what its processor returned, padded on either side.
        draft: a smaller model of the same tokenizer, or None for plain decoding.
        draft_inputs: what the draft's processor returned for the same prompt; `inputs` if None.
        method: a method, its name, or a dict of its options; by default speculative if there is a
            draft.
        seed: of the sampling noise; None draws one from torch's global generator.
        do_sample: draw tokens instead of taking the best.
        options: everything else that `generate` takes: `max_new_tokens`, `temperature`, `top_k`,
            `top_p`, `min_p`, `repetition_penalty`, `eos_token_id`, `logits_processor`,
            `stopping_criteria`, `generation_config`, a `streamer`, ...

    Raises:
        ConfigError, InputError, UnsupportedModelError, IncompatiblePairError: before any token is
            made.
    """
    drafting = {"draft": draft, "draft_inputs": draft_inputs, "method": method}
    return stream(target_model, inputs, **drafting, seed=seed, do_sample=do_sample, **options).run()


def stream(
    target_model: Any,
    inputs: Mapping[str, Any],
    *,
    draft: Any = None,
    draft_inputs: Mapping[str, Any] | None = None,
    method: MethodLike = None,
    seed: int | None = None,
    do_sample: bool = False,
    **options: Any,
) -> Stream:
    """The same as `generate`, token ids as they come; a consumer may stop at any time."""
    chosen = {"do_sample": do_sample, **options}
    return Stream(target_model, inputs, draft, draft_inputs, method, seed, Clock(Stats()), chosen)


class Stream:
    """An answer that is being made: iterate over its `Chunk`s, then read `result`.

    Whatever is wrong with the call is raised when the stream is made. That a model turns out not to
    fit is raised before the first chunk, and that a draft cannot read its `draft_inputs` when
    drafting begins, behind the first.

    Args:
        target, inputs, draft, draft_inputs, method, seed: as for `generate`.
        clock: started when the call began.
        options: everything that goes to `generate`.
        tokenizer: fills in text, if there is one.
    """

    def __init__(
        self,
        target: Any,
        inputs: Mapping[str, Any],
        draft: Any,
        draft_inputs: Mapping[str, Any] | None,
        method: MethodLike,
        seed: int | None,
        clock: Clock,
        options: Mapping[str, Any],
        tokenizer: Any = None,
    ) -> None:
        self.session: Session = open_session(
            target, inputs, draft, draft_inputs, method, seed, clock, **options
        )
        self.tokenizer = tokenizer
        chunks, streamer = decode(self.session), options.get("streamer")
        if streamer is not None:
            chunks = streamed(chunks, streamer)
        self._chunks = chunks if tokenizer is None else text_of(chunks, self._decode)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def run(self) -> Result:
        """Consume what is left and return the result."""
        for _ in self:
            pass
        return self.result

    @property
    def result(self) -> Result:
        """What has been answered so far; the whole answer once the iteration has ended."""
        texts = (
            [self._decode(row) for row in self.session.rows.tokens]
            if self.tokenizer is not None
            else []
        )
        return finish(self.session, texts)

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text


@dataclass(frozen=True)
class Inputs:
    """What the processors made of one prompt, or of a batch of them.

    Args:
        target: keyword arguments of the target's `generate`.
        draft: those of the draft, None if they are the same.
    """

    target: dict[str, Any]
    draft: dict[str, Any] | None = None


class Engine:
    """A loaded pair and a method; see `load`.

    Args:
        target, draft: models with their processors.
        method: how to decode.
    """

    def __init__(self, target: Loaded, draft: Loaded | None, method: MethodLike = None) -> None:
        self.target, self.draft = target, draft
        self.method = resolve(method, draft is not None)
        self._shared = draft is None or same_processing(target.processor, draft.processor)

    def generate(self, prompt: str | None = None, **options: Any) -> Result:
        """Answer at once; the arguments are those of `stream`."""
        return self.stream(prompt, **options).run()

    def stream(
        self,
        prompt: str | None = None,
        *,
        video: Any = None,
        images: Any = None,
        messages: Sequence[Any] | None = None,
        num_frames: int = 8,
        limits: Limits | None = None,
        method: MethodLike = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Stream:
        """Answer a prompt about a clip or images, piece by piece.

        Args:
            prompt: what to say or ask; with `messages` it stays None.
            video: path of a clip.
            images: one image or several: paths, PIL images or arrays.
            messages: a chat (or a list of chats: a batch) in the form of chat templates, media by
                path.
            num_frames: frames to sample from each clip.
            limits: what media are refused as absurd.
            method: for this call, instead of the engine's.
            seed: of the sampling noise.
            stop: strings that end the answer.
            options: everything else that transformers' `generate` takes; answers are greedy unless
                `do_sample=True`, and at most `MAX_NEW_TOKENS` long unless a length is given.

        Raises:
            MediaError, InputError, ConfigError: before any token is made.
        """
        clock = Clock(Stats())
        with clock.phase("frames"):
            inputs = self.read(
                prompt,
                video=video,
                images=images,
                messages=messages,
                num_frames=num_frames,
                limits=limits,
            )
        return self.answer(inputs, method=method, seed=seed, stop=stop, clock=clock, **options)

    def read(
        self,
        prompt: str | None = None,
        *,
        video: Any = None,
        images: Any = None,
        messages: Sequence[Any] | None = None,
        num_frames: int = 8,
        limits: Limits | None = None,
        on_frame: Callable[[int, int], None] | None = None,
    ) -> Inputs:
        """Read media and run the processors, once for both models if theirs do the same.

        Args:
            on_frame: told (frames read, frames wanted) while a clip is read; the rest as for
                `stream`.
        """
        chats = _chats(prompt, video, images, messages)
        return self.process([read(chat, num_frames, limits, on_frame) for chat in chats])

    def process(self, conversations: Sequence[Conversation]) -> Inputs:
        """Run the processors on conversations whose media are read already
        (`draftlens.media.conversation.read`)."""
        inputs = self._process(self.target, conversations)
        return Inputs(
            inputs,
            None if self._shared or not self.draft else self._process(self.draft, conversations),
        )

    def answer(
        self,
        inputs: Inputs,
        *,
        method: MethodLike = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> Stream:
        """Answer what `read` returned; arguments as for `stream`."""
        tokenizer = self.target.processor.tokenizer
        if stop is not None:
            ending = StopStringCriteria(tokenizer, [stop] if isinstance(stop, str) else list(stop))
            options |= {"stopping_criteria": [*(options.get("stopping_criteria") or []), ending]}
        options.setdefault("do_sample", False)
        if not options.keys() & {"max_length", "generation_config"}:
            options.setdefault("max_new_tokens", MAX_NEW_TOKENS)
        return Stream(
            self.target.backbone,
            inputs.target,
            self.draft.backbone if self.draft else None,
            inputs.draft,
            self.method if method is None else method,
            seed,
            clock or Clock(Stats()),
            options,
            tokenizer,
        )

    def pieces(self, ids: list[int]) -> list[str]:
        """Each token's own text, special tokens empty."""
        return [
            self.target.processor.tokenizer.decode([token], skip_special_tokens=True)
            for token in ids
        ]

    def _process(self, model: Loaded, conversations: Sequence[Conversation]) -> dict[str, Any]:
        inputs = process(model.processor, conversations)
        floating = {
            k: v
            for k, v in inputs.items()
            if hasattr(v, "is_floating_point") and v.is_floating_point()
        }
        return {
            **inputs,
            **{key: value.to(model.backbone.dtype) for key, value in floating.items()},
        }


def load(
    target: str = "embedded",
    draft: str | None = None,
    method: MethodLike = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Engine:
    """Load a target and its draft, and check that they can work together.

    Args:
        target: a folder or Hub id of any transformers vision-language model, or `embedded`, the
            pair in the package.
        draft: a smaller model of the same tokenizer; `auto` takes the one known for the target;
            None drafts with nothing (with `embedded`: with its own draft).
        method: a method, its name, or a dict of its options.
        device: such as `cpu`, `cuda:0`, or `auto` to spread a large model over devices.
        dtype: `float32`, `bfloat16`, `float16` or `auto`; by default float32 on the CPU, else the
            checkpoint's own.

    Raises:
        ConfigError, UnsupportedModelError, IncompatiblePairError: with a sentence that names the
            cause.
    """
    resolve(method, has_draft=True)  # a bad method is told before minutes of loading
    return Engine(*load_pair(target, draft, device, dtype), method)


def _chats(
    prompt: str | None, video: Any, images: Any, messages: Sequence[Any] | None
) -> list[Any]:
    if messages is None:
        if prompt is None:
            raise InputError("give a prompt or messages")
        return [ask(prompt, video, images)]
    if prompt is not None or video is not None or images is not None:
        raise InputError(
            "messages hold the whole prompt: give either them or prompt, video and images"
        )
    if not messages:
        raise InputError("messages are empty")
    return list(messages) if isinstance(messages[0], (list, tuple)) else [messages]
