"""The command `draftlens parse`: files, exit statuses, interruptions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pdfs
import pytest
from compiling import attach_static, library_of

from draftlens.parsing import reader
from draftlens.parsing.parser import PageParser

Command = Callable[..., tuple[int, str, str]]

FAST = (
    *("--target", "embedded", "--drafter", "text-layer", "--layout", "blocks", "--no-calibrate"),
    *("--prompt", "Describe the image.", "--max-new-tokens", "12", "--dpi", "60"),
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three pages, the second one empty."""
    return pdfs.write(tmp_path / "a.pdf", [pdfs.columns, pdfs.blank, pdfs.columns])


def parse(command: Command, *words: Any) -> tuple[int, str, str]:
    return command("parse", *map(str, words), *FAST)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_pages_are_files_with_stocks_tokens(command: Command, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, printed, _ = parse(command, source, "-o", out, "--stages", "regions+page", "--verify")
    assert code == 0
    assert printed.count("identical to stock generate") == 2
    assert "page 2: 0 tokens, blank" in printed
    assert printed.strip().endswith(f"3 pages parsed, 0 left out, 0 failed: {out}")
    assert files(out) == [
        "a.md",
        *(f"a/page-000{number}.{kind}" for number in (1, 2, 3) for kind in ("json", "md")),
    ]
    page = json.loads((out / "a" / "page-0001.json").read_text())
    assert page["lossless"] is True
    assert page["verification"]["identical"] is True
    assert page["ended"] in ("end", "length")
    assert page["stats"]["page"]["emitted"] == page["tokens"] == 12
    assert page["stats"]["regions"]["emitted"] > 0
    assert [region["kind"] for region in page["regions"]] == ["title", "text", "text"]
    assert page["regions"][0]["texts"][0]["text"] == "Of mills and bridges"
    assert all(region["answer"] for region in page["regions"])
    assert {"render", "layout", "read", "regions", "verify"} <= page["seconds"].keys()
    text = (out / "a" / "page-0001.md").read_text()
    assert text == page["markdown"] + "\n"
    assert (out / "a.md").read_text().count(text.strip()) >= 1


def test_pages_are_read_by_compiled_passes(
    command: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tokens are stock's. The compiler's part is played by the modules."""
    models = []

    def attach(backbones: list[Any], compile: object) -> None:
        models.extend(backbone.model for backbone in backbones)
        attach_static(backbones, compile)

    monkeypatch.setattr("draftlens.api.attach", attach)
    monkeypatch.setattr("draftlens.api.compile_usual", lambda backbone: None)
    words = (source, "-o", tmp_path / "out", "--stages", "page", "--verify")
    code, printed, _ = parse(command, *words, "--compile", "yes")
    assert code == 0
    assert printed.count("identical to stock generate") == 2
    (model,) = models
    assert sum(library_of(model).calls.values()) > 0
    code, _, error = parse(command, *words, "--compile", "maybe")
    assert code == 2
    assert "--compile must be 'yes', 'auto' or 'no', not 'maybe'" in error


def test_existing_pages_are_left_out_unless_something_changed(
    command: Command, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert parse(command, source, "-o", out, "--pages", "1-2")[0] == 0
    again = (source, "-o", out, "--skip-existing", "--json")
    code, printed, _ = parse(command, *again)
    assert code == 0
    summary = json.loads(printed)
    assert (summary["parsed"], summary["skipped"], summary["failed"]) == (1, 2, 0)
    assert [page["page"] for page in summary["pages"]] == [3]
    assert json.loads(parse(command, *again, "--tolerance", "0.9")[1])["skipped"] == 0


def test_failures_have_a_sentence_and_an_exit_status(
    command: Command, source: Path, tmp_path: Path
) -> None:
    secret = pdfs.encrypted(tmp_path / "secret.pdf", "x")
    out = tmp_path / "out"
    code, printed, errors = parse(command, secret, source, "-o", out, "--pages", "3,9")
    assert code == 1
    assert f"failed: cannot read {secret}: it needs a password" in errors
    assert f"failed: cannot read {source}, page 9: the file has 3 pages" in errors
    assert "1 pages parsed, 0 left out, 2 failed" in printed
    assert (out / "a" / "page-0003.md").exists()
    assert parse(command, secret, "-o", out)[0] == 2
    assert parse(command, secret, "-o", out, "--password", "x")[0] == 0
    code, _, errors = parse(command, tmp_path / "none.pdf", "-o", out)
    assert code == 2
    assert "there is no such file" in errors
    assert parse(command, source, "-o", out, "--stages", "none")[0] == 2


def test_what_was_parsed_before_an_interruption_stays(
    command: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    parse_pages = PageParser.parse

    def interrupted(self: PageParser, pages: Any) -> Any:
        if pages[0].number == 3:
            raise KeyboardInterrupt
        return parse_pages(self, pages)

    monkeypatch.setattr(PageParser, "parse", interrupted)
    assert parse(command, source, "-o", out)[0] == 130
    kept = files(out)
    assert "a/page-0001.md" in kept
    assert "a.md" in kept
    assert not any(name.endswith(".part") or "0003" in name for name in kept)
    monkeypatch.undo()
    code, printed, _ = parse(command, source, "-o", out, "--skip-existing")
    assert code == 0
    assert "1 pages parsed, 2 left out, 0 failed" in printed


def test_without_a_reader_in_the_package_a_target_has_to_be_named(
    command: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "READER_FOLDER", "nowhere")
    code, _, errors = command("parse", str(source), "-o", str(tmp_path / "out"))
    assert code == 2
    assert "holds no document reader: name a document model with --target" in errors


def test_names_that_are_not_utf_8_are_parsed(
    command: Command, source: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    name = os.fsdecode(b"caf\xe9.pdf")
    source.rename(folder / name)
    (folder / f"bad {name}").write_bytes(b"%PDF-1.7\nno structure")
    out = tmp_path / "out"
    code, printed, err = parse(command, folder, "-o", out, "--method", "plain", "--pages", "1")
    assert code == 1, err
    assert "1 pages parsed, 0 left out, 1 failed" in printed
    pages = [json.loads(path.read_bytes()) for path in out.rglob("*/*.json")]
    errors = {Path(page["source"]).name: page["error"] for page in pages}
    assert errors.keys() == {name, f"bad {name}"}
    assert errors[name] is None
    assert "pdfium finds no valid structure" in errors[f"bad {name}"]
