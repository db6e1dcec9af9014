"""Parts of the command line that a run of a command does not cover: line breaks, names, progress
on a terminal, threads."""

from __future__ import annotations

import inspect
import io
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from rich.text import Text

from draftlens.cli import answer, progress, show
from draftlens.cli import app as commands
from draftlens.cli.help import takes_options
from draftlens.cli.loading import MAX_SINGLE_THREADED, load_models, settle_threads
from draftlens.cli.options import (
    AnswerOptions,
    FolderOptions,
    parse_limits,
    parse_method,
    parse_prefill,
)
from draftlens.cli.progress import ProgressBar, ProgressLines, count_bar, progress_bars, spinner
from draftlens.cli.show import WordWriter, show_files, show_stats, table
from draftlens.core.errors import ConfigError
from draftlens.core.result import Result
from draftlens.core.stats import Stats
from draftlens.media import Limits
from draftlens.models import known_pairs


def written(pieces: list[str], terminal: bool) -> str:
    file = io.StringIO()
    writer = WordWriter(Console(file=file, width=12, force_terminal=terminal, no_color=True))
    for piece in pieces:
        writer.write(Text(piece))
    writer.end()
    return file.getvalue()


@pytest.mark.parametrize(
    "pieces",
    [
        ["a large purple ring moves"],
        list("a large purple ring moves"),
        ["a lar", "ge purple ri", "ng moves"],
    ],
)
def test_words_stay_whole_on_a_terminal_however_they_come(pieces: list[str]) -> None:
    lines = [line.rstrip() for line in written(pieces, terminal=True).splitlines()]
    assert lines == ["a large", "purple ring", "moves"]


def test_elsewhere_nothing_is_broken_and_newlines_are_kept() -> None:
    assert (
        written(["a large purple", " ring\nmoves  on"], terminal=False)
        == "a large purple ring\nmoves  on\n"
    )
    assert written(["a\n", "b"], terminal=True) == "a\nb\n"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed on 80 columns."""
    file = io.StringIO()
    terminal = Console(file=file, width=80, highlight=False, force_terminal=True, color_system=None)
    monkeypatch.setattr(show, "console", terminal)
    return file


def cells_of(printed: str) -> list[list[str]]:
    """The cells of a printed table, with folded cells joined."""
    rows: list[list[str]] = []
    for line in printed.splitlines():
        parts = [part.strip() for part in line.split("│")[1:-1]]
        if parts and parts[-1]:
            rows.append(parts)
        elif parts:
            rows[-1] = [upper + lower for upper, lower in zip(rows[-1], parts, strict=True)]
    return rows


NAMES = ["Trip [dqw4w9WgXcQ].mp4", "media[/old]", "[red]", "a[b", ":x:"]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_shows_names_as_they_are(narrow: io.StringIO, name: str) -> None:
    table(f"of {name}", ["", name], [[name, "1"], ["b", name]])
    title, _, header, *_ = narrow.getvalue().splitlines()
    assert title.rstrip() == f"of {name}"
    assert [part.strip() for part in header.split("┃")[1:-1]] == ["", name]
    assert cells_of(narrow.getvalue()) == [[name, "1"], ["b", name]]


def test_a_table_folds_what_is_too_long(narrow: io.StringIO) -> None:
    """If they were cut, the three names would be the same."""
    names = [f"specvlm,prune_ratio=0.{digit},attention_mass=0.{digit}" for digit in (5, 7, 9)]
    columns = ["method", *(f"figure{number}" for number in range(8))]
    table("", columns, [[name, *["1.00"] * 8] for name in names])
    assert "…" not in narrow.getvalue()
    assert [row[0] for row in cells_of(narrow.getvalue())] == names
    assert max(map(len, narrow.getvalue().splitlines())) <= 80


def test_a_table_is_not_folded_without_a_terminal(
    narrow: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in a file are there to be searched for and copied."""
    monkeypatch.setattr(show, "console", Console(file=narrow, width=80, highlight=False))
    name = "specvlm,prune_ratio=0.5,attention_mass=0.5" * 4
    table("", ["method", "figure"], [[name, "1.00"]])
    assert f" {name} " in narrow.getvalue()


