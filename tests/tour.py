"""Ten questions of somebody who has never seen the project: the links from the README to each
answer, and the time of reading up to it.

`python tests/tour.py` prints the table.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENTRY = "README.md"
WORDS_A_MINUTE = 250


@dataclass(frozen=True)
class Question:
    """A question and the way to its answer.

    Args:
        answer: the text with which the answer ends.
        links: what is clicked, page by page, as a page writes it.
    """

    asked: str
    answer: str
    links: tuple[str, ...] = ()


QUESTIONS = (
    Question(
        "Which method?",
        "Without a name the method is `auto`: with a draft model",
        ("docs/methods.md",),
    ),
    Question("Does it take my model?", "qwen2_5_vl", ("docs/families.md",)),
    Question("What does my GPU gain?", "No figure has been taken", ("docs/roadmap.md",)),
    Question("How much memory?", "draftlens doctor --plan NAME --memory 24GB", ("docs/memory.md",)),
    Question(
        "Does it read PDF files?",
        "turns PDF files, images and folders into Markdown",
        ("docs/parse.md",),
    ),
    Question("Can answers be JSON?", "an answer is JSON of a schema", ("docs/forms.md",)),
    Question(
        "A server behind nginx?", "proxy_pass http://127.0.0.1:8000;", ("docs/serve.md#nginx",)
    ),
    Question("A folder of clips?", "-o captions.jsonl", ("docs/folders.md",)),
    Question(
        "Is it exact in bfloat16?", "bfloat16, float16 | none; measured", ("docs/exactness.md",)
    ),
    Question("How do I cite it?", "CITATION.cff", ("docs/citing.md",)),
)


def walk(question: Question, root: Path = ROOT) -> int:
    """Words that are read, code included: of each page from its top, or from the heading that a
    link leads to, up to the next link, and at last to the end of the answer.

    Raises:
        ValueError: a page does not have the link or the answer.
    """
    page, heading = ENTRY, ""
    words = 0
    for link in question.links:
        words += words_before(text_from(root / page, heading), f"]({link})")
        name, _, heading = link.partition("#")
        page = str((root / page).parent.joinpath(name).resolve().relative_to(root.resolve()))
    rest = text_from(root / page, heading)
    return words + words_before(rest, question.answer) + count(question.answer)


def text_from(page: Path, heading: str) -> str:
    """A page from the heading of an anchor on, else from its top."""
    text = page.read_text(encoding="utf-8")
    for line in re.finditer(r"^#+ (.*)$", text, re.MULTILINE):
        if heading and re.sub(r"[^\w\- ]", "", line[1].lower()).replace(" ", "-") == heading:
            return text[line.start() :]
    if heading:
        raise ValueError(f"{page} has no heading {heading!r}")
    return text


def words_before(text: str, end: str) -> int:
    before, found, _ = text.partition(end)
    if not found:
        raise ValueError(f"no {end!r}")
    return count(before)


def count(text: str) -> int:
    """Words that a reader sees: without addresses of links and marks."""
    shown = re.sub(r"\]\([^)\s]*\)|<!--.*?-->", " ", text, flags=re.DOTALL)
    return sum(any(map(str.isalnum, word)) for word in shown.split())


def seconds(question: Question, root: Path = ROOT) -> float:
    return walk(question, root) * 60 / WORDS_A_MINUTE


if __name__ == "__main__":
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for question in QUESTIONS:
        print(f"| {question.asked} | {len(question.links)} | {seconds(question, root):.0f} |")
