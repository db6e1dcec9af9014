"""`Engine`: a loaded pair that answers prompts about files."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Unpack

from draftlens.async_answer import AsyncAnswer
from draftlens.batch.map import ClipAnswer, MapOptions, map_clips
from draftlens.chat import Chat
from draftlens.core.errors import InputError
from draftlens.core.logprobs import TokenTexts
from draftlens.core.names import AUTO, IMAGE_PROMPT, VIDEO_PROMPT
from draftlens.core.options import wrong
from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec
from draftlens.core.result import Chunk, Result
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Plan
from draftlens.decoding.admission import NAMESPACE
from draftlens.decoding.observer import NO_OBSERVER, Observer, ignore
from draftlens.drafting.adaptive.history import calibrate_models
from draftlens.inputs import Inputs, Processors, check_clips, read_conversations
from draftlens.media import Limits
from draftlens.media.conversation import Conversation
from draftlens.media.given import kind_of
from draftlens.methods.base import (
    Method,
    MethodLike,
    Models,
    check_drafting,
    plan_of,
    resolve,
    with_prefill,
)
from draftlens.models.load import Loaded, as_pair
from draftlens.models.prompt_cache import PromptCache
from draftlens.options import (
    CheckedOptions,
    EngineOptions,
    GenerateOptions,
    MediaOptions,
    PromptOptions,
    completed_options,
    split_options,
)
from draftlens.passes import Compile, attach
from draftlens.pruning import Choice
from draftlens.request import Request, check_for_models
from draftlens.scheduling import Scheduler, SchedulerLimits
from draftlens.streaming import Stream, decoded

CHAT_CACHE = 2 * 2**30
"""Bound in bytes on the prompt cache of an engine that gets one for a chat."""

CALIBRATION_SECONDS = 2.0
"""Longest calibration of a pair that loads quickly, in seconds."""


class Engine:
    """A loaded pair and a method; see `load`.

    Args:
        target: a transformers vision-language model that is loaded already, or the target of
            another engine.
        draft: the same for the draft, or None.
        method: how to decode.
        processor: of the target, if that is a transformers model.
        draft_processor: of the draft; by default that of the target. A language model takes a
            tokenizer.
        prefill: how the target reads prompts, whatever the method; None for the method's own way.
        notice: why there is no draft although one was requested or expected; else empty.
        compile: what computes decode forwards; see `load`. By default (`"auto"`) models of another
            engine keep what computes theirs.
        prompt_cache: remembers prompts and media for later calls; see `load`.

    Raises:
        ConfigError, UnsupportedModelError, IncompatiblePairError: the message names the cause.

    Example:

        >>> import draftlens
        >>> engine = draftlens.load(device="cpu")
        >>> engine.generate("Hello", max_new_tokens=8).lossless
        True
    """

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        method: MethodLike = None,
        *,
        processor: Any = None,
        draft_processor: Any = None,
        prefill: Any = None,
        notice: str = "",
        compile: Compile = AUTO,
        prompt_cache: PromptCache | int | str | None = None,
    ) -> None:
        models = as_pair(target, draft, processor, draft_processor)
        self.target: Loaded = models[0]
        self.draft: Loaded | None = models[1]
        self.notice = notice
        self.method = with_prefill(resolve(method), prefill)
        check_drafting(self.method, self.models)
        self.prefill = prefill
        self.processors = Processors(self.target, self.draft)
        self.compile(compile, keeps=compile == AUTO)
        self.prompt_cache = PromptCache.of(prompt_cache)
        if self.prompt_cache is not None:
            self.attach(self.prompt_cache)

    def attach(self, prompt_cache: PromptCache) -> None:
        """Let the models use a prompt cache, for the calls that name a `namespace`."""
        for model in (self.target, self.draft):
            if model is not None:
                model.backbone.prompt_cache = prompt_cache

    def compile(
        self,
        mode: Compile = True,
        draft_quantization: str | None = None,
        quantization: str | None = None,
        keeps: bool = False,
    ) -> None:
        """Let an engine of passes compute the decode forwards of the models.

        What is compiled depends on the number of threads (`torch.set_num_threads`): set it before.

        Args:
            mode: what computes them, a name of `passes.PASSES`. True compiles the
                passes of single requests now, unless their code is on disk, and further kinds of
                passes when they first run; this takes about a minute for each. `"auto"` takes for
                each model the first engine of `passes.base.BY_PREFERENCE` that suits it, and
                compiles nothing for minutes. False takes the models' modules again.
            draft_quantization: `"int8"` gives the draft 8-bit weights in the passes of an engine
                that has them, which halves the time of a draft token and changes no answer, and
                `"none"` those of its model. None is `"int8"` with mode `"auto"` where the processor
                multiplies 8-bit integers, else `"none"`.
            quantization: of the target, whose answers become those of the rounded model: `"int8"`
                and `"int4"` for 8- or 4-bit weights and 8-bit activations, `"int8-weights"` and
                `"int4-weights"` for weights only. What is rounded is named in `Result.approximate`.
            keeps: whether models that another engine has had keep what computes their passes.

        Raises:
            ConfigError: the mode is another one, or its engine is not installed.
            UnsupportedModelError: the target cannot run with this quantization.
        """
        backbones = [model.backbone for model in (self.target, self.draft) if model is not None]
        attach(backbones, mode, draft_quantization, quantization, keeps)
        for backbone in backbones:
            backbone.passes.prepare()

    def generate(
        self, prompt: str | Sequence[str] | None = None, **options: Unpack[PromptOptions]
    ) -> Result:
        """Answer at once; the arguments are those of `stream`."""
        return self.stream(prompt, **options).run()

    def caption(self, media: Any, prompt: str | None = None, **options: Any) -> Result:
        """Describe a clip or a picture.

        Args:
            media: path or address of a file, which is taken for a picture by its ending (`.png`,
                `.jpg` and the like), else for a clip; or a PIL image, an array of a picture or of
                frames, or a list of frames.
            prompt: the instruction; by default a request for a description.
            options: further arguments of `generate`.

        Example:

            >>> import draftlens, numpy
            >>> engine = draftlens.load(device="cpu")
            >>> picture = numpy.zeros([32, 32, 3], numpy.uint8)
            >>> len(engine.caption(picture, max_new_tokens=8).tokens[0])
            8
        """
        if kind_of(media) == "image":
            return self.generate(prompt or IMAGE_PROMPT, images=media, **options)
        return self.generate(prompt or VIDEO_PROMPT, video=media, **options)

    def ask(
        self,
        question: str,
        *,
        image: Any = None,
        images: Any = None,
        video: Any = None,
        **options: Any,
    ) -> Result:
        """Answer a question about a picture, several pictures, or a clip.

        Args:
            question: the prompt.
            image: one picture, as for `stream`.
            images, video: as for `stream`.
            options: further arguments of `generate`.

        Example:

            >>> import draftlens, numpy
            >>> engine = draftlens.load(device="cpu")
            >>> picture = numpy.zeros([32, 32, 3], numpy.uint8)
            >>> engine.ask("What is this?", image=picture, max_new_tokens=8).lossless
            True
        """
        if image is not None:
            if images is not None or isinstance(image, (list, tuple)):
                raise InputError("image is one picture: give several as images")
            images = image
        return self.generate(question, images=images, video=video, **options)

    def chat(self, *, namespace: str = "", **options: Any) -> Chat:
        """Begin a conversation, each turn of which reads only what is new.

        Args:
            namespace: whose entries of the prompt cache the chat uses and adds to. An engine
                without a prompt cache gets one of `CHAT_CACHE` bytes.
            options: `video`, `images`, `system`, `num_frames` and `limits` (`draftlens.Chat`).

        Example:

            >>> import draftlens, numpy
            >>> picture = numpy.zeros([32, 32, 3], numpy.uint8)
            >>> chat = draftlens.load(device="cpu").chat(images=picture)
            >>> first = chat.ask("What is this?", max_new_tokens=8)
            >>> chat.ask("Are you sure?", max_new_tokens=8).stats.cached_tokens > 0
            True
        """
        if self.target.backbone.prompt_cache is None:
            self.attach(PromptCache(CHAT_CACHE))
        answer = partial(self._answer_chat, namespace)
        return Chat(answer, check=lambda chat: self.process([chat]), **options)

    def _answer_chat(
        self, namespace: str, conversation: Conversation, *, clock: Clock, **options: Any
    ) -> Stream:
        with clock.phase("frames"):
            inputs = self.process([conversation])
        return self.answer(inputs, clock=clock, namespace=namespace, **options)

    def stream(
        self, prompt: str | Sequence[str] | None = None, **options: Unpack[PromptOptions]
    ) -> Stream:
        """Answer a prompt about a clip or images, piece by piece.

        Args:
            prompt: the question or instruction; None with `messages`. A list of prompts is a
                batch: `video` and `images` are then lists, too, with an entry for each prompt (or
                None), which is what a single prompt takes.
            video: path or address of a clip, or its frames: uint8 ``[T, H, W, 3]`` or
                ``[T, 3, H, W]``, an array or a tensor, or a list of PIL images.
            images: one image or several: paths, addresses, PIL images, arrays or tensors.
            messages: a chat (or a list of chats: a batch) in the form of chat templates, media by
                path or in the forms above.
            num_frames: frames to sample from each clip that is a file.
            limits: bounds on the size of media; larger ones are refused.
            method: for this call, instead of the engine's.
            seed: seed of the sampling noise, or one seed for each row.
            references: texts that the answers are expected to repeat (see `draftlens.generate`).
                Without them, method `hsd` reads the images with an installed reader of pictures
                (`draftlens.documents.reading`).
            stop: strings that end the answer.
            prefill: how the target reads the prompt, for this call, instead of the method's way.
            options: options of transformers' `generate`. Answers are greedy unless `do_sample=True`
                or a `generation_config` is given, and at most `MAX_NEW_TOKENS` long unless a length
                is given.

        Raises:
            MediaError, InputError, ConfigError: before any token is made.
        """
        clock = Clock(Stats())
        media, own, generation = self._split(options)
        with clock.phase("frames"):
            inputs = self.read(prompt, **media)
        return self._stream(self._request(inputs, None, own, generation), clock)

    def read(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        video: Any = None,
        images: Any = None,
        messages: Sequence[Any] | None = None,
        num_frames: int = 8,
        limits: Limits | None = None,
        on_frame: Callable[[int, int], None] | None = None,
    ) -> Inputs:
        """Read media and run the processors, once for both models if they process alike.

        Args:
            prompt, video, images, messages, num_frames, limits: as for `stream`.
            on_frame: called with (frames read, frames wanted) while a clip is read.
        """
        return self.process(
            read_conversations(prompt, video, images, messages, num_frames, limits, on_frame)
        )

    def process(self, conversations: Sequence[Conversation]) -> Inputs:
        """Run the processors on conversations with loaded media. A draft without vision reads a
        line break in place of each medium."""
        return self.processors.process(conversations)

    def answer(
        self,
        inputs: Inputs,
        *,
        clock: Clock | None = None,
        readings: FeatureSpec = NO_FEATURES,
        observe: Observer | Callable[[Choice], None] | None = None,
        namespace: str | None = None,
        **options: Unpack[EngineOptions],
    ) -> Stream:
        """Answer the result of `read`.

        Args:
            inputs: the processors' output.
            clock: started when the request came; a new one by default.
            readings: features of the target's prefill in addition to those that the method needs.
            observe: follows the answer (`decoding.observer.Observer`); a function receives the
                choices of a pruner.
            namespace: whose entries of the prompt cache the call uses and adds to. By default it is
                "" if `load` was given a `prompt_cache`; otherwise the call uses no entries.
            options: as for `stream`.
        """
        if not isinstance(observe, Observer):
            observe = Observer(on_choice=observe or ignore)
        observer = replace(observe, readings=observe.readings | readings)
        own, generation = self._own_options(options, EngineOptions)
        return self._stream(self._request(inputs, namespace, own, generation, observer), clock)

    def _stream(self, request: Request, clock: Clock | None = None) -> Stream:
        return Stream(self.models.target, self.models.draft, request, clock)

    def request(
        self, inputs: Inputs, namespace: str | None = None, **options: Unpack[EngineOptions]
    ) -> Request:
        """The request that `answer` answers, for a scheduler; the arguments are the same."""
        request = self._request(inputs, namespace, *self._own_options(options, EngineOptions))
        check_for_models(self.models, request)
        return request

    def _request(
        self,
        inputs: Inputs,
        namespace: str | None,
        own: Mapping[str, Any],
        generation: CheckedOptions,
        observer: Observer = NO_OBSERVER,
    ) -> Request:
        """A request of an engine's own options, and those of `generate`."""
        if namespace is None and self.prompt_cache is not None:
            namespace = ""
        if namespace is not None and (rounding := self.target.backbone.passes.rounding):
            namespace = "\0".join([namespace, *rounding])  # other keys and features
        extras = {name: own[name] for name in own if name not in ("method", "prefill", "seed")}
        return Request(
            inputs=inputs.target,
            draft_inputs=inputs.draft,
            method=self._method(own.get("method"), own.get("prefill")),
            seed=own.get("seed"),
            options=generation,
            observer=observer,
            chat=self.processors.chat_source(inputs),
            extras={**extras, NAMESPACE: namespace},
        )

    async def agenerate(
        self, prompt: str | Sequence[str] | None = None, **options: Unpack[PromptOptions]
    ) -> Result:
        """`generate` for asyncio: concurrent calls are answered in one batch, each with the tokens
        that it would have alone. Cancelling the task ends the answer within a round.

        Prefills of several processes are refused.

        Example:

            >>> import asyncio, draftlens
            >>> engine = draftlens.load(device="cpu")
            >>> result = asyncio.run(engine.agenerate("Hello", max_new_tokens=8))
            >>> result.tokens == engine.generate("Hello", max_new_tokens=8).tokens
            True
        """
        answer = await self._submit(prompt, options)
        with answer:
            async for _ in answer:
                pass
        return self.token_texts.fill(answer.result)

    async def astream(
        self, prompt: str | Sequence[str] | None = None, **options: Unpack[PromptOptions]
    ) -> AsyncIterator[Chunk]:
        """`stream` for asyncio; see `agenerate`."""
        answer = await self._submit(prompt, options)
        with answer:
            async for chunk in answer:
                yield self.token_texts.fill(chunk)

    async def _submit(self, prompt: Any, options: Any) -> AsyncAnswer:
        """Read media and run the processors in a thread, and let the scheduler answer."""
        began = time.perf_counter()
        media, own, generation = self._split(options)

        def request() -> Request:
            made = self._request(self.read(prompt, **media), None, own, generation)
            check_for_models(self.models, made)
            return made

        return AsyncAnswer(
            self.scheduler, await asyncio.to_thread(request), self.text_decoder, began=began
        )

    @property
    def models(self) -> Models:
        """The models as methods take them."""
        draft = None if self.draft is None else self.draft.backbone
        return Models(self.target.backbone, draft)

    @cached_property
    def scheduler(self) -> Scheduler:
        """Answers `agenerate` and `astream` in one batch, on a thread that ends with the engine."""
        return self.schedule()

    def schedule(self, limits: SchedulerLimits | None = None) -> Scheduler:
        """A new scheduler with the engine's models, which `close` ends."""
        scheduler = Scheduler(self.models, limits)
        # It waits, also at the end of Python, where a pass in a thread would abort the process.
        weakref.finalize(self, scheduler.close)
        return scheduler

    @cached_property
    def text_decoder(self) -> Callable[[list[int]], str]:
        """Decodes ids without special tokens, with a tokenizer of its own: a tokenizer that
        decodes in one thread cannot change its settings in another."""
        return partial(decoded, self.token_texts.tokenizer)

    @cached_property
    def token_texts(self) -> TokenTexts:
        """The texts of single tokens, with the tokenizer of `text_decoder`."""
        return TokenTexts(deepcopy(self.target.processor.tokenizer))

    def map(
        self,
        clips: Iterable[Any],
        prompt: str,
        *,
        options: MapOptions | None = None,
        method: MethodLike = None,
        **generation: Unpack[GenerateOptions],
    ) -> Generator[ClipAnswer, None, None]:
        """Answer one prompt about many clips.

        Clips are read in separate processes and answered in batches of similar length. A clip that
        cannot be read or answered yields its error and stops no other clip.

        Args:
            clips: paths or addresses, or what else `stream` takes as `video`; they may be endless.
            prompt: the question or instruction.
            options: frames, limits, the size of batches, the time for reading a clip, the seed.
            method: for this call, instead of the engine's.
            generation: options of `generate`.

        Yields:
            A `ClipAnswer` for each clip, in the order in which they finish.
        """
        check_clips(clips, prompt)
        options = MapOptions() if options is None else options
        if not isinstance(options, MapOptions):
            raise wrong("options", options, "MapOptions")
        completed = self._completed(generation, None)

        def answer(chats: list[Conversation], seed: list[int] | None) -> Result:
            own = {"method": method, "seed": seed}
            return self._stream(self._request(self.process(chats), None, own, completed)).run()

        return map_clips(answer, clips, prompt, options)

    def plan(self, method: MethodLike = None) -> Plan:
        """The plan of a method, by default the engine's, with the engine's models."""
        return plan_of(self._method(method), self.models)

    def _method(self, method: MethodLike, prefill: Any = None) -> Method:
        resolved = resolve(self.method if method is None else method)
        return with_prefill(resolved, self.prefill if prefill is None else prefill)

    def calibrate(self, seconds: float = CALIBRATION_SECONDS) -> None:
        """Measure the cost of the models' forwards for at most `seconds`, unless it is known from
        this machine or the method does not use it. Otherwise costs are measured during answers."""
        calibrate_models(self.plan().timed, seconds)

    def pieces(self, ids: list[int]) -> list[str]:
        """The text of each token by itself; special tokens are empty."""
        decode = self.target.processor.tokenizer.decode
        return [decode([token], skip_special_tokens=True) for token in ids]

    def _completed(
        self, options: Mapping[str, Any], stop: str | Sequence[str] | None
    ) -> CheckedOptions:
        return completed_options(options, stop, self.target.processor.tokenizer)

    def _split(self, options: Any) -> tuple[dict[str, Any], dict[str, Any], CheckedOptions]:
        """The media of a prompt, and `_own_options`, refused before any medium is read."""
        own, generation = self._own_options(options, PromptOptions)
        media = {name: own.pop(name) for name in MediaOptions.__annotations__ if name in own}
        return media, own, generation

    def _own_options(self, options: Any, kind: Any) -> tuple[dict[str, Any], CheckedOptions]:
        """The arguments of a `TypedDict` that are the engine's own, and options of `generate`."""
        own, generation = split_options(options, kind)
        return own, self._completed(generation, own.pop("stop", None))
