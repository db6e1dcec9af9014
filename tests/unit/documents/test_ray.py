"""The class for Ray's `map_batches`, called as Ray calls it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pdfs
import pytest

import draftlens
from draftlens.documents.ray import ParseBatch


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    whole = pdfs.write(tmp_path / "a.pdf", [pdfs.columns, pdfs.blank, pdfs.columns])
    (tmp_path / "empty").mkdir()
    return [str(whole), str(tmp_path / "none.pdf"), str(tmp_path / "empty")]


def test_each_document_is_a_row(paths: list[str]) -> None:
    batch = ParseBatch(layout="blocks", pages="1-3,9")(
        {"path": np.array(paths), "id": np.arange(3)}
    )
    assert list(batch) == ["path", "id", "markdown", "pages", "failed", "error"]
    pages = list(draftlens.parse(paths[0], layout="blocks", pages="1-3"))
    texts = [page.markdown.strip() for page in pages]
    assert texts[1] == ""
    assert list(batch["markdown"]) == [f"{texts[0]}\n\n{texts[2]}", "", ""]
    assert list(batch["pages"]) == [3, 0, 0]
    assert list(batch["failed"]) == [1, 1, 1]
    assert "page 9" in batch["error"][0]
    assert "none.pdf" in batch["error"][1]
    assert "empty" in batch["error"][2]


def test_columns_and_settings_are_checked(paths: list[str]) -> None:
    with pytest.raises(draftlens.InputError, match="there is no column 'path'; there are file"):
        ParseBatch()({"file": np.array(paths)})
    with pytest.raises(draftlens.ConfigError, match="needs a document model"):
        ParseBatch(stages="regions")
