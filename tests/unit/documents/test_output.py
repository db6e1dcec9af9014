"""Output folders: which files are whose, and what is known again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from draftlens import ConfigError, ParsedPage
from draftlens.documents.output import INDEX, OutputFolder, document_name

OPTIONS = {"settings": 1}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(*names: str) -> list[str]:
    """Files whose content is their name."""
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    return list(names)


def write(pages: list[ParsedPage], options: dict[str, Any] = OPTIONS, out: str = "out") -> None:
    """One run of the command."""
    with OutputFolder(Path(out)) as folder:
        for source in dict.fromkeys(page.file for page in pages):
            folder.claim(source)
        folder.begin(options)
        for page in pages:
            folder.write(page)


def has(source: str, number: int, options: dict[str, Any] = OPTIONS) -> bool:
    with OutputFolder(Path("out")) as folder:
        folder.claim(source)
        folder.begin(options)
        return folder.has(source, number)


def read(source: str, number: int, text: str | None = None) -> ParsedPage:
    """A page; its text names where it is from."""
    return ParsedPage(source, number, text or f"{source} {number}", ended="read")


def index() -> Any:
    return json.loads(Path("out", INDEX).read_text())["documents"]


def files(folder: str = "out") -> list[str]:
    found = (path for path in Path(folder).rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in found)


def test_documents_of_one_stem_are_not_mixed() -> None:
    make("in/a.pdf", "in/a.png", "in/x.pdf", "in/x/page-0001.pdf")
    write(
        [
            read("in/a.pdf", 1),
            read("in/a.pdf", 2),
            read("in/a.png", 1),
            read("in/x.pdf", 1),
            read("in/x/page-0001.pdf", 1),
        ]
    )
    assert Path("out/in/a.pdf.md").read_text() == "in/a.pdf 1\n\nin/a.pdf 2\n"
    for name in ("in/a.png", "in/x.pdf", "in/x/page-0001.pdf"):
        assert Path(f"out/{name}.md").read_text() == f"{name} 1\n"
    assert [len(entry["pages"]) for entry in index().values()] == [2, 1, 1, 1]


def test_names_follow_from_the_path_alone() -> None:
    """So they do not depend on what else is in the call, and nothing of a later call is lost."""
    make("x/a.pdf", "y/a.pdf")
    write([read("x/a.pdf", 1), read("y/a.pdf", 1)])
    before = files()
    write([read("y/a.pdf", 1, "again")])
    assert files() == before
    assert Path("out/x/a.pdf.md").read_text() == "x/a.pdf 1\n"
    assert Path("out/y/a.pdf.md").read_text() == "again\n"


@pytest.mark.parametrize("name", ["...pdf", "..pdf", "../a.pdf", "../../..a", "/...pdf", "./x/.."])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    parts = document_name(name).split("/")
    assert ".." not in parts
    assert not document_name(name).startswith("/")


def test_a_file_of_dots_stays_in_the_folder() -> None:
    """Its stem is `..`, and beside the output folder a file of the user has the same name."""
    make("...pdf", "page-0001.md", "mine/...md")
    write([read("...pdf", 1)], out="mine/out")
    assert Path("page-0001.md").read_text() == "page-0001.md"
    assert Path("mine/...md").read_text() == "mine/...md"
    pages = [f"...pdf.pages/page-0001.{kind}" for kind in ("json", "md")]
    assert files("mine/out") == ["...pdf.md", *pages, "documents.jsonl", "index.json"]


def test_a_name_that_belongs_to_another_input_is_refused() -> None:
    make("x/a.pdf", "y/x/a.pdf", "x/a.pdf.pages/page-0001", "index.json")
    write([read("x/a.pdf", 1)])
    before = files()
    os.chdir("y")
    with OutputFolder(Path("../out")) as folder:
        for source, cause in (
            ("x/a.pdf", "x/a.pdf belongs to .*/x/a.pdf; choose another --out"),
            ("../x/a.pdf.pages/page-0001", "x/a.pdf.pages belongs to"),
        ):
            with pytest.raises(ConfigError, match=f"^cannot write the pages of {source} .*{cause}"):
                folder.claim(source)
    os.chdir("..")
    assert files() == before
    assert Path("out/x/a.pdf.md").read_text() == "x/a.pdf 1\n"


def test_files_of_others_are_not_replaced() -> None:
    make("a.pdf", "b.pdf", "out/a.pdf.md", "out/b.pdf.pages/notes.txt")
    with OutputFolder(Path("out")) as folder:
        for source in ("a.pdf", "b.pdf"):
            with pytest.raises(ConfigError, match=r"is there, and index\.json does not name it"):
                folder.claim(source)
    assert Path("out/a.pdf.md").read_text() == "out/a.pdf.md"
    make("other/index.json")
    with (
        pytest.raises(ConfigError, match="is no index of draftlens parse"),
        OutputFolder(Path("other")),
    ):
        pass
    assert Path("other/index.json").read_text() == "other/index.json"
    with (
        pytest.raises(ConfigError, match=r"--out must be a folder: a\.pdf is a file"),
        OutputFolder(Path("a.pdf")),
    ):
        pass


def test_links_in_the_folder_do_not_lead_out_of_it() -> None:
    make("sub/a.pdf", "elsewhere/mine.md")
    Path("out").mkdir()
    Path("out/sub").symlink_to(Path("elsewhere").resolve())
    with OutputFolder(Path("out")) as folder, pytest.raises(ConfigError, match="out of the folder"):
        folder.claim("sub/a.pdf")
    assert files("elsewhere") == ["mine.md"]


def test_damaged_indices_are_refused() -> None:
    make("out/index.json")
    whole = {"writer": "draftlens parse", "format": 2, "documents": {}}
    for text in (
        "[" * 100_000,
        "[]",
        "7",
        "{",
        json.dumps({**whole, "format": 1}),
        json.dumps({**whole, "documents": {"a": {"input": 5}}}),
        json.dumps({**whole, "documents": {"a": {"place": "a"}}}),
        json.dumps({**whole, "documents": []}),
    ):
        Path("out/index.json").write_text(text)
        with pytest.raises(ConfigError, match="is no index"), OutputFolder(Path("out")):
            pass
    Path("out/index.json").write_text(json.dumps(whole))
    with OutputFolder(Path("out")):
        pass


def test_pages_are_known_again() -> None:
    make("a.pdf")
    failed = ParsedPage("a.pdf", 3, ended="failed", error="cannot")
    write([read("a.pdf", 1), read("a.pdf", 2), failed])
    assert [has("a.pdf", number) for number in (1, 2, 3, 4)] == [True, True, False, False]
    assert not has("a.pdf", 1, {"settings": 2})
    (entry,) = index().values()
    assert entry["input"] == str(Path("a.pdf").resolve())
    assert (entry["size"], entry["options"]) == (5, OPTIONS)
    assert entry["pages"] == {"1": "read", "2": "read", "3": "failed"}
    write([ParsedPage("a.pdf", 1, "cut", ended="timeout")])
    assert not has("a.pdf", 1)
    Path("a.pdf").write_text("other")
    assert not has("a.pdf", 2)


def test_a_shorter_version_of_a_file_has_no_pages_of_the_longer_one() -> None:
    make("a.pdf")
    write([read("a.pdf", number) for number in (1, 2, 3)])
    Path("a.pdf").write_text("new")
    write([ParsedPage("a.pdf", 0, ended="failed", error="cannot")])
    assert Path("out/a.pdf.md").read_text().count("a.pdf") == 3
    write([read("a.pdf", 1, "short")])
    assert Path("out/a.pdf.md").read_text() == "short\n"
    assert not list(Path("out/a.pdf.pages").glob("page-0002*"))


def test_pages_of_other_options_stay_and_are_not_joined() -> None:
    make("a.pdf")
    write([read("a.pdf", 1, "one"), read("a.pdf", 2, "two")])
    write([read("a.pdf", 2, "other two")], {"settings": 2})
    assert Path("out/a.pdf.md").read_text() == "other two\n"
    assert has("a.pdf", 1)
    assert Path("out/a.pdf.md").read_text() == "one\n"


def test_pages_beyond_ten_thousand_are_joined_in_their_order() -> None:
    make("a.pdf")
    write([read("a.pdf", number) for number in (10_000, 9_999)])
    assert Path("out/a.pdf.md").read_text() == "a.pdf 9999\n\na.pdf 10000\n"


def test_a_folder_has_one_writer() -> None:
    second = OutputFolder(Path("out"))
    with (
        OutputFolder(Path("out")),
        pytest.raises(ConfigError, match="is writing to out"),
        second,
    ):
        pass
    with second:
        pass


def test_names_that_are_no_text_are_written_and_known_again() -> None:
    name = os.fsdecode(b"\xff.pdf")
    make("plain.pdf")
    Path(name).write_text("x")
    write([read(name, 1, "text"), read("plain.pdf", 1)])
    assert has(name, 1)
    assert has("plain.pdf", 1)
    assert name in index()
