"""Output of the commands: streamed answers, tables, figures and JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from draftlens.core.result import Chunk, Result
from draftlens.core.stats import DEFINITIONS, Stats
from draftlens.core.text import printable


class Answer(Protocol):
    """A `Stream`, or one that ends early."""

    def __iter__(self) -> Iterator[Chunk]: ...

    @property
    def result(self) -> Result: ...


class _Terminal(Console):
    """A console that shows the escape codes of foreign texts, such as file names, instead of
    passing them on."""

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        return super().render_str(printable(text, keep="\n\t"), **options)


console = _Terminal(highlight=False, emoji=False)
error_console = _Terminal(stderr=True, highlight=False, emoji=False)
DRAFT_STYLE = "bold green"

UNLIMITED = 10_000
"""Columns by which a table is measured."""

PIPE_WIDTH = 100
"""Columns of a table where there is no terminal."""

JSON_WIDTH = 100
"""Characters of a line of JSON, where it can be broken."""


class WordWriter:
    """Prints text that arrives in pieces, without breaking words at the edge of a terminal.

    A word is printed when the space after it arrives: only then is its length known, and with it
    the line that it belongs to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.column = 0
        self.word = Text()

    def write(self, text: Text) -> None:
        """Add a piece of text and print the words that it completes."""
        for index in range(len(text)):
            character = text[index]
            if character.plain.isspace():
                self._print_word()
                self._print_space(character)
            else:
                self.word.append(character)

    def end(self) -> None:
        """Print the last word and end the line."""
        self._print_word()
        self._end_line()

    def _print_word(self) -> None:
        is_too_long = self.column + self.word.cell_len > self.console.width
        if self.console.is_terminal and self.column and is_too_long:
            self._end_line()
        self._print(self.word)
        self.word = Text()

    def _print_space(self, character: Text) -> None:
        if character.plain == "\n":
            self._end_line()
        elif not self.console.is_terminal or 0 < self.column < self.console.width:
            self._print(character)

    def _end_line(self) -> None:
        self.console.print()
        self.column = 0

    def _print(self, text: Text) -> None:
        self.console.print(text, end="", soft_wrap=True)
        self.column += text.cell_len


def show_stream(stream: Answer, pieces: Callable[[list[int]], list[str]]) -> Result:
    """Print an answer while it is generated and return the result."""
    writer = WordWriter(console)
    for chunk in stream:
        if chunk.text:
            writer.write(shaded(chunk.text, chunk.tokens, chunk.from_draft, pieces))
    writer.end()
    return stream.result


