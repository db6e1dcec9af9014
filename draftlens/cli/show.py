"""What a person sees: answers as they come, tables, one line for an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftlens.api import Stream
from draftlens.core.result import Result
from draftlens.core.stats import DEFINITIONS

console = Console(highlight=False, emoji=False)
errors = Console(stderr=True, highlight=False, emoji=False)
DRAFT_STYLE = "bold green"


def show_stream(stream: Stream, pieces: Callable[[list[int]], list[str]]) -> Result:
    """Print an answer as it comes, what the draft supplied in colour; return the result."""
    writer = WordWriter(console)
    for chunk in stream:
        if chunk.text:
            writer.write(shaded(chunk.text, chunk.tokens, chunk.from_draft, pieces))
    writer.end()
    return stream.result


class WordWriter:
    """Prints text that comes in pieces without breaking words at the edge of a terminal.

    A word is printed once the space behind it is known, so the line it belongs to is known too.
    """

    def __init__(self, to: Console) -> None:
        self.console, self.column, self.word = to, 0, Text()

    def write(self, text: Text) -> None:
        """Take a piece; print the words that it completes."""
        for character in (text[index] for index in range(len(text))):
            if character.plain.isspace():
                self._flush()
                self._space(character)
            else:
                self.word.append(character)

    def end(self) -> None:
        """Print what is left and end the line."""
        self._flush()
        self.console.print()
        self.column = 0

    def _flush(self) -> None:
        if (
            self.console.is_terminal
            and self.column
            and self.column + self.word.cell_len > self.console.width
        ):
            self.console.print()
            self.column = 0
        self._print(self.word)
        self.word = Text()

    def _space(self, character: Text) -> None:
        if character.plain == "\n":
            self.console.print()
            self.column = 0
        elif not self.console.is_terminal or 0 < self.column < self.console.width:
            self._print(character)

    def _print(self, text: Text) -> None:
        self.console.print(text, end="", soft_wrap=True)
        self.column += text.cell_len


def shaded(
    text: str,
    tokens: Sequence[int],
    from_draft: Sequence[bool],
    pieces: Callable[[list[int]], list[str]],
) -> Text:
    """A chunk's text, its draft-supplied part in colour.

    Args:
        pieces: decodes each token by itself; where the pieces do not add up to the text (a
            character spread over tokens), the whole chunk takes the colour of its first token.
    """
    parts = pieces(list(tokens))
    if "".join(parts) != text:
        return Text(text, DRAFT_STYLE if any(from_draft[:1]) else "")
    shaded_text = Text()
    for part, drafted in zip(parts, from_draft, strict=True):
        shaded_text.append(part, DRAFT_STYLE if drafted else "")
    return shaded_text


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, first column to the left, figures to the right.

    Names may be the user's, so a bracket is a bracket and not markup, and what is too long goes on
    below.
    """
    grid = Table(title=Text(title, "bold"), title_justify="left")
    for index, column in enumerate(columns):
        grid.add_column(Text(column), justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    console.print(grid)


class Noted(Protocol):
    """A table with a note below it, as reports have them."""

    @property
    def title(self) -> str: ...
    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence[Sequence[str]]: ...
    @property
    def note(self) -> str: ...


def show_tables(tables: Iterable[Noted], about: str) -> None:
    """Print a report's tables and what it is about."""
    for found in tables:
        table(found.title, found.columns, found.rows)
        if found.note:
            console.print(f"  {found.note}", style="dim", markup=False)
        console.print()
    console.print(about, markup=False, style="dim")


def show_files(folder: Path, *names: str) -> None:
    """Say what was written."""
    console.print(f"{folder} holds {', '.join(names)}", markup=False, soft_wrap=True)


def show_stats(result: Result) -> None:
    """One line of figures under an answer."""
    stats = result.stats
    parts: list[str | tuple[str, str]] = [
        f"{stats.emitted} tokens in {stats.e2e:.2f} s ({stats.tokens_per_second:.1f} tokens/s)",
        f"first after {stats.ttft:.2f} s",
    ]
    if stats.drafted:
        supplied = sum(map(sum, result.from_draft))
        parts.append((f"{supplied} from the draft", DRAFT_STYLE))
        parts.append(f"mean acceptance length {stats.mean_acceptance_length:.2f}")
    parts.append(exactness(result))
    line = Text(" · ").join(Text.assemble(part) for part in parts)
    errors.print(line, style="dim", soft_wrap=True)


def exactness(result: Result) -> str:
    """Whether the answer is exact, and if not, what was approximate."""
    return "lossless" if result.lossless else f"approximate: {', '.join(result.approximate)}"


def definitions(*names: str) -> None:
    """What the named metrics mean."""
    for name in names:
        console.print(f"  {name}: {DEFINITIONS[name]}", style="dim", markup=False)


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def result_json(result: Result) -> dict[str, Any]:
    """A result as JSON values."""
    return {
        "text": result.text,
        "tokens": result.tokens,
        "from_draft": result.from_draft,
        "lossless": result.lossless,
        "approximate": list(result.approximate),
        "stats": result.stats.to_dict(),
    }
