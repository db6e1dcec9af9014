"""The reader in the package: it loads by path, reads held-out pages, and draftlens says what stock
`generate` says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import draftlens
from draftlens.verify import run_stock
from recipes.reader.evaluate import HELD_OUT, mark
from recipes.reader.layout import make_crop, make_page
from recipes.reader.page import Page, render
from recipes.reader.recipe import EMBEDDED
from recipes.reader.tokenizer import QUESTION


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load(str(EMBEDDED), method="lookup", calibrate=False)


def picture(page: Page) -> Image.Image:
    return Image.fromarray(render(page)).convert("RGB")


def test_a_page_is_read_with_the_tokens_of_stock_generate(engine: draftlens.Engine) -> None:
    page = make_page(np.random.default_rng(2), HELD_OUT, 320, 272)
    inputs = engine.read(QUESTION, images=[picture(page)])
    result = engine.answer(inputs, max_new_tokens=160).run()
    stock = run_stock(engine.target.backbone, inputs.target, do_sample=False, max_new_tokens=160)
    assert result.tokens == stock.tokens
    assert result.lossless


def test_lines_of_several_sizes_are_read_well(engine: draftlens.Engine) -> None:
    rng = np.random.default_rng(3)
    pages = [make_crop(rng, HELD_OUT, width, 64) for width in (160, 224, 288, 304)]
    answers = []
    for page in pages:
        result = engine.generate(QUESTION, images=[picture(page)], max_new_tokens=100)
        answers.append(result.text)
    assert mark("lines", [page.markdown for page in pages], answers).accuracy > 0.8


def test_the_examples_of_the_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = EMBEDDED.parents[2]
    monkeypatch.chdir(root)
    code = re.findall(r"```python\n(.*?)```", (root / "docs" / "reader.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code[0], names)
    assert mark("line", [names["crop"].markdown], [capsys.readouterr().out.strip()]).accuracy > 0.6
    exec(code[1], names)
    assert names["picture"].shape == (592, 416)


def test_the_package_holds_at_most_fifteen_megabytes_of_reader() -> None:
    files = [file for file in Path(EMBEDDED).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 15_000_000
