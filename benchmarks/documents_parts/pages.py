"""Pages of English prose with known Markdown, from the manual that comes with Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pydoc_data.topics import topics

SHORTEST = 600
LONGEST = 1800
"""Characters of a page."""

_UNDERLINE = re.compile(r'^[*=\-~"^]{4,}$')
_TABLE = re.compile(r"^[+|]")


@dataclass(frozen=True)
class Page:
    """One page.

    Args:
        blocks: of the Markdown: titles, paragraphs, lists and code.
        regions: what stands on the page for each block, without the marks of Markdown.
    """

    blocks: tuple[str, ...]
    regions: tuple[str, ...]

    @property
    def markdown(self) -> str:
        """What the target says."""
        return "\n\n".join(self.blocks)


def pages(most: int) -> list[Page]:
    """The first pages, one of each topic."""
    found = [page_of(topics[name]) for name in sorted(topics)]
    long_enough = [page for page in found if len(page.markdown) >= SHORTEST]
    return long_enough[:most]


def page_of(topic: str) -> Page:
    """A page with the beginning of a topic."""
    blocks: list[str] = []
    regions: list[str] = []
    size = 0
    for paragraph in topic.split("\n\n"):
        lines = [line for line in paragraph.split("\n") if line.strip()]
        if not lines or any(_TABLE.match(line.strip()) for line in lines):
            continue
        block, region = _block_of(lines)
        size += len(block)
        if size > LONGEST:
            break
        blocks.append(block)
        regions.append(region)
    return Page(tuple(blocks), tuple(regions))


def _block_of(lines: list[str]) -> tuple[str, str]:
    """A paragraph as Markdown and as it stands on a page."""
    if len(lines) > 1 and _UNDERLINE.match(lines[1]):
        return f"## {lines[0]}", lines[0]
    if lines[0].startswith("   "):
        code = "\n".join(line[3:] for line in lines)
        return f"```python\n{code}\n```", code
    text = " ".join(line.strip() for line in lines)
    return text, text.replace("*", "")


def corpus(without: int) -> list[str]:
    """The topics from which no page is made, to train a tokenizer on."""
    names = sorted(topics)
    return [topics[name] for name in names[without:]]