def shaded(
    text: str,
    tokens: Sequence[int],
    from_draft: Sequence[bool],
    pieces: Callable[[list[int]], list[str]],
) -> Text:
    """Return the text of a chunk with the tokens from the draft in colour.

    Args:
        pieces: decodes each token by itself. If the pieces do not add up to the text, because a
            character is spread over tokens, the chunk has the colour of its first token.
    """
    parts = pieces(list(tokens))
    if "".join(parts) != text:
        return Text(text, DRAFT_STYLE if any(from_draft[:1]) else "")
    coloured = Text()
    for part, drafted in zip(parts, from_draft, strict=True):
        coloured.append(part, DRAFT_STYLE if drafted else "")
    return coloured


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with its first column aligned left and all others aligned right.

    Cells are printed as they are, without markup, because file names may contain brackets. Long
    cells are folded to the width of a terminal. Elsewhere they are broken between words, so that a
    line has `PIPE_WIDTH` columns unless words are longer, which stay whole.
    """
    grid = Table(title=Text(title, "bold"), title_justify="left")
    for index, column in enumerate(columns):
        grid.add_column(Text(column), justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    if console.is_terminal:
        console.print(grid)
        return
    unlimited = console.options.update(max_width=UNLIMITED)
    measured = Measurement.get(console, unlimited, grid)
    width = min(measured.maximum, max(measured.minimum, PIPE_WIDTH))
    Console(file=console.file, width=width, highlight=False, emoji=False).print(grid)


def say(line: str, *, on: Console | None = None, **style: Any) -> None:
    """Print a line without markup and breaks, on the error stream unless a console is named."""
    (on or error_console).print(line, markup=False, soft_wrap=True, **style)


def near_tie(margin: float | None) -> str:
    """The end of a sentence about the first token that differs."""
    return "" if margin is None else f", with a logit margin of {margin:.3g}"


def show_files(folder: Path, *names: str) -> None:
    """Print the names of the files that a command has written."""
    say(f"{folder} holds {', '.join(names)}", on=console)


def is_quiet() -> bool:
    """Whether nothing but errors is printed beside the results (`draftlens --quiet`)."""
    return not logging.getLogger("draftlens").isEnabledFor(logging.WARNING)


def show_stats(result: Result, notice: str = "") -> None:
    """Print the figures of an answer as one line on the error stream, unless only errors are.

    Args:
        notice: why there is no draft although one was looked for (`Engine.notice`).
    """
    if is_quiet():
        return
    stats = result.stats
    parts: list[str | tuple[str, str]] = [
        f"{stats.emitted} tokens in {stats.e2e:.2f} s ({stats.tokens_per_second:.1f} tokens/s)",
        f"first after {stats.ttft:.2f} s",
    ]
    if stats.drafted:
        supplied = num_supplied(result)
        parts.append((f"{supplied} from the draft", DRAFT_STYLE))
        parts.append(f"mean acceptance length {stats.mean_acceptance_length:.2f}")
    if stats.cached_tokens:
        parts.append(f"{stats.cached_tokens} prompt tokens cached")
    best = best_view(stats)
    if best is not None:
        parts.append(best)
    parts.append(exactness(result))
    parts += result.notes
    cause = notice.partition(";")[0]
    if cause and not any(note.startswith(cause) for note in result.notes):
        parts.append(cause)
    line = Text(" · ").join(Text.assemble(part) for part in parts)
    error_console.print(line, style="dim", soft_wrap=True)


def best_view(stats: Stats) -> str | None:
    """The view with the largest share of accepted draft tokens, in words; None without several."""
    shares = {name: view.right / view.asked for name, view in stats.views.items() if view.asked}
    if len(shares) < 2:
        return None
    name = max(shares, key=shares.__getitem__)
    return f"best view {name} ({shares[name] * 100:.0f}% accepted)"


def num_supplied(result: Result) -> int:
    """Return the number of tokens that the draft supplied, in all rows."""
    return sum(sum(row) for row in result.from_draft)


def exactness(result: Result) -> str:
    """Return `lossless`, or what was approximate in an answer."""
    if result.lossless:
        rounded = ", ".join(result.approximate)
        return f"lossless for the model with {rounded}" if rounded else "lossless"
    return f"approximate: {', '.join(result.approximate)}"


def show_definitions(*names: str) -> None:
    for name in names:
        console.print(f"  {name}: {DEFINITIONS[name]}", style="dim", markup=False)


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output; what fits into a line is on one."""
    print(printable(readable_json(value), keep="\n"))


def readable_json(value: Any, indent: int = 0) -> str:
    """JSON for people: lists of plain values and short objects take one line each."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value:
        return line
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(value, dict):
        is_line = len(line) + indent <= JSON_WIDTH
    else:
        is_line = not any(isinstance(item, (dict, list)) and item for item in items)
    if is_line:
        return line
    inner = " " * (indent + 2)
    rows = [readable_json(item, indent + 2) for item in items]
    if isinstance(value, dict):
        names = [json.dumps(str(name), ensure_ascii=False) for name in value]
        rows = [f"{name}: {row}" for name, row in zip(names, rows, strict=True)]
        opening, closing = "{", "}"
    else:
        opening, closing = "[", "]"
    body = ",\n".join(inner + row for row in rows)
    return f"{opening}\n{body}\n{' ' * indent}{closing}"


def result_json(result: Result) -> dict[str, Any]:
    return {
        "text": result.text,
        "tokens": result.tokens,
        "from_draft": result.from_draft,
        "lossless": result.lossless,
        "approximate": list(result.approximate),
        "notes": list(result.notes),
        "stats": result.stats.to_dict(),
    }
