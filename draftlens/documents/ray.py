"""The documents of a Ray dataset as Markdown, on workers of several machines.

    documents = ray.data.from_items([{"path": path} for path in paths])
    parsed = documents.map_batches(
        ParseBatch,
        fn_constructor_kwargs={"target": NAME},
        concurrency=4,
        num_gpus=1,
        batch_size=4,
    )
    parsed.write_parquet(folder)

Ray gives the rows of a lost worker to another one. `pip install "draftlens[documents,ray]"`
installs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftlens.core.errors import DraftlensError, InputError
from draftlens.documents.pipeline_parser import PipelineParser
from draftlens.documents.results import ParsedPage
from draftlens.documents.settings import ParseSettings

Columns = dict[str, Any]


class ParseBatch:
    """Parses each document of a batch, for `Dataset.map_batches`. Each worker loads the model once
    and reads the documents, so their paths must be valid there.

    Args:
        target: as for `draftlens.parse`; None for the pipeline alone.
        column: of the paths.
        load: options of `draftlens.load` for the target.
        settings: fields of `draftlens.ParseSettings`.

    Raises:
        ConfigError: a setting is not valid.
    """

    def __init__(
        self,
        target: str | None = None,
        column: str = "path",
        load: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.column = column
        self.parser: Any
        if target is None:
            self.parser = PipelineParser(ParseSettings(**settings))
            return
        from draftlens.documents.run import DocumentParser
        from draftlens.load_engine import load as load_engine

        engine = load_engine(target, method="plain", **(load or {}))
        self.parser = DocumentParser(engine, ParseSettings(**settings))
        self.parser.calibrate()

    def __call__(self, batch: Columns) -> Columns:
        """Adds columns `markdown` (of the pages that were parsed, with empty lines between them),
        `pages` (their number), `failed` (that of others) and `error` (the first; empty if all were
        parsed)."""
        if self.column not in batch:
            names = ", ".join(sorted(batch))
            raise InputError(f"there is no column {self.column!r}; there are {names}")
        documents = [self._pages(str(path)) for path in batch[self.column]]
        parsed = [[page for page in pages if page.error is None] for pages in documents]
        texts = [[page.markdown.strip() for page in pages] for pages in parsed]
        errors = [[page.error for page in pages if page.error is not None] for pages in documents]
        return {
            **batch,
            "markdown": _texts("\n\n".join(filter(None, each)) for each in texts),
            "pages": np.array([len(pages) for pages in parsed], dtype=np.int64),
            "failed": np.array([len(each) for each in errors], dtype=np.int64),
            "error": _texts(each[0] if each else "" for each in errors),
        }

    def _pages(self, path: str) -> list[ParsedPage]:
        try:
            return list(self.parser.parse([path]))
        except DraftlensError as error:  # such as a folder without documents
            return [ParsedPage(path, 0, ended="failed", error=str(error))]


def _texts(texts: Any) -> Any:
    return np.array(list(texts), dtype=object)
