"""`hub/`, the folder of a repository for `custom_generate`, loaded by its path as from the Hub."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs, tokenizer
from stock import LONG, NEW, draft, reference, staggered, target
from streamers import Recorder
from transformers import dynamic_module_utils

import draftlens

HUB = str(Path(__file__).resolve().parents[2] / "hub")
SOME = [family for family in FAMILIES if family.name in ("llava", "qwen2_5_vl")]

Answer = Callable[..., list[draftlens.Result]]


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Calls `generate` with the folder and without; returns the results of draftlens."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(
        family: Family, given: dict[str, Any], ours: dict[str, Any], **options: Any
    ) -> list[draftlens.Result]:
        options = {"max_new_tokens": NEW, "do_sample": False, **options}
        model, results = target(family), list[draftlens.Result]()
        remote = {"custom_generate": HUB, "trust_remote_code": True, "results": results}
        expected = model.generate(**given, **options)
        assert torch.equal(model.generate(**given, **options, **remote, **ours), expected)
        return results

    return call


CHAIN = {"num_speculative_tokens": 5}
METHODS = [None, "mixed", CHAIN, {"method": "specvlm", **CHAIN}]
"""The first two draft as far as measured costs say."""


@pytest.mark.parametrize("family", SOME, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_with_a_draft(answer: Answer, family: Family, method: Any) -> None:
    """Pictures, several rows, and ends within a round."""
    eos = staggered(reference(family, family.richest, LONG))
    given = inputs(family, family.richest)
    options = {"eos_token_id": eos, "max_new_tokens": LONG}
    (result,) = answer(family, given, {"draft": draft(family), "method": method}, **options)
    assert result.lossless
    if method not in (None, "mixed"):
        assert 0 < result.stats.accepted < result.stats.drafted


@pytest.mark.parametrize("method", [None, "lookup", "plain"])
def test_without_a_draft(answer: Answer, method: Any) -> None:
    family = SOME[0]
    (result,) = answer(family, inputs(family, family.richest), {"method": method})
    assert result.lossless


def test_references(answer: Answer) -> None:
    """What the rows will answer; `mixed` copies as far as measured costs say."""
    family = SOME[0]
    given = inputs(family, family.richest)
    answers = [[row] for row in reference(family, family.richest)]
    chain = {"method": "hsd", "num_speculative_tokens": 8}
    (result,) = answer(family, given, {"method": chain, "references": answers})
    assert result.stats.accepted > result.stats.passes
    (result,) = answer(
        family, given, {"method": "mixed", "draft": draft(family), "references": answers}
    )
    assert result.lossless


def test_the_names_of_assisted_generation(answer: Answer) -> None:
    family = SOME[0]
    given = inputs(family, family.richest)
    (result,) = answer(family, given, {"assistant_model": draft(family), "method": CHAIN})
    assert result.stats.drafted > 0
    with pytest.raises(draftlens.ConfigError, match="the same argument"):
        answer(family, given, {"assistant_model": draft(family), "draft": draft(family)})


def test_a_streamer_stop_strings_and_a_dictionary(answer: Answer) -> None:
    """Arguments of `generate` that it does not pass on to functions by itself."""
    family, told, heard = SOME[0], Recorder(), Recorder()
    given = inputs(family, family.richest, rows=(0,))
    words = tokenizer()
    (row,) = reference(family, family.richest)[:1]
    stop = {"stop_strings": [words.decode(row[4:6])], "tokenizer": words}
    ours = {"draft": draft(family), "method": CHAIN}
    (result,) = answer(family, given, ours, **stop)
    assert 1 < len(result.tokens[0]) < NEW
    assert result.texts == [words.decode(result.tokens[0], skip_special_tokens=True)]
    model, options = target(family), {"max_new_tokens": NEW, "do_sample": False}
    remote = {"custom_generate": HUB, "trust_remote_code": True, **ours}
    expected = model.generate(**given, **options, streamer=told)
    output = model.generate(
        **given, **options, **remote, streamer=heard, return_dict_in_generate=True
    )
    assert torch.equal(output.sequences, expected)
    assert heard.ids == told.ids
    assert heard.ends == told.ends == 1


def test_it_asks_for_trust(answer: Answer) -> None:
    family = SOME[0]
    with pytest.raises(ValueError, match="trust_remote_code"):
        target(family).generate(
            **inputs(family, "text"), custom_generate=HUB, trust_remote_code=False
        )


def test_missing_packages_are_named(answer: Answer, tmp_path: Path) -> None:
    """`requirements.txt` is read, and its line is met by this version."""
    folder = tmp_path / "repository"
    shutil.copytree(HUB, folder)
    requirements = folder / "custom_generate" / "requirements.txt"
    requirements.write_text(requirements.read_text() + "a-package-that-is-not-there>=1\n")
    family = SOME[0]
    with pytest.raises(ImportError, match="a-package-that-is-not-there") as caught:
        target(family).generate(
            **inputs(family, "text"), custom_generate=str(folder), trust_remote_code=True
        )
    assert "draftlens" not in str(caught.value).split(":\n")[1]
