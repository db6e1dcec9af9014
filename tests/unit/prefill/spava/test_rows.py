"""Which rows are read in blocks, and the options of prefills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import draftlens
from draftlens.core.errors import ConfigError
from draftlens.methods.base import to_dict
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PREFILLS, make_prefill
from draftlens.prefill.spava.config import SpavaPrefill
from draftlens.prefill.spava.rows import Division, PromptRow, prompt_rows

DIVISION = Division(blocks=4, anchor="n/64", passing="n/32")


def rows(*parts: tuple[int, int, int], division: Division = DIVISION) -> list[PromptRow]:
    """Rows of a prompt, each with text, visual tokens, and text after them."""
    lengths = list(map(sum, parts))
    longest = max(lengths)
    is_visual = torch.zeros(len(parts), longest, dtype=torch.bool)
    for number, (before, visual, _) in enumerate(parts):
        is_visual[number, before : before + visual] = True
    ids = torch.arange(longest).expand(len(parts), -1)
    ends = torch.tensor(lengths)[:, None]
    prompt = Prompt(torch.zeros(len(parts), longest, 1), ids, lengths, ends, is_visual, {})
    return prompt_rows(prompt, division)


def row(before: int, visual: int, behind: int, division: Division = DIVISION) -> PromptRow:
    return rows((before, visual, behind), division=division)[0]


def test_the_context_ends_with_the_last_visual_token() -> None:
    blocks = row(3, 130, 5).blocks
    assert blocks is not None
    assert (blocks.context, blocks.length) == (133, 138)
    assert (blocks.anchor, blocks.passing, blocks.count) == (2, 4, 4)
    assert [blocks.size(block) for block in range(4)] == [33, 33, 33, 32]


def test_each_row_is_divided_behind_its_own_pictures() -> None:
    together = rows((3, 130, 5), (20, 0, 0), (1, 70, 30))
    assert together == [row(3, 130, 5), row(20, 0, 0), row(1, 70, 30)]
    contexts = [one.blocks and one.blocks.context for one in together]
    assert contexts == [133, None, 71]


def test_a_text_is_divided_in_front_of_its_query() -> None:
    """Rows with pictures are divided as without the option."""
    division = replace(DIVISION, query_tokens=8)
    together = rows((138, 0, 0), (3, 130, 5), (15, 0, 0), (7, 0, 0), division=division)
    blocks = together[0].blocks
    assert blocks is not None
    assert (blocks.context, blocks.length) == (130, 138)
    assert (blocks.anchor, blocks.passing, blocks.count) == (2, 4, 4)
    assert together[1] == row(3, 130, 5)
    assert together[2].note == "the 8 tokens of the query are more than the 7 up to it"
    assert together[3].note == "the 7 tokens of the query are more than the 0 up to it"
    short = row(40, 0, 0, division)
    assert "the 32 tokens up to the query are too few for 4 blocks" in short.note


def test_a_prompt_may_end_with_a_picture() -> None:
    """Its last token is the query then."""
    blocks = row(3, 130, 0).blocks
    assert blocks is not None
    assert (blocks.context, blocks.length) == (132, 133)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (row(40, 0, 0), "neither a picture nor a clip"),
        (row(10, 60, 71), "71 tokens after the last visual one are more than the 70"),
        (
            row(1, 62, 5),
            "63 tokens up to the last visual one are too few for 4 blocks, anchor n/64",
        ),
        (row(0, 70, 5, Division(70, 1, 1)), "too few for 70 blocks, anchor 1 and passing 1"),
    ],
)
def test_rows_that_are_read_exactly_say_why(found: PromptRow, why: str) -> None:
    assert found.blocks is None
    assert why in found.note


def test_the_shortest_row_in_blocks() -> None:
    assert row(0, 70, 5, Division(69, 1, 1)).blocks is not None
    assert row(2, 62, 5).blocks is not None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"blocks": 0}, "blocks must be a whole number of at least 1, not 0"),
        ({"blocks": True}, "blocks must be a whole number"),
        ({"anchor": "n/0"}, "anchor must be a number of tokens or a share such as 'n/64'"),
        ({"passing": -1}, "passing must be a number"),
        ({"passing": 0.5}, "passing must be a number"),
        *(
            (
                {option: 1},
                f"no option '{option}': the prefill 'spava-ablation' of",
            )
            for option in ("pool", "rounding")
        ),
        ({"select": "random"}, "unknown select 'random'; known: query, sampled"),
        ({"select": ["query"]}, "unknown select"),
        ({"zigzag": 1}, "zigzag must be true or false"),
        ({"heads": 2}, "prefill 'spava' has no option 'heads'; known: anchor, passing, blocks"),
    ],
)
def test_bad_options_are_refused_when_they_are_given(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace("(", r"\(")):
        make_prefill({"name": "spava", **options})


def test_what_is_approximate() -> None:
    assert SpavaPrefill().approximate == ("spava prefill: 16 blocks, anchor n/64, passing n/128",)
    odd = SpavaPrefill(anchor=9, blocks=4, passing=0)
    assert odd.approximate == ("spava prefill: 4 blocks, anchor 9, nothing passed",)


@pytest.mark.parametrize("name", [*PREFILLS])
def test_every_method_takes_it_and_writes_it_down(name: str) -> None:
    """The same keys in Python, JSON and YAML."""
    for method in ("plain", "speculative", "specvlm", "parallelvlm", "tabed", "lookup"):
        made = draftlens.from_dict({"method": method, "prefill": name})
        assert made == draftlens.from_dict(to_dict(made))
        assert made.prefill == make_prefill(name)  # type: ignore[attr-defined]
