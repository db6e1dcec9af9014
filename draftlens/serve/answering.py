"""From a parsed request to an answer of the scheduler."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property, partial
from queue import SimpleQueue
from typing import Any, TypeVar

from draftlens.async_answer import AsyncAnswer
from draftlens.core.names import AUTO
from draftlens.engine import Engine
from draftlens.inputs import Inputs, Processors
from draftlens.media.conversation import Conversation
from draftlens.models.checks import max_positions
from draftlens.models.prompt_cache import PromptCache, num_bytes
from draftlens.request import Request
from draftlens.scheduling import QueueFullError, check_joins
from draftlens.serve.errors import ApiError
from draftlens.serve.logprobs import ChatLogprobs, CompletionLogprobs, RowLogprobs
from draftlens.serve.media import LARGE_PIXELS, MediaRules, num_bytes_of, texts_of
from draftlens.serve.options import ServeOptions
from draftlens.serve.protocol import ChatRequest, GenerationRequest
from draftlens.serve.sharing import Budget, Turns
from draftlens.serve.steering import STEERING, steering_options
from draftlens.serve.templates import TEMPLATE, demanded_tools, template_options
from draftlens.serve.text import RowText, decoded_with_special_tokens, num_repeated
from draftlens.serve.tools import CallReader, CallText

REFERENCES = "references"

Work = TypeVar("Work")

LARGE_TEXT = 20_000
"""Characters (or ids) of a prompt whose tokenization may take longer than a tenth of a second."""

FEW_STOPS = 4
"""Stop texts; transformers compares each with the whole vocabulary, which takes 0.3 s for 150,000
tokens."""

UNBOUNDED_CONTEXT = 2**18
"""Tokens that bound the prompts of a model that states no context."""


class Row:
    """One choice of a response while it grows."""

    def __init__(self, text: RowText | CallText) -> None:
        self.text = text
        self.logprobs: RowLogprobs | None = None
        self.num_tokens = 0
        self.finish_reason: str | None = None

    def new_logprobs(self) -> dict[str, Any] | None:
        """Those of the tokens that have been handed out since the last call; None if they are not
        asked for."""
        if self.logprobs is None:
            return None
        text = self.text.row if isinstance(self.text, CallText) else self.text
        return self.logprobs.take(text, ended=self.finish_reason is not None)


Predicted = Sequence[int] | None


class Answer:
    """The choices of a response while they grow. `predicted` has the tokens of a prediction; None
    stands for one that the method does not read."""

    def __init__(
        self, stream: AsyncAnswer, rows: list[Row], prompt: int, predicted: Predicted = ()
    ) -> None:
        self.stream = stream
        self.rows = rows
        self.num_prompt = prompt
        self.predicted = predicted

    async def next_round(self) -> list[tuple[int, list[tuple[str, bool]]]]:
        """Rows that gained text, with its stretches (`RowText.add`); rows end with their last."""
        gained = []
        for chunk in await self.stream.next_round():
            row = self.rows[chunk.row]
            pieces = row.text.add(chunk.tokens, chunk.from_draft)
            row.num_tokens += len(chunk.tokens)
            if row.logprobs is not None:
                row.logprobs.add(chunk.logprobs)
            sequence = self.stream.job.sequences[chunk.row]
            if sequence.finished and row.num_tokens == len(sequence.tokens):
                pieces += row.text.flush()
                full = row.num_tokens >= sequence.stopping.max_new_tokens
                ended = sequence.tokens[-1] in sequence.stopping.eos or row.text.stopped
                reason = "tool_calls" if row.text.calls else "stop"
                row.finish_reason = "length" if full and not ended else reason
            gained.append((chunk.row, pieces))
        return gained

    @property
    def num_completion(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_cached(self) -> int:
        """Tokens of the prompt that came from the prompt cache, for the first choice; further ones
        find the whole prompt there."""
        return self.stream.job.sequences[0].cached_tokens

    @property
    def prediction(self) -> tuple[int, int] | None:
        """Tokens of the prediction that the answers repeat, and those that they do not; None if it
        is not read."""
        if self.predicted is None:
            return None
        sequences = self.stream.job.sequences
        accepted = [num_repeated(self.predicted, sequence.tokens) for sequence in sequences]
        return sum(accepted), len(self.predicted) * len(accepted) - sum(accepted)

    @property
    def speedup(self) -> float | None:
        """Estimated seconds of plain decoding in the same batch / seconds of these rounds; None if
        the costs of passes were not measured, or nothing was drafted."""
        job = self.stream.job
        if not (job.plain_seconds and self.stream.stats.drafted):
            return None
        return round(job.plain_seconds / job.round_seconds, 2)

    def details(self) -> dict[str, Any]:
        """The block `draftlens` of a response."""
        stats = self.stream.stats
        job = self.stream.job
        return {
            "lossless": job.lossless,
            "approximate": list(job.approximate),
            "cached_tokens": self.num_cached,
            "passes": stats.passes,
            "draft_tokens": stats.drafted,
            "accepted_tokens": stats.accepted,
            "mean_acceptance_length": round(stats.mean_acceptance_length, 3),
            "decode_tokens_per_second": round(stats.decode_tokens_per_second, 1),
            "speedup_estimate": self.speedup,
            "seconds": {
                "waiting": round(max(job.admitted - job.arrived, 0.0), 4),
                "prefill": round(max(job.read - job.admitted, 0.0), 4),
                "first_token": round(stats.ttft, 4),
                "decode": round(stats.decode, 4),
                "total": round(stats.e2e, 4),
            },
        }


class Answering:
    """Reads media, runs the processors and hands requests to the scheduler."""

    def __init__(
        self, engine: Engine, options: ServeOptions, beside: Answering | None = None
    ) -> None:
        """`beside` is that of another model of the server, whose readers of media it uses."""
        plan = engine.plan()
        check_joins(plan)
        self.engine = engine
        self.options = options
        self.model = options.model or engine.target.name
        many = len(options.api_keys) > 1
        self.media: MediaRules = MediaRules(options) if beside is None else beside.media
        self.bodies = Budget(options.max_bodies_bytes, many, "bodies")
        self.prompt_cache = _prompt_cache(engine, options)
        self.scheduler = engine.schedule(options.batch)
        backbone = engine.target.backbone
        self.max_positions = max_positions(backbone.text_config)
        self._samples = bool(backbone.model.generation_config.do_sample)
        self._reads_references = REFERENCES in plan.extras
        self._num_reading = 0
        self._context = self.max_positions or UNBOUNDED_CONTEXT
        self._max_visual = options.max_visual_tokens or self._context
        # Tokenizers are used by one thread at a time, and large work keeps to one thread.
        self._engines: SimpleQueue[Engine] = SimpleQueue()
        for each in (engine, _with_own_processors(engine)):
            self._engines.put(each)
        self._processing = Turns(2, many, "draftlens-processors")

    def close(self) -> None:
        self.scheduler.close()
        self._processing.close()
        self.media.close()

    async def chat(self, body: ChatRequest, client: str) -> list[Answer]:
        """Begin to answer messages. Raises `ApiError` and the errors of the library."""
        self.check(body)
        template = template_options(body) if TEMPLATE & body.model_fields_set else {}
        if "tools" in template:
            _ = self._calls  # whether the model can call tools
        texts = texts_of(body.messages) + [json.dumps(tool) for tool in template.get("tools", ())]
        self.check_length(texts, "messages")
        if body.prediction is not None and len(body.prediction.text) > self.options.max_prediction:
            cause = f"the prediction has more than {self.options.max_prediction} characters"
            raise ApiError(400, cause, "prediction")
        began = time.perf_counter()
        if body.keeps_special_tokens and body.tools:
            cause = "skip_special_tokens: false does not go with tools"
            raise ApiError(400, cause, "skip_special_tokens", "unsupported_parameter")
        with self.reading(1):
            conversation = await self.media.read(body.messages, client)
            conversation.template = {**conversation.template, **template}
            work = partial(self._chat_request, conversation, body, client)
            has_large_media = num_bytes_of(conversation) > LARGE_PIXELS
            has_large_text = sum(map(len, texts)) > LARGE_TEXT or len(body.stop) > FEW_STOPS
            is_large = has_large_media or has_large_text
            request, predicted = await self.in_processing(client, work, is_large)
        return [self.submit(request, body, client, began, predicted)]

    @contextmanager
    def reading(self, num_prompts: int) -> Iterator[None]:
        """Count prompts that are being read among those that wait."""
        waiting = self._num_reading + self.scheduler.num_waiting
        if waiting + num_prompts > self.options.batch.max_waiting:
            raise QueueFullError(f"{waiting} requests wait already")
        self._num_reading += num_prompts
        try:
            yield
        finally:
            self._num_reading -= num_prompts

    def check(self, body: GenerationRequest) -> None:
        if body.model not in (None, "", AUTO, self.model):
            raise ApiError(404, "there is no such model here", "model", "model_not_found")
        if body.n > min(self.options.max_samples, self.options.batch.max_rows):
            raise ApiError(400, f"n is {body.n}, more than this server answers at once", "n")

    def check_length(self, texts: Sequence[str | list[int]], param: str) -> None:
        """Raise `ApiError` for a prompt that cannot fit, before a tokenizer reads it."""
        for name, kind, most in (
            ("characters", str, self.options.characters_per_token * self._context),
            ("tokens", list, self._context),
        ):
            count = sum(len(text) for text in texts if isinstance(text, kind))
            if count > most:
                cause = f"the prompt has {count} {name}, more than {most}: make it shorter"
                raise ApiError(400, cause, param, "prompt_too_long")

    async def in_processing(
        self, client: str, work: Callable[[Engine], Work], is_large: bool
    ) -> Work:
        def processed() -> Work:
            engine = self._engines.get()
            try:
                return work(engine)
            finally:
                self._engines.put(engine)

        return await self._processing.run(client, processed, is_large)

    def _chat_request(
        self, conversation: Conversation, body: ChatRequest, client: str, engine: Engine
    ) -> tuple[Request, Predicted]:
        """The request, and the tokens of its prediction (see `Answer`)."""
        num_visual = engine.processors.num_visual_tokens(conversation)
        if num_visual > self._max_visual:
            cause = f"pictures and clips have {num_visual} tokens, more than {self._max_visual}"
            raise ApiError(400, f"{cause}: send fewer or smaller ones", "messages")
        inputs = engine.process([conversation])
        references: dict[str, Any] = {}
        predicted: Predicted = () if body.prediction is None else None
        if body.prediction is not None and self._reads_references:
            text = body.prediction.text
            references[REFERENCES] = [[text]]
            tokenizer = engine.target.processor.tokenizer
            predicted = tokenizer.encode(text, add_special_tokens=False)
        return self.request(engine, inputs, body, client, **references), predicted

    def request(
        self,
        engine: Engine,
        inputs: Inputs,
        body: GenerationRequest,
        client: str,
        **extras: Any,
    ) -> Request:
        length = int(inputs.target["input_ids"].shape[1])
        max_new_tokens = self._max_new_tokens(length, body.length)
        if STEERING & body.model_fields_set:
            extras |= steering_options(body, engine, length, max_new_tokens)
        form = body.form
        if isinstance(body, ChatRequest) and body.tools and (tools := demanded_tools(body)):
            form = self._calls.demanded(tools)
        return engine.request(
            inputs,
            None if self.prompt_cache is None else client,
            max_new_tokens=max_new_tokens,
            seed=body.seed,
            stop=body.stop or None,
            form=form,
            **body.sampling(self._samples),
            **body.logprob_options,
            **extras,
        )

    def _max_new_tokens(self, prompt: int, asked: int | None) -> int:
        limit = self.options.max_new_tokens
        if self.max_positions is not None:
            limit = min(limit, max(self.max_positions - prompt, 1))
        return limit if asked is None else min(asked, limit)

    def submit(
        self,
        request: Request,
        body: GenerationRequest,
        client: str,
        began: float,
        predicted: Predicted = (),
    ) -> Answer:
        stream = AsyncAnswer(self.scheduler, request, samples=body.n, client=client, began=began)
        row_text: Callable[[], RowText | CallText]
        row_text = partial(RowText, self._decoder(body), body.stop)
        if isinstance(body, ChatRequest) and body.calls_tools:
            row_text = self._calls.text_of(request, body)
        rows = [Row(row_text()) for _ in range(body.n)]
        if body.logprob_options:
            kind = ChatLogprobs if isinstance(body, ChatRequest) else CompletionLogprobs
            for row in rows:
                row.logprobs = kind(self.engine.token_texts, self.engine.text_decoder)
        length = int(request.inputs["attention_mask"].sum())
        return Answer(stream, rows, length, predicted)

    def _decoder(self, body: GenerationRequest) -> Callable[[list[int]], str]:
        """Decodes the answers of a request. With special tokens those that end answers are left
        out, as vLLM does."""
        if not body.keeps_special_tokens:
            return self.engine.text_decoder
        own = self.engine.target.backbone.model.generation_config.eos_token_id
        ends = own if isinstance(own, (list, tuple)) else [own]
        ended = {*([] if body.ignore_eos else ends), *(body.stop_token_ids or ())}
        tokenizer = self.engine.token_texts.tokenizer
        return partial(decoded_with_special_tokens, tokenizer, frozenset(ended))

    @cached_property
    def _calls(self) -> CallReader:
        return CallReader(self.engine)


def _with_own_processors(engine: Engine) -> Engine:
    """An engine with the same models, whose processors another thread may use."""
    twin = copy(engine)
    twin.target = replace(engine.target, processor=deepcopy(engine.target.processor))
    if engine.draft is not None:
        twin.draft = replace(engine.draft, processor=deepcopy(engine.draft.processor))
    twin.processors = Processors(twin.target, twin.draft)
    return twin


def _prompt_cache(engine: Engine, options: ServeOptions) -> PromptCache | None:
    """The cache of the engine's models, a new one if they have none; None if it is turned off."""
    if num_bytes(options.prompt_cache) == 0:
        return None
    if engine.target.backbone.prompt_cache is None:
        engine.attach(PromptCache(options.prompt_cache))
    return engine.target.backbone.prompt_cache
