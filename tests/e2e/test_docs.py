"""The code in README and CONTRIBUTING runs and does what is said beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import draftlens
from draftlens.core.proposal import DraftTree
from draftlens.core.tree import chain, cut

ROOT = Path(__file__).resolve().parents[2]


def blocks(name: str) -> list[str]:
    """Python code blocks of a document."""
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def test_the_first_result_of_the_readme(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    code = blocks("README.md")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 5
    exec(code, {})
    out = capsys.readouterr().out
    assert out.startswith("The video has one shot and no cut. The first shot shows four shapes")
    assert out.strip().endswith("True")


def test_the_readmes_engine_examples(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    engine: draftlens.Engine,
) -> None:
    clips = ROOT / "draftlens" / "embedded" / "clips"
    (tmp_path / "clip.mp4").write_bytes((clips / "drift.mp4").read_bytes())
    (tmp_path / "a.png").write_bytes((clips / "shapes.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    streaming, methods = (
        next(b for b in blocks("README.md") if word in b)
        for word in ("chunk.text", 'method="plain"')
    )
    exec(streaming, {"engine": engine})
    assert capsys.readouterr().out.strip()
    exec(methods, {"draftlens": draftlens})


def test_the_drafter_of_contributing(engine: draftlens.Engine) -> None:
    """It guesses badly, and the answer is the same."""
    names: dict[str, Any] = {"chain": chain, "cut": cut, "DraftTree": DraftTree}
    exec(next(block for block in blocks("CONTRIBUTING.md") if "class RepeatLast" in block), names)

    @dataclass(frozen=True)
    class Repeating:
        name: ClassVar[str] = "repeating"
        sampling_rule: ClassVar[str] = "coupled"

        def drafter(self, *_: object) -> Any:
            return names["RepeatLast"]()

    inputs = engine.read(
        "Describe the video.", video=ROOT / "draftlens" / "embedded" / "clips" / "drift.mp4"
    )
    for length in (1, 2, 3, 40):
        fast = engine.answer(inputs, method=Repeating(), max_new_tokens=length).run()  # type: ignore[arg-type]
        assert (
            fast.tokens == engine.answer(inputs, method="plain", max_new_tokens=length).run().tokens
        )
    assert fast.stats.drafted > fast.stats.accepted
