"""The class that lmms-eval makes for `--model draftlens`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.protocol import ChatMessages
from tqdm import tqdm

from draftlens.cli.options import NO_DRAFT
from draftlens.core.names import AUTO, EMBEDDED
from draftlens.core.options import whole
from draftlens.load_engine import load
from draftlens_lab.lmms.answering import STOCK, Answer, Answering
from draftlens_lab.lmms.requests import Message, batches, check_chat, generation, method_of

_log = logging.getLogger("draftlens")


class DraftlensModel(lmms):  # type: ignore[misc]
    """A target and its draft, loaded by `draftlens.load`.

    Args:
        target, draft: names or folders; the draft `none` loads none.
        method: the name of a method, JSON of its options, or `stock` for the target's `generate`.
        device, dtype: as for `draftlens.load`.
        batch_size: requests that are answered together.
        max_batch_size: of the harness; not used.
        max_new_tokens: length of answers for tasks that name none.
        num_frames: frames to sample from each clip.
    """

    is_simple = False

    def __init__(
        self,
        target: str = EMBEDDED,
        draft: str = AUTO,
        method: Any = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        max_new_tokens: int = 256,
        num_frames: int = 8,
    ) -> None:
        super().__init__()
        size = int(batch_size) if str(batch_size).isdecimal() else batch_size
        self.batch_size = whole(1)("batch_size", size)
        self.max_new_tokens = whole(1)("max_new_tokens", max_new_tokens)
        num_frames = whole(1)("num_frames", num_frames)
        is_stock = method == STOCK
        has_draft = not is_stock and draft != NO_DRAFT
        engine = load(
            target,
            draft if has_draft else None,
            method="plain" if is_stock else method_of(method),
            device=device,
            dtype=dtype,
        )
        self.answering = Answering(engine, is_stock, num_frames)

    @property
    def device(self) -> Any:
        """The target's device, for runs with several processes."""
        return self.answering.engine.target.backbone.device

    def loglikelihood(self, requests: Any) -> Any:
        raise NotImplementedError(
            "draftlens generates answers and computes no log-likelihoods: use a task whose "
            "output_type is generate_until or generate_until_multi_round"
        )

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request; the answers are those of the target's `generate`."""
        return [_generated(rounds.answers[-1]) for rounds in self._run(requests, once=True)]

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[list[str]]:
        """Answer the rounds of each request until its task ends them; the answers of all rounds."""
        return [[answer.text for answer in each.answers] for each in self._run(requests)]

    def _run(self, requests: Sequence[Any], once: bool = False) -> list[_Rounds]:
        self.answering.reset()
        conversations = [_Rounds(self.task_dict, *request.args) for request in requests]
        kwargs = [each.options for each in conversations]
        with tqdm(total=len(requests), desc="draftlens", disable=self.rank != 0) as bar:
            for numbers in batches(kwargs, self.batch_size):
                self._answer([conversations[number] for number in numbers], once)
                bar.update(len(numbers))
        self._log(len(requests))
        return conversations

    def _answer(self, waiting: list[_Rounds], once: bool) -> None:
        options, until, unknown = generation(waiting[0].options, self.max_new_tokens)
        if unknown:
            _log.warning("generate has no option %s: left out", ", ".join(unknown))
        chats = [each.first() for each in waiting]
        while waiting:
            answers = self.answering.answer(chats, options, until)
            for each, answer in zip(waiting, answers, strict=True):
                each.answers.append(answer)
            following = [] if once else [(each, each.following()) for each in waiting]
            waiting = [each for each, chat in following if chat]
            chats = [chat for _, chat in following if chat]

    def _log(self, num_requests: int) -> None:
        done = self.answering
        speed = done.tokens / done.seconds if done.seconds else 0.0
        further = {
            "total_requests": num_requests,
            "mean_acceptance_length": done.mean_acceptance_length,
        }
        log_metrics(done.seconds, done.tokens, speed, further)


@dataclass
class _Rounds:
    """A request with its answers so far; the fields but `answers` and `info` are its arguments."""

    task_dict: Any
    context: str
    doc_to_messages: Any
    options: dict[str, Any]
    doc_id: int
    task: str
    split: str
    answers: list[Answer] = field(default_factory=list)
    info: Any = None

    @property
    def _doc(self) -> Any:
        return self.task_dict[self.task][self.split][self.doc_id]

    def first(self) -> Sequence[Message]:
        """The messages of the first round."""
        return _chat(self.doc_to_messages(self._doc))

    def following(self) -> Sequence[Message]:
        """The messages of the next round; none after the last one."""
        payload = self.doc_to_messages(
            self._doc,
            round_idx=len(self.answers),
            previous_output=[answer.text for answer in self.answers],
            previous_round_info=self.info,
        )
        if not isinstance(payload, tuple):
            return []
        messages, is_last, _, self.info = payload
        return [] if is_last else _chat(messages)


def _chat(messages: Any) -> Sequence[Message]:
    return check_chat(ChatMessages(messages=messages).to_hf_messages())


def _generated(answer: Answer) -> Any:
    counts = TokenCounts(input_tokens=answer.prompt_tokens, output_tokens=answer.tokens)
    return GenerationResult(answer.text, counts)
