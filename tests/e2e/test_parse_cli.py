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
from PIL import Image

from draftlens.documents.parser import PageParser
from draftlens.documents.reading import Reading
from draftlens.documents.reading import pipeline as pipelines
from draftlens.drafting.adaptive.costs import ForwardCosts
from draftlens.passes.inductor.engine import CompiledPasses

Command = Callable[..., tuple[int, str, str]]

KINDS = ("json", "md")

FAST = (
    *("--target", "embedded", "--drafter", "text-layer", "--layout", "blocks", "--no-calibrate"),
    *("--prompt", "Describe the image.", "--max-new-tokens", "12", "--dpi", "60"),
)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three pages, the second one empty, in the current folder."""
    pdfs.write(tmp_path / "a.pdf", [pdfs.columns, pdfs.blank, pdfs.columns])
    return Path("a.pdf")


def numbered(place: int) -> Callable[[Any], None]:
    """A page that says of which document it is."""
    return lambda canvas: pdfs.lines(canvas, 30, 30, [f"document-{place}"])


def parse(command: Command, *words: Any) -> tuple[int, str, str]:
    return command("parse", *map(str, words), *FAST)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_pages_are_files_with_stocks_tokens(
    command: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many draft tokens the prefill checks follows from these costs, not from measured ones: an
    answer that is whole after its prefill has no phase `verify`."""
    monkeypatch.setattr(ForwardCosts, "cost", lambda self, width, rows=1, context=None: 10 + width)
    out = tmp_path / "out"
    code, printed, _ = parse(command, source, "-o", out, "--verify")
    assert code == 0
    assert printed.count("identical to stock generate") == 2
    assert "page 2: blank" in printed
    assert printed.strip().endswith(f"3 pages parsed, 0 left out, 0 failed: {out / 'a.pdf.md'}")
    assert files(out) == [
        "a.pdf.md",
        *(f"a.pdf.pages/page-000{number}.{kind}" for number in (1, 2, 3) for kind in KINDS),
        "documents.jsonl",
        "index.json",
    ]
    page = json.loads((out / "a.pdf.pages" / "page-0001.json").read_text())
    assert page["lossless"] is True
    assert page["source"] == "model"
    assert page["verification"]["identical"] is True
    assert page["ended"] in ("end", "length")
    assert page["stats"]["page"]["emitted"] == page["tokens"] == 12
    assert "regions" not in page["stats"]
    assert [region["kind"] for region in page["regions"]] == ["title", "text", "text"]
    assert page["regions"][0]["texts"][0]["text"] == "Of mills and bridges"
    assert {"render", "layout", "read", "verify"} <= page["seconds"].keys()
    text = (out / "a.pdf.pages" / "page-0001.md").read_text()
    assert text == page["markdown"] + "\n"
    assert (out / "a.pdf.md").read_text().count(text.strip()) >= 1


