"""Strangers' texts in sentences."""

from __future__ import annotations

import json

import pytest

from draftlens.cli.show import error_console, print_json
from draftlens.core.text import printable, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name.mp4", "plain name.mp4"),
        ("\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{IDEOGRAPHIC SPACE}\N{CAT}", None),
        ("\x1b[2Ja.mp4", r"\u001b[2Ja.mp4"),
        ("a\x9b2J\x7f", r"a\u009b2J\u007f"),
        ("a\nb\rc", r"a\nb\rc"),
        ("a\N{RIGHT-TO-LEFT OVERRIDE}4pm", r"a\u202e4pm"),
        ("a\udcff", r"a\xff"),
    ],
)
def test_no_character_that_a_terminal_obeys_is_left(text: str, shown: str | None) -> None:
    assert printable(text) == (text if shown is None else shown)


def test_long_texts_lose_their_middle() -> None:
    assert shortened("a" * 300) == "a" * 300
    assert shortened("a" * 10**6 + "end") == "a" * 150 + "..." + "a" * 147 + "end"


def test_the_terminal_gets_no_escape_codes_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    error_console.print("error: cannot read \x1b]0;title\x07.mp4:\n\tempty", markup=False)
    assert capsys.readouterr().err == (
        "error: cannot read \\u001b]0;title\\u0007.mp4:\n        empty\n"
    )
    print_json({"file": "\x9b2J.mp4"})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed) == {"file": "\x9b2J.mp4"}
