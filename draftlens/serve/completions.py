"""Answers to prompts without a chat template."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.request import Request
from draftlens.serve.answering import FEW_STOPS, LARGE_TEXT, Answer, Answering
from draftlens.serve.errors import ApiError
from draftlens.serve.protocol import CompletionRequest


async def complete(answering: Answering, body: CompletionRequest, client: str) -> list[Answer]:
    """Begin to answer prompts, one answer for each. Raises `ApiError` and the errors of the
    library."""
    answering.check(body)
    began = time.perf_counter()
    prompts: list[Any] = [body.prompt]
    if isinstance(body.prompt, list) and not all(isinstance(t, int) for t in body.prompt):
        prompts = list(body.prompt)
    if not all(prompts):
        raise ApiError(400, "the prompt is empty", "prompt")
    most = answering.options.batch.max_waiting
    if len(prompts) > most:
        cause = f"{len(prompts)} prompts are more than {most}"
        raise ApiError(400, f"{cause}: send them in several requests", "prompt")
    for prompt in prompts:
        answering.check_length([prompt], "prompt")
    with answering.reading(len(prompts)):
        requests = [
            await answering.in_processing(
                client,
                partial(_request, answering, prompt, body, client),
                len(prompt) > LARGE_TEXT or len(body.stop) > FEW_STOPS,
            )
            for prompt in prompts
        ]
    answers: list[Answer] = []
    try:
        for request in requests:
            answers.append(answering.submit(request, body, client, began))
    except BaseException:
        for answer in answers:
            answer.stream.cancel()
        raise
    return answers


def _request(
    answering: Answering,
    prompt: str | list[int],
    body: CompletionRequest,
    client: str,
    engine: Engine,
) -> Request:
    if isinstance(prompt, str):
        ids = engine.target.processor.tokenizer(prompt, return_tensors="pt")["input_ids"]
    else:
        ids = torch.tensor([prompt])
    if ids.numel() == 0:
        raise ApiError(400, "the prompt is empty", "prompt")
    inputs = Inputs({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return answering.request(engine, inputs, body, client)