def test_crops_alone_are_joined(command: Command, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, _ = parse(command, source, "-o", out, "--stages", "regions", "--pages", "1")
    assert code == 0
    page = json.loads((out / "a.pdf.pages" / "page-0001.json").read_text())
    assert page["approximate"] == ["regions without a page"]
    assert page["stats"]["regions"]["emitted"] > 0
    assert all(region["answer"] in page["markdown"] for region in page["regions"])
    assert page["seconds"]["regions"] > 0


def test_pages_are_read_by_compiled_passes(
    command: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tokens are stock's. The compiler's part is played by the modules."""
    models = []

    def attach(backbones: list[Any], compile: object, *_: object) -> None:
        models[:] = [backbone.model for backbone in backbones]
        attach_static(backbones, compile)

    monkeypatch.setattr("draftlens.engine.attach", attach)
    monkeypatch.setattr(CompiledPasses, "prepare", lambda passes: None)
    words = (source, "-o", tmp_path / "out", "--stages", "page", "--verify")
    code, printed, _ = parse(command, *words, "--compile", "yes")
    assert code == 0
    assert printed.count("identical to stock generate") == 2
    (model,) = models
    assert sum(library_of(model).calls.values()) > 0


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
    assert "1 page parsed, 0 left out, 2 failed" in printed
    assert (out / "a.pdf.pages" / "page-0003.md").exists()
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
    code, _, errors = parse(command, source, "-o", out)
    assert code == 130
    assert f"2 pages are in {out}: --resume goes on with the others" in errors
    kept = files(out)
    assert "a.pdf.pages/page-0001.md" in kept
    assert "a.pdf.md" in kept
    assert not any(name.endswith(".part") or "0003" in name for name in kept)
    monkeypatch.setattr(PageParser, "parse", parse_pages)
    code, printed, _ = parse(command, source, "-o", out, "--resume")
    assert code == 0
    assert "1 page parsed, 2 left out, 0 failed" in printed


def lines_of(folder: Path) -> dict[str, Any]:
    """The lines of the documents, by file."""
    lines = (folder / "documents.jsonl").read_text().splitlines()
    values = [json.loads(line) for line in lines]
    assert all(next(iter(value)) == "file" for value in values)
    assert len({value["file"] for value in values}) == len(values)
    return {value.pop("file"): value for value in values}


def test_each_document_of_a_folder_has_a_line(
    command: Command, source: Path, tmp_path: Path
) -> None:
    """Also those that fail; a later call goes on and replaces what it has read again."""
    folder = tmp_path / "in" / "deep"
    folder.mkdir(parents=True)
    secret, good = pdfs.encrypted(folder / "secret.pdf", "x"), folder / "a.pdf"
    source.rename(good)
    words = (str(tmp_path / "in"), "-o", "out", "--layout", "blocks")
    code, _, errors = command("parse", *words, "--pages", "1-2,5")
    assert code == 1
    assert f"failed: cannot read {secret}: it needs a password" in errors
    name = str(good).lstrip("/")
    missing = f"cannot read {good}, page 5: the file has 3 pages"
    whole = {"markdown": f"{name}.md", "pages": 2, "doubtful": 0, "error": None}
    found = lines_of(Path("out"))
    assert found[str(good)] == {**whole, "failed": {"5": missing}}
    assert found[str(secret)].pop("error") in errors
    assert found[str(secret)] == {"markdown": None, "pages": 0, "doubtful": 0, "failed": {}}
    assert (Path("out") / whole["markdown"]).is_file()
    # Killed while it wrote a line:
    with Path("out/documents.jsonl").open("a") as file:
        file.write('{"file":"x')
    code, printed, _ = command("parse", *words, "--resume", "--password", "x", "--json")
    assert code == 0
    assert json.loads(printed)["skipped"] == 2
    found = lines_of(Path("out"))
    assert found[str(good)] == {**whole, "pages": 3, "failed": {"5": missing}}
    assert (found[str(secret)]["pages"], found[str(secret)]["error"]) == (1, None)


def test_a_foreign_file_of_lines_is_left_as_it_is(command: Command, source: Path) -> None:
    Path("out").mkdir()
    Path("out/documents.jsonl").write_text("mine")
    code, _, errors = command("parse", str(source), "-o", "out", "--layout", "blocks")
    assert code == 2
    assert "out/documents.jsonl was written by something else and is left as it is" in errors
    assert Path("out/documents.jsonl").read_text() == "mine"


def test_without_a_target_the_text_of_a_document_is_printed(
    command: Command, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "installed_ocr", lambda: None)
    words = ("parse", str(source), "--layout", "blocks")
    code, printed, errors = command(*words)
    assert (code, errors) == (0, "")
    assert printed.startswith("# Of mills and bridges\n\nThe mill stands by the river and grinds")
    assert printed.count("1482 sacks") == 2
    code, printed, _ = command(*words, "--json", "--pages", "1-2")
    summary = json.loads(printed)
    assert summary["note"] is None
    first, blank = summary["pages"]
    assert (first["source"], first["lossless"], first["ended"]) == ("text layer", None, "read")
    assert first["markdown"].startswith("# Of mills")
    assert (blank["source"], blank["ended"]) == ("none", "blank")
    code, _, errors = command(*words, "--tolerance", "0.5")
    assert code == 2
    assert "tolerance=0.5 needs a document model: name one with --target" in errors
    assert command(*words, "--dtype", "float32")[0] == 2


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
    assert "1 page parsed, 0 left out, 1 failed" in printed
    pages = [json.loads(path.read_bytes()) for path in out.rglob("*/*.json")]
    errors = {Path(page["file"]).name: page["error"] for page in pages}
    assert errors.keys() == {name, f"bad {name}"}
    assert errors[name] is None
    assert "pdfium finds no valid structure" in errors[f"bad {name}"]


def test_what_is_printed_is_one_document(command: Command, source: Path) -> None:
    pdfs.write(source.with_name("b.pdf"), [pdfs.columns])
    code, printed, errors = command("parse", ".")
    assert (code, printed) == (2, "")
    assert "2 documents need --out" in errors
    code, _, errors = command("parse", str(source), "--resume")
    assert code == 2
    assert "--resume needs --out" in errors


def test_documents_are_neither_mixed_nor_lost(command: Command, tmp_path: Path) -> None:
    """Equal stems, a document beside the folder of another one's pages, names of dots, and a later
    call that names one document alone."""
    names = ("in/a.pdf", "in/a.png", "in/x.pdf", "in/x/page-0001.pdf", "in/...pdf", "in/y/a.pdf")
    for place, name in enumerate(names, start=1):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        pdfs.write(path, [numbered(place)] * (3 if name == "in/a.pdf" else 1))
    kept = [Path("page-0001.md"), Path("in.md"), Path("...md"), Path("out-of-the-way.md")]
    for path in kept:
        path.write_text("mine")
    reading = ("--layout", "blocks", "-o", "out")
    assert command("parse", "in", *reading)[0] == 0
    index = json.loads(Path("out/index.json").read_text())["documents"]
    assert index.keys() == set(names)
    for place, name in enumerate(names, start=1):
        assert Path(f"out/{name}.md").read_text().split() == len(index[name]["pages"]) * [
            f"document-{place}"
        ]
        assert index[name]["input"] == str(Path(name).resolve())
        assert index[name]["size"] == Path(name).stat().st_size
    before = {path: path.read_bytes() for path in Path("out").rglob("*.md")}
    assert command("parse", "in/y/a.pdf", *reading)[0] == 0
    assert {path: path.read_bytes() for path in Path("out").rglob("*.md")} == before
    assert all(path.read_text() == "mine" for path in kept)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["in", "out"]


def test_a_name_of_another_document_is_refused_and_the_others_go_on(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, folder in enumerate(("one", "two"), start=1):
        Path(folder).mkdir()
        pdfs.write(Path(folder, "a.pdf"), [numbered(place)])
    pdfs.write(Path("two/b.pdf"), [numbered(3)])
    reading = ("--layout", "blocks", "-o", "../out")
    monkeypatch.chdir("one")
    assert command("parse", "a.pdf", *reading)[0] == 0
    monkeypatch.chdir("../two")
    code, printed, errors = command("parse", "a.pdf", "b.pdf", *reading)
    assert code == 1
    assert "a.pdf belongs to" in errors
    assert "1 page parsed, 0 left out, 1 failed" in printed
    assert Path("../out/a.pdf.md").read_text() == "document-1\n"
    assert Path("../out/b.pdf.md").read_text() == "document-3\n"
    assert "a.pdf belongs to" in lines_of(Path("../out"))["a.pdf"]["error"]
    assert lines_of(Path("../out"))["b.pdf"]["pages"] == 1
    assert command("parse", "a.pdf", *reading)[0] == 2


def test_the_reader_of_the_package_runs_by_name_only(
    command: Command, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says itself how it is asked; that it is a toy, the error stream and the JSON say."""
    words = ("parse", str(source), "--pages", "1", "--max-new-tokens", "2", "--no-calibrate")
    code, printed, errors = command(*words, "--target", "reader", "--json")
    assert code == 0
    assert "the reader is a toy" in errors
    summary = json.loads(printed)
    assert summary["note"].startswith("the reader is a toy for measuring")
    (page,) = summary["pages"]
    assert (page["source"], page["lossless"], page["tokens"]) == ("model", True, 2)


def test_files_are_opened_before_a_model_is_loaded(
    command: Command, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: Any, **options: Any) -> Any:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("draftlens.cli.loading.load", load)
    secret = pdfs.encrypted(source.with_name("secret.pdf"), "x")
    code, _, errors = parse(command, secret, "-o", "out")
    assert code == 2
    assert "it needs a password" in errors


def test_nonsense_of_the_reader_does_not_count_as_parsed(command: Command) -> None:
    """A page that it was not trained on."""
    pdfs.write(Path("b.pdf"), [pdfs.paragraph])
    words = ("parse", "b.pdf", "--target", "reader", "--drafter", "text-layer", "--no-calibrate")
    code, printed, errors = command(*words, "--layout", "blocks", "-o", "out")
    assert code == 1, errors
    assert "not counted as parsed: it " in printed
    assert "0 pages parsed, 1 doubtful, 0 left out, 0 failed: out/b.pdf.md" in printed
    code, printed, errors = command(*words, "--layout", "blocks", "--json")
    summary = json.loads(printed)
    assert (code, summary["parsed"], summary["doubtful"], summary["failed"]) == (1, 0, 1, 0)
    assert summary["pages"][0]["doubt"]


class FindsNothing:
    """A reader of pictures that finds no text."""

    def read(self, page: Any) -> Reading:
        return Reading("tesseract", ())


def test_a_picture_without_text_says_so(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does a blank page, if there is nothing else."""
    monkeypatch.setattr(pipelines, "installed_ocr", FindsNothing)
    Image.linear_gradient("L").save("photo.png")
    Image.new("L", (99, 99), "white").save("white.png")
    for name in ("photo.png", "white.png"):
        code, printed, errors = command("parse", name, "--layout", "blocks")
        assert (code, printed, errors) == (1, "", f"no text was found in {name}\n")
    code, printed, errors = command("parse", ".", "--layout", "blocks", "-o", "out")
    assert code == 1
    assert "photo.png, page 1: no text\nwhite.png, page 1: blank\n2 pages parsed" in printed
    assert errors == "no text was found in the 2 documents\n"
    for name in ("photo.png", "white.png"):
        values = json.loads(Path(f"out/{name}.pages/page-0001.json").read_text())
        assert values["source"] == "none"
    pdfs.write(Path("a.pdf"), [pdfs.columns])
    assert command("parse", ".", "--layout", "blocks", "-o", "out")[0] == 0


def test_pictures_lie_beside_the_pages(command: Command, tmp_path: Path) -> None:
    """The whole document names them, too, and pages of an earlier version take theirs along."""

    def drawn(canvas: Any) -> None:
        pdfs.lines(canvas, 30, 20, ["The mill stands by the river."])
        canvas.drawImage(pdfs.ImageReader(photograph), 60, 120, 180, 180)

    photograph = Image.effect_noise((180, 180), 90).convert("RGB")
    pdfs.write(tmp_path / "a b.pdf", [drawn])
    assert command("parse", "a b.pdf", "--pictures", "-o", "out")[0] == 0
    assert files(Path("out")) == [
        "a b.pdf.md",
        "a b.pdf.pages/page-0001-1.png",
        "a b.pdf.pages/page-0001.json",
        "a b.pdf.pages/page-0001.md",
        "documents.jsonl",
        "index.json",
    ]
    page = Path("out/a b.pdf.pages/page-0001.md").read_text()
    assert page.split()[-1] == "![](page-0001-1.png)"
    whole = Path("out/a b.pdf.md").read_text()
    assert whole.split()[-1] == "![](a%20b.pdf.pages/page-0001-1.png)"
    with Image.open("out/a b.pdf.pages/page-0001-1.png") as picture:
        assert picture.width > 300
    pdfs.write(tmp_path / "a b.pdf", [pdfs.columns])
    assert command("parse", "a b.pdf", "--pictures", "-o", "out")[0] == 0
    assert not list(Path("out").rglob("*.png"))


def test_pictures_need_a_folder(command: Command, source: Path) -> None:
    code, _, errors = command("parse", str(source), "--pictures")
    assert code == 2
    assert errors == "error: --pictures needs a folder for them: -o\n"
