"""Functions of the tasks of draftlens's procedural world, for lmms-eval.

`draftlens lmms-task` writes a copy of this file beside the tasks, so it imports nothing of
draftlens: any model of lmms-eval can be scored on them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent

Doc = dict[str, Any]


def doc_to_visual(doc: Doc) -> list[Any]:
    """The pictures, or the path of the clip."""
    if doc["clip"]:
        return [str(FOLDER / doc["clip"])]
    return [image.convert("RGB") for image in doc["images"]]


def doc_to_target(doc: Doc) -> str:
    """The right answer to the last question."""
    return str(doc["answers"][-1])


def doc_to_text(
    doc: Doc,
    lmms_eval_specific_kwargs: Any = None,
    previous_output: list[str] | None = None,
    round_idx: int | None = None,
    previous_round_info: Any = None,
) -> Any:
    """The first question. For models that take no chats, a further round has the questions and the
    model's answers before it, a line each."""
    questions = doc["questions"]
    if round_idx is None:
        return questions[0]
    if round_idx >= len(questions):
        return None, None, True, previous_output, None
    lines = [questions[0]]
    for answer, question in zip(previous_output or [], questions[1:], strict=False):
        lines += [answer, question]
    return doc_to_visual(doc), "\n".join(lines), False, previous_output, None


def doc_to_messages(
    doc: Doc,
    lmms_eval_specific_kwargs: Any = None,
    previous_output: list[str] | None = None,
    round_idx: int | None = None,
    previous_round_info: Any = None,
) -> Any:
    """The chat of a round: all questions so far, with the model's own answers."""
    questions, answers = doc["questions"], previous_output or []
    if round_idx is not None and round_idx >= len(questions):
        return None, True, previous_output, None
    kind = "video" if doc["clip"] else "image"
    content = [{"type": kind, "url": visual} for visual in doc_to_visual(doc)]
    messages = [_message("user", questions[0])]
    messages[0]["content"][:0] = content
    for answer, question in zip(answers, questions[1:], strict=False):
        messages += [_message("assistant", answer), _message("user", question)]
    if round_idx is None:
        return messages
    return messages, False, previous_output, None


def process_results(doc: Doc, results: Any) -> dict[str, float]:
    """The scores of the answer to the last question: whether it is right word for word, the same
    under the name of its family, and the F1 score of its words."""
    answer = results[0]
    if isinstance(answer, (list, tuple)):  # several rounds
        answer = answer[-1]
    right = float(answer.strip() == doc_to_target(doc))
    return {"exact": right, doc["family"]: right, "words": words_f1(answer, doc_to_target(doc))}


def words_f1(answer: str, truth: str) -> float:
    """The harmonic mean of precision and recall of the words of an answer."""
    given, wanted = Counter(answer.split()), Counter(truth.split())
    common = (given & wanted).total()
    return 2 * common / (given.total() + wanted.total()) if common else 0.0


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}
