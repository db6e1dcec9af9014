"""Answers of many kinds, some of which fail or are dropped, leave nothing behind."""

from __future__ import annotations

from pathlib import Path

from faults.soak import PICTURE, Answers, Held


def test_what_is_held_returns_to_what_it_was(tmp_path: Path) -> None:
    """Objects of an answer, hooks, weak tables, threads and descriptors."""
    answers = Answers(tmp_path, in_processes=False)

    def held() -> Held:
        for give in answers.kinds.values():
            give()
        return Held.now()

    first = held()
    assert sum(first.tables.values()) > 0
    assert not held().grown(first)
    kept = answers.engine.stream("What is shown?", images=PICTURE, max_new_tokens=4)
    next(kept)
    assert {"Stream: 0 before, 1 now", "Session: 0 before, 1 now"} <= set(Held.now().grown(first))
