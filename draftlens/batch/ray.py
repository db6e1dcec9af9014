"""Answers about the rows of a Ray dataset, on as many workers as there are machines for.

    dataset = ray.data.from_items([{"path": path} for path in paths])
    answers = dataset.map_batches(
        CaptionBatch,
        fn_constructor_kwargs={"prompt": "Describe the video.", "load": {"target": NAME}},
        concurrency=4,
        num_gpus=1,
        batch_size=16,
    )
    answers.write_parquet(folder)

Ray gives the rows of a worker that dies to another one. `pip install "draftlens[ray]"` installs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftlens import load_engine
from draftlens.batch.map import ClipAnswer, MapOptions
from draftlens.core.errors import InputError

Columns = dict[str, Any]


class CaptionBatch:
    """Answers one prompt about each clip of a batch: a class for `Dataset.map_batches`.

    A worker makes one object, which loads the models once. Media are read by the worker, so their
    paths must be valid there.
    """

    def __init__(
        self,
        prompt: str,
        column: str = "path",
        load: Mapping[str, Any] | None = None,
        options: MapOptions | None = None,
        generation: Mapping[str, Any] | None = None,
    ) -> None:
        self.prompt = prompt
        self.column = column
        self.options = options or MapOptions()
        self.generation = dict(generation or {})
        self.engine: Any = load_engine.load(**(load or {}))

    def __call__(self, batch: Columns) -> Columns:
        """The columns of a batch and three more: `text`, `tokens` (their number) and `error`, which
        is empty for a clip that was answered."""
        if self.column not in batch:
            raise InputError(
                f"there is no column {self.column!r}; there are {', '.join(sorted(batch))}"
            )
        sources = [str(source) for source in batch[self.column]]
        answers: dict[int, ClipAnswer] = {}
        for answer in self.engine.map(
            sources, self.prompt, options=self.options, **self.generation
        ):
            answers[answer.index] = answer
        ordered = [answers[index] for index in range(len(sources))]
        return {
            **batch,
            "text": np.array([answer.text for answer in ordered], dtype=object),
            "tokens": np.array([len(answer.tokens) for answer in ordered], dtype=np.int64),
            "error": np.array([answer.error or "" for answer in ordered], dtype=object),
        }
