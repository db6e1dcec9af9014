"""Answers in the form that the scripts of Spec-Bench read: a file for each method, a line for each
clip."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from draftlens.core.files import write_text
from draftlens_lab.bench.store import SPEC_BENCH, Failure, Measurement, Store


def write_answers(store: Store, clips: Sequence[str], decode: Callable[[list[int]], str]) -> None:
    """Write `spec_bench/METHOD.jsonl` into the folder of a run.

    Args:
        clips: names in their order, which numbers the questions.
        decode: text of token ids, without special tokens.
    """
    failed = {failure.clip for failure in store.of(Failure)}
    measured = [m for m in store.of(Measurement) if m.clip not in failed]
    (store.folder / SPEC_BENCH).mkdir(exist_ok=True)
    for method in dict.fromkeys(m.method for m in measured):
        lines = []
        for number, clip in enumerate(clips):
            own = [m for m in measured if (m.clip, m.method) == (clip, method)]
            if own:
                lines.append(json.dumps(answer_line(number, own, decode), ensure_ascii=False))
        name = re.sub(r"[^\w.=-]+", "_", method)
        write_text(store.folder / SPEC_BENCH / f"{name}.jsonl", "\n".join(lines) + "\n")


def answer_line(
    number: int, measurements: Sequence[Measurement], decode: Callable[[list[int]], str]
) -> dict[str, Any]:
    """The answers of a method to a clip, a choice for each repeat.

    `wall_time` leaves out the reading of the clip and the processor, as Spec-Bench leaves out its
    tokenizer; the bonus token counts in `accept_lengths`.
    """
    first = measurements[0]
    choices = [
        {
            "index": index,
            "turns": [decode(each.tokens).strip()],
            "decoding_steps": [each.counters.get("passes", len(each.tokens))],
            "new_tokens": [len(each.tokens)],
            "wall_time": [each.e2e - each.phases.get("frames", 0.0)],
            "accept_lengths": each.accept_lengths,
        }
        for index, each in enumerate(measurements)
    ]
    return {
        "question_id": number,
        "category": first.group,
        "answer_id": uuid4().hex,
        "model_id": first.method,
        "choices": choices,
        "tstamp": time.time(),
    }