def test_a_table_has_100_columns_without_a_terminal(
    narrow: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its words have room; nothing is lost."""
    monkeypatch.setattr(show, "console", Console(file=narrow, width=80, highlight=False))
    words = [f"option_{number}=value" for number in range(20)]
    table("", ["method", "options"], [["a", ", ".join(words)]])
    assert max(map(len, narrow.getvalue().splitlines())) == 100
    assert all(word in narrow.getvalue() for word in words)


def test_readable_json_is_the_same_json_in_few_lines() -> None:
    value = {
        "text": "x" * 200,
        "tokens": [list(range(500))],
        "empty": [{}, []],
        "stats": {
            "a": 1.5,
            "phases": {"draft": 0.1, "verify": None},
            "unicode": "naïve " * 20,
            "accepted_by_reference": {"0": {"0": 3, "1": 12}},
        },
    }
    text = show.readable_json(value)
    assert json.loads(text) == value
    assert len(text.splitlines()) == 13
    assert '    "phases": {"draft": 0.1, "verify": null},' in text.splitlines()
    assert '    "accepted_by_reference": {"0": {"0": 3, "1": 12}}' in text.splitlines()
    assert show.readable_json({"a": 1, "b": {}}) == '{"a": 1, "b": {}}'
    assert show.readable_json([]) == "[]"


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "error_console", Console(stderr=True, highlight=False))
    lines = ProgressLines(seconds=60.0)
    lines.plan(8)
    for clip in range(4):
        lines.begin(f"clip {clip}, [specvlm]")
        lines.done(2)
    assert capsys.readouterr().err == "0%: clip 0, [specvlm]\n"
    eager = ProgressLines(seconds=0.0)
    eager.plan(4)
    eager.begin("a")
    eager.done(1)
    eager.begin("b")
    assert capsys.readouterr().err.splitlines() == ["0%: a", "25%: b"]


def test_titles_are_bold_and_figures_are_aligned_right(
    narrow: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bold title and headers, first column aligned left and the others right."""
    styled = Console(file=narrow, width=80, force_terminal=True, color_system="standard")
    monkeypatch.setattr(show, "console", styled)
    table("the title", ["name", "figure"], [["a", "1"]])
    for words in ("\x1b[1mthe title", "\x1b[1mname", "\x1b[1mfigure", "│ a    │      1 │"):
        assert words in narrow.getvalue()


def test_paths_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show_files(Path("runs:x:/[/old]"), "a[b].png")
    assert capsys.readouterr().out == "runs:x:/[/old] holds a[b].png\n"


def test_what_was_approximate_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result(
        [[1, 2]],
        [[False, True]],
        Stats(emitted=2, drafted=5, e2e=1.0),
        False,
        ("a [bold] step", "[/x]"),
    )
    show_stats(result)
    printed = capsys.readouterr().err
    assert "1 from the draft · mean acceptance length" in printed
    assert printed.endswith("· approximate: a [bold] step, [/x]\n")


@pytest.fixture
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is drawn on the error stream, which is a terminal if the parameter is True."""
    file = io.StringIO()
    monkeypatch.setattr(
        progress,
        "error_console",
        Console(file=file, width=60, force_terminal=request.param, no_color=True),
    )
    return file


def draw_all(quiet: bool) -> list[bool]:
    """Draw every kind of progress; return whether the count bar and the progress bars are drawn."""
    with spinner("loading the model", quiet):
        pass
    with count_bar("reading frames", quiet) as on_item:
        if on_item:
            on_item(2, 5)
    with progress_bars(quiet) as bars:
        bar = ProgressBar(bars)
        bar.plan(4)
        bar.begin("captions")
        bar.done(1)
        bar.done(2)
        assert (bars.tasks[0].completed, bars.tasks[0].total, bars.tasks[0].description) == (
            3,
            4,
            "captions",
        )
    return [on_item is not None, not bars.disable]


@pytest.mark.parametrize("drawn", [True], indirect=True)
def test_a_spinner_may_be_drawn_only_after_some_time(drawn: io.StringIO) -> None:
    with spinner("preparing passes", after=60.0):
        pass
    assert drawn.getvalue() == ""
    with spinner("preparing passes", after=1e-3):
        while "preparing passes" not in drawn.getvalue():
            sleep(1e-3)


@pytest.mark.parametrize(("tokens", "expected"), [(64, False), (65, "auto")])
def test_a_short_answer_is_not_worth_preparing_passes(
    tokens: int, expected: bool | str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Unless an engine of passes is named, or more answers come."""
    taken: list[Any] = []

    def load(decoding: dict[str, Any], *_: Any) -> None:
        taken.append(decoding["compile"])
        raise ConfigError("loaded")

    monkeypatch.setattr(answer, "engine_of", load)
    picture = str(Path(known_pairs.__file__).parents[1] / "embedded" / "clips" / "shapes.png")
    question = ([picture], "image", "What is it?", 8, Limits())
    for engine, out in (("auto", None), ("openvino", None), ("auto", tmp_path / "answers.jsonl")):
        generation = {"max_new_tokens": tokens, "seed": None}
        call = answer.Answering(*question, {"compile": engine}, generation, {}, quiet=True)
        with pytest.raises(ConfigError, match="loaded"):
            call.run(FolderOptions(out=out))
    assert taken == [expected, "openvino", "auto"]


@pytest.mark.parametrize("drawn", [True], indirect=True)
def test_progress_is_drawn_on_a_terminal(drawn: io.StringIO) -> None:
    assert draw_all(quiet=False) == [True, True]
    for words in ("loading the model", "reading frames", "2/5", "captions"):
        assert words in drawn.getvalue()


@pytest.mark.parametrize(
    ("drawn", "quiet"), [(False, False), (False, True), (True, True)], indirect=["drawn"]
)
def test_progress_is_hidden_elsewhere_and_where_it_is_unwanted(
    drawn: io.StringIO, quiet: bool
) -> None:
    assert draw_all(quiet) == [False, False]
    assert drawn.getvalue() == ""


@pytest.mark.parametrize("drawn", [True], indirect=True)
def test_the_target_is_named_as_it_is_while_it_loads(drawn: io.StringIO) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        load_models("/no/such/[bold]/[/old]", "none", {"device": "cpu"})
    assert "loading /no/such/[bold]/[/old]" in drawn.getvalue()


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Sized(torch.nn.Module):
    """A model with a number of parameters that takes no memory."""

    device = torch.device("cpu")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, device="meta"))


