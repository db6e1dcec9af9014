"""Responses in OpenAI's form, whole or as streams of events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from draftlens.serve.answering import Answer, Row
from draftlens.serve.errors import api_error
from draftlens.serve.metrics import Metrics
from draftlens.serve.protocol import GenerationRequest, usage
from draftlens.serve.tools import Call, with_calls

DONE = "data: [DONE]\n\n"
"""The last line of a stream."""

Logprobs = dict[str, Any] | None


class ChatForm:
    """The form of responses to messages."""

    def __init__(self, model: str) -> None:
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def first(self, index: int) -> dict[str, Any] | None:
        """The event before the first text of a choice, if there is one."""
        return self._event(index, {"role": "assistant", "content": ""})

    def gained(self, index: int, text: str, logprobs: Logprobs = None) -> dict[str, Any]:
        return self._event(index, {"content": text}, logprobs=logprobs)

    def called(self, index: int, number: int, call: Call) -> dict[str, Any]:
        """The event of a call, the whole of it."""
        return self._event(index, {"tool_calls": [{"index": number, **call.given}]})

    def ended(self, index: int, reason: str) -> dict[str, Any]:
        return self._event(index, {}, reason)

    def event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "choices": choices}

    def whole(self, rows: Sequence[Row]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": _message(row),
                "logprobs": row.new_logprobs(),
                "finish_reason": row.finish_reason,
            }
            for index, row in enumerate(rows)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices}

    def _event(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: Logprobs = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self.event([choice])


class CompletionForm(ChatForm):
    """The form of responses to prompts."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._head |= {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion"}

    def first(self, index: int) -> None:
        return None

    def gained(self, index: int, text: str, logprobs: Logprobs = None) -> dict[str, Any]:
        return self._choice(index, text, None, logprobs)

    def ended(self, index: int, reason: str) -> dict[str, Any]:
        return self._choice(index, "", reason)

    def whole(self, rows: Sequence[Row]) -> dict[str, Any]:
        wholes = [
            self._choice(index, row.text.text, row.finish_reason, row.new_logprobs())
            for index, row in enumerate(rows)
        ]
        return self.event([whole["choices"][0] for whole in wholes])

    def _choice(
        self, index: int, text: str, reason: str | None, logprobs: Logprobs = None
    ) -> dict[str, Any]:
        return self.event(
            [{"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}]
        )


def _message(row: Row) -> dict[str, Any]:
    message = {"role": "assistant", "content": row.text.text, "refusal": None}
    return with_calls(message, row.text.calls) if row.text.calls else message


class Responder:
    """The answers of one request, whose choices follow each other."""

    done = DONE

    def __init__(
        self,
        answers: list[Answer],
        body: GenerationRequest,
        form: Any,
        metrics: Metrics,
        request: Request,
    ) -> None:
        self._answers = answers
        self._body = body
        self._form = form
        self._metrics = metrics
        self._log = request.state.log
        self._begun: set[int] = set()

    async def sent(self, keep_alive: float) -> Response:
        """The whole response, or one that streams from the first token on."""
        first: asyncio.Task[list[dict[str, Any]]] | None = None
        try:
            if not self._body.stream:
                return JSONResponse(await self._whole())
            # An error before the first token has a status of its own.
            first = asyncio.create_task(self._next_events())
            await asyncio.wait([first], timeout=keep_alive)
            if first.done():
                first.result()
            return _EventStream(self, self._events(first, keep_alive))
        except BaseException:
            if first is not None:
                first.cancel()
            self.close()
            raise

    def close(self) -> None:
        """End the answers, if they have not ended."""
        for answer in self._answers:
            answer.stream.cancel()

    async def _whole(self) -> dict[str, Any]:
        for answer in self._answers:
            while not answer.stream.done:
                await answer.next_round()
        whole: dict[str, Any]
        whole = self._form.whole([row for answer in self._answers for row in answer.rows])
        self._record()
        whole["usage"] = self._usage()
        if self._body.draftlens:
            whole["draftlens"] = self._details()
        return whole

    async def _next_events(self) -> list[dict[str, Any]]:
        """Events of the next round of the first answer that goes on; none at the end."""
        first = 0
        for answer in self._answers:
            if not answer.stream.done:
                events: list[dict[str, Any]] = []
                for row, pieces in await answer.next_round():
                    events += self._events_of(answer, row, first + row, pieces)
                return events
            first += len(answer.rows)
        return []

    async def _events(
        self, first: asyncio.Task[list[dict[str, Any]]], keep_alive: float
    ) -> AsyncIterator[str]:
        """Events, with a comment line in each long silence; an error is the last event."""
        task = first
        try:
            while True:
                await asyncio.wait([task], timeout=keep_alive)
                if not task.done():
                    yield ": waiting\n\n"
                    continue
                for event in task.result():
                    yield line_of(self._with_usage(event))
                if all(answer.stream.done for answer in self._answers):
                    break
                task = asyncio.create_task(self._next_events())
            self._record()
            for event in self._last_events():
                yield line_of(event)
        except Exception as error:
            yield self._failed(error)
        finally:
            task.cancel()
            self.close()
        yield self.done

    def _failed(self, error: Exception) -> str:
        return line_of(api_error(error).body())

    def _events_of(
        self, answer: Answer, row: int, index: int, pieces: list[tuple[str, bool]]
    ) -> list[dict[str, Any]]:
        events = []
        if index not in self._begun:
            self._begun.add(index)
            events.append(self._form.first(index))
        logprobs = answer.rows[row].new_logprobs()
        if pieces or (logprobs and any(logprobs.values())):
            event = self._form.gained(index, "".join(text for text, _ in pieces), logprobs)
            if self._body.draftlens:
                event["draftlens"] = {
                    "pieces": pieces,
                    "tokens": answer.num_completion,
                    "passes": answer.stream.stats.passes,
                    "speedup_estimate": answer.speedup,
                }
            events.append(event)
        text = answer.rows[row].text
        calls = text.take_calls()
        for number, call in enumerate(calls, len(text.calls) - len(calls)):
            events.append(self._form.called(index, number, call))
        reason = answer.rows[row].finish_reason
        if reason is not None:
            events.append(self._form.ended(index, reason))
        return [event for event in events if event is not None]

    def _with_usage(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "usage": None} if self._body.includes_usage else event

    def _last_events(self) -> list[dict[str, Any]]:
        if not self._body.includes_usage and not self._body.draftlens:
            return []
        event = self._form.event([])
        if self._body.includes_usage:
            event["usage"] = self._usage()
        if self._body.draftlens:
            event["draftlens"] = self._details()
        return [event]

    def _usage(self) -> dict[str, Any]:
        predictions = [answer.prediction for answer in self._answers]
        return usage(
            sum(answer.num_prompt for answer in self._answers),
            sum(answer.num_cached for answer in self._answers),
            sum(answer.num_completion for answer in self._answers),
            predictions[0],
        )

    def _details(self) -> Any:
        details = [answer.details() for answer in self._answers]
        return details[0] if len(details) == 1 else details

    def _record(self) -> None:
        for answer in self._answers:
            self._metrics.record(answer)
            self._log |= {
                "prompt_tokens": answer.num_prompt,
                "completion_tokens": answer.num_completion,
                "finish_reasons": [row.finish_reason for row in answer.rows],
                **answer.details(),
            }


def line_of(event: dict[str, Any]) -> str:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


class _EventStream(StreamingResponse):
    """Events until the last one or until the client hangs up, which ends the answers."""

    def __init__(self, answers: Responder, events: AsyncIterator[str]) -> None:
        # No proxy may hold events back.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()  # also if no event was asked for
