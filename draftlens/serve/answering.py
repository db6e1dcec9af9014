"""From a parsed request to an answer of the scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch

from draftlens.async_answer import AsyncAnswer
from draftlens.core.names import AUTO
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.media.conversation import Conversation
from draftlens.models.prompt_cache import PromptCache, num_bytes
from draftlens.models.prompt_checks import max_positions
from draftlens.request import Request
from draftlens.scheduling import QueueFullError, check_joins
from draftlens.serve.errors import ApiError
from draftlens.serve.media import MediaRules
from draftlens.serve.options import ServeOptions
from draftlens.serve.protocol import ChatRequest, CompletionRequest, GenerationRequest
from draftlens.serve.text import RowText

REFERENCES = "references"
PREDICTION = 0
"""Index of the prediction among the references of a row."""


Work = TypeVar("Work")


class Row:
    """One choice of a response while it grows."""

    def __init__(self, decode_ids: Callable[[list[int]], str], stops: Sequence[str]) -> None:
        self.text = RowText(decode_ids, stops)
        self.num_tokens = 0
        self.finish_reason: str | None = None


class Answer:
    """The choices of a response while they grow. `predicted` is the number of tokens of the
    prediction that the draft tokens may come from."""

    def __init__(
        self, stream: AsyncAnswer, rows: list[Row], prompt: int, predicted: int = 0
    ) -> None:
        self.stream = stream
        self.rows = rows
        self.num_prompt = prompt
        self.num_predicted = predicted

    async def next_round(self) -> list[tuple[int, list[tuple[str, bool]]]]:
        """Rows that gained text, with its stretches (`RowText.add`); rows end with their last."""
        gained = []
        for chunk in await self.stream.next_round():
            row = self.rows[chunk.row]
            pieces = row.text.add(chunk.tokens, chunk.from_draft)
            row.num_tokens += len(chunk.tokens)
            sequence = self.stream.job.sequences[chunk.row]
            if sequence.finished and row.num_tokens == len(sequence.tokens):
                pieces += row.text.flush()
                full = row.num_tokens >= sequence.stopping.max_new_tokens
                ended = sequence.tokens[-1] in sequence.stopping.eos or row.text.stopped
                row.finish_reason = "length" if full and not ended else "stop"
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
    def prediction(self) -> tuple[int, int]:
        """Tokens of the prediction that the draft supplied and the answers have, and those that
        they do not have."""
        if not self.num_predicted:
            return 0, 0
        accepted = [row.accepted_by_reference[PREDICTION] for row in self.stream.job.sequences]
        return sum(accepted), sum(max(self.num_predicted - count, 0) for count in accepted)

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
            "lossless": not job.approximate,
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

    def __init__(self, engine: Engine, options: ServeOptions) -> None:
        plan = engine.plan()
        check_joins(plan)
        self.engine = engine
        self.options = options
        self.model = options.model or engine.target.name
        self.media = MediaRules(options)
        self.prompt_cache = _prompt_cache(engine, options)
        self.scheduler = engine.schedule(options.batch)
        backbone = engine.target.backbone
        self.max_positions = max_positions(backbone.text_config)
        self._samples = bool(backbone.model.generation_config.do_sample)
        self._reads_references = REFERENCES in plan.extras
        self._num_reading = 0
        # Tokenizers are used by one thread at a time.
        self._processing = ThreadPoolExecutor(1, thread_name_prefix="draftlens-processors")

    def close(self) -> None:
        self.scheduler.close()
        self._processing.shutdown(cancel_futures=True)
        self.media.close()

    async def chat(self, body: ChatRequest, client: str) -> Answer:
        """Begin to answer messages. Raises `ApiError` and the errors of the library."""
        self._check(body)
        began = time.perf_counter()
        with self._Reading(self):
            conversation = await self.media.read(body.messages)
            request, predicted = await self._in_processing(
                partial(self._chat_request, conversation, body, client)
            )
        return self._submit([request], body, client, began, predicted)[0]

    async def complete(self, body: CompletionRequest, client: str) -> list[Answer]:
        """Begin to answer prompts without a chat template, one answer for each prompt."""
        self._check(body)
        began = time.perf_counter()
        prompts: list[Any] = [body.prompt]
        if isinstance(body.prompt, list) and not all(isinstance(t, int) for t in body.prompt):
            prompts = list(body.prompt)
        if not all(prompts):
            raise ApiError(400, "the prompt is empty", "prompt")
        with self._Reading(self):
            requests = [
                await self._in_processing(partial(self._text_request, prompt, body, client))
                for prompt in prompts
            ]
        return self._submit(requests, body, client, began)

    class _Reading:
        """Counts a request that is being read among those that wait."""

        def __init__(self, answering: Answering) -> None:
            self._answering = answering

        def __enter__(self) -> None:
            waiting = self._answering._num_reading + self._answering.scheduler.num_waiting
            if waiting >= self._answering.options.batch.max_waiting:
                raise QueueFullError(f"{waiting} requests wait already")
            self._answering._num_reading += 1

        def __exit__(self, *_: object) -> None:
            self._answering._num_reading -= 1

    def _check(self, body: GenerationRequest) -> None:
        if body.model not in (None, "", AUTO, self.model):
            raise ApiError(404, "there is no such model here", "model", "model_not_found")
        if body.n > min(self.options.max_samples, self.options.batch.max_rows):
            raise ApiError(400, f"n is {body.n}, more than this server answers at once", "n")

    async def _in_processing(self, work: Callable[[], Work]) -> Work:
        return await asyncio.get_running_loop().run_in_executor(self._processing, work)

    def _chat_request(
        self, conversation: Conversation, body: ChatRequest, client: str
    ) -> tuple[Request, int]:
        """The request, and the tokens of its prediction that drafts may come from."""
        inputs = self.engine.process([conversation])
        references: dict[str, Any] = {}
        num_predicted = 0
        if body.prediction is not None and self._reads_references:
            text = body.prediction.text
            references[REFERENCES] = [[text]]
            tokenizer = self.engine.target.processor.tokenizer
            num_predicted = len(tokenizer.encode(text, add_special_tokens=False))
        return self._request(inputs, body, client, **references), num_predicted

    def _text_request(
        self, prompt: str | list[int], body: CompletionRequest, client: str
    ) -> Request:
        if isinstance(prompt, str):
            ids = self.engine.target.processor.tokenizer(prompt, return_tensors="pt")["input_ids"]
        else:
            ids = torch.tensor([prompt])
        if ids.numel() == 0:
            raise ApiError(400, "the prompt is empty", "prompt")
        inputs = Inputs({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        return self._request(inputs, body, client)

    def _request(
        self, inputs: Inputs, body: GenerationRequest, client: str, **extras: Any
    ) -> Request:
        length = int(inputs.target["input_ids"].shape[1])
        return self.engine.request(
            inputs,
            None if self.prompt_cache is None else client,
            max_new_tokens=self._max_new_tokens(length, body.length),
            seed=body.seed,
            stop=body.stop or None,
            **body.sampling(self._samples),
            **extras,
        )

    def _max_new_tokens(self, prompt: int, asked: int | None) -> int:
        limit = self.options.max_new_tokens
        if self.max_positions is not None:
            limit = min(limit, max(self.max_positions - prompt, 1))
        return limit if asked is None else min(asked, limit)

    def _submit(
        self,
        requests: list[Request],
        body: GenerationRequest,
        client: str,
        began: float,
        predicted: int = 0,
    ) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for request in requests:
                stream = AsyncAnswer(
                    self.scheduler, request, samples=body.n, client=client, began=began
                )
                rows = [Row(self.engine.text_decoder, body.stop) for _ in range(body.n)]
                length = int(request.inputs["attention_mask"].sum())
                answers.append(Answer(stream, rows, length, predicted))
        except BaseException:
            for answer in answers:
                answer.stream.cancel()
            raise
        return answers


def _prompt_cache(engine: Engine, options: ServeOptions) -> PromptCache | None:
    """The cache of the engine's models, a new one if they have none; None if it is turned off."""
    if num_bytes(options.prompt_cache) == 0:
        return None
    if engine.target.backbone.prompt_cache is None:
        engine.attach(PromptCache(options.prompt_cache))
    return engine.target.backbone.prompt_cache