@pytest.mark.usefixtures("two_threads")
def test_small_models_get_one_thread_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    settle_threads(Sized(MAX_SINGLE_THREADED))
    assert torch.get_num_threads() == 2
    rounded = Sized(1)  # whose weights are buffers
    rounded.register_buffer("integers", torch.empty(MAX_SINGLE_THREADED, device="meta"))
    settle_threads(rounded)
    assert torch.get_num_threads() == 2
    settle_threads(Sized(MAX_SINGLE_THREADED - 1))
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    settle_threads(Sized(MAX_SINGLE_THREADED - 1))
    assert torch.get_num_threads() == 2


def test_a_group_of_options_is_a_dataclass_whose_fields_are_options() -> None:
    received: list[Any] = []

    def command(name: str, *, answers: AnswerOptions, last: int = 1) -> None:
        received.append((name, answers, last))

    flat = takes_options(command)
    names = list(inspect.signature(flat).parameters)
    assert names == ["name", *(item.name for item in fields(AnswerOptions)), "last"]
    values = {item.name: item.default for item in fields(AnswerOptions)}
    flat(name="n", last=2, **{**values, "top_k": 3})
    ((name, answers, last),) = received
    assert (name, last, answers) == ("n", 2, AnswerOptions(top_k=3))
    assert answers.generation == {
        "max_new_tokens": 256,
        "seed": None,
        "do_sample": True,
        "top_k": 3,
    }


def test_deeply_nested_options_are_refused() -> None:
    for read in (parse_limits, parse_prefill, partial(parse_method, None)):
        with pytest.raises(ConfigError, match="nested too deeply"):
            read('{"a":' * 100_000)


@pytest.mark.parametrize("name", commands.LAB_COMMANDS)
def test_without_the_lab_its_commands_say_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a checkout: no index has the package."""
    monkeypatch.setattr(commands, "entry_points", lambda group: [])
    app = typer.Typer()
    commands.add_commands(app)
    (command,) = [command for command in app.registered_commands if command.name == name]
    assert command.callback is not None
    with pytest.raises(ConfigError, match=rf"'{name}' .*: pip install \./lab in a checkout of"):
        command.callback()


def test_without_the_lab_its_model_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_pairs, "entry_points", lambda group, name: [])
    with pytest.raises(ConfigError, match=r"'reader' .*: pip install \./lab in a checkout of"):
        known_pairs.path_of("reader", "target")


def test_nothing_advises_to_install_the_lab_by_its_name() -> None:
    """It cannot be installed so before a release."""
    root = Path(__file__).resolve().parents[3]
    pages = [root / "README.md", root / "CONTRIBUTING.md", *root.glob("docs/*.md")]
    for path in [*pages, *root.glob("draftlens/**/*.py"), *root.glob("lab/**/*.py")]:
        assert not re.search(r"pip install .*draftlens-lab", path.read_text()), path
