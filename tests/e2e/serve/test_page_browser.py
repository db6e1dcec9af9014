"""The page in a real browser: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serve.running import CHATS, CLIPS, Running, ask, pdf, until

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install 'draftlens[browser]'")
CHROMIUM = shutil.which("chromium")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 640}
LENGTH = 24
THING = {
    "type": "object",
    "properties": {"shape": {"enum": ["circle", "square"]}, "colour": {"enum": ["red", "blue"]}},
    "required": ["shape", "colour"],
    "additionalProperties": False,
}
THINGS = {
    "type": "object",
    "properties": {
        "things": {"type": "array", "items": THING, "minItems": 2, "maxItems": 2},
        "dark": {"type": "boolean"},
    },
    "required": ["things", "dark"],
    "additionalProperties": False,
}
MILLISECONDS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Page:
    """A tab of the browser, with what it asks for and complains about."""

    def __init__(self, browser: sync_api.Browser, url: str, size: dict[str, int]) -> None:
        self.url = url
        self.tab = browser.new_page(viewport=size)
        self.tab.set_default_timeout(MILLISECONDS)
        self.requests: list[sync_api.Request] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.goto(url)
        self.tab.get_by_text("draft embedded").wait_for()

    def ask(self, words: str, files: Sequence[str] = (), length: int = LENGTH) -> str:
        """The text of the answer."""
        if files:
            self.tab.set_input_files("#files", [CLIPS / name for name in files])
            self.tab.locator("#chosen figure").nth(len(files) - 1).wait_for()
        self.tab.locator("#length").evaluate("(input, value) => { input.value = value; }", length)
        self.tab.get_by_label("Prompt").fill(words)
        self.tab.get_by_role("button", name="Ask").click()
        return self.answer()

    def answer(self) -> str:
        """Of the last turn, once it has ended."""
        self.tab.get_by_role("button", name="Ask").wait_for()
        return str(self.tab.locator(".said").last.text_content())

    def bodies(self) -> list[dict[str, Any]]:
        """Of the requests for answers."""
        posts = [request for request in self.requests if request.method == "POST"]
        return [json.loads(request.post_data) for request in posts]

    def check(self) -> None:
        """Nothing came from elsewhere, and nothing went wrong."""
        sources = {request.url.partition(":")[0] for request in self.requests}
        others = [each.url for each in self.requests if not each.url.startswith(self.url)]
        assert sources <= {"http", "data", "blob"}
        assert not [url for url in others if url.startswith("http")]
        assert not self.complaints


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: sync_api.Browser, server: Running) -> Iterator[Open]:
    pages: list[Page] = []

    def open_page(size: dict[str, int] = DESKTOP) -> Page:
        pages.append(Page(browser, server.url, size))
        return pages[-1]

    yield open_page
    for page in pages:
        page.check()
        page.tab.close()


def test_a_picture(opened: Open, stock: Callable[..., str]) -> None:
    page = opened()
    assert page.ask("Describe the image.", ["shapes.png"]) == stock("picture")
    assert page.bodies()[0]["messages"] == CHATS["picture"]
    tinted = page.tab.locator(".said mark")
    assert tinted.count()
    back = "node => getComputedStyle(node).backgroundColor"
    assert tinted.first.evaluate(back) != page.tab.locator(".said").evaluate(back)
    figures = str(page.tab.locator(".figures").text_content())
    assert "draft tokens accepted" in figures
    assert "the tokens of generate()" in figures


def test_turns_are_kept(opened: Open, client: Any, stock: Callable[..., str]) -> None:
    """The second question is sent with the first one and its answer; a new chat begins without."""
    page = opened()
    first = page.ask("Describe the video.", ["shapes.mp4"])
    assert first == stock("clip")
    second = page.ask("And then?", length=6)
    bodies = page.bodies()
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "user"]
    given = {"messages": bodies[1]["messages"], "max_tokens": 6, "temperature": 0}
    assert second == ask(client, "clip", **given).choices[0].message.content
    page.tab.get_by_role("button", name="New chat").click()
    assert not page.tab.locator(".said").count()
    page.ask("Describe the image.", length=2)
    assert len(page.bodies()[2]["messages"]) == 1
    chats = page.tab.get_by_role("navigation", name="Chats").get_by_role("listitem")
    assert chats.all_text_contents() == ["Describe the image.", "Describe the video."]
    chats.nth(1).get_by_role("button").first.click()
    assert page.tab.locator(".said").all_text_contents() == [first, second]


def test_chats_are_kept_on_reload(opened: Open, stock: Callable[..., str]) -> None:
    """With their media, and the next question continues them; a chat that was deleted is gone."""
    page = opened()
    first = page.ask("Describe the image.", ["shapes.png"])
    page.tab.get_by_role("button", name="New chat").click()
    page.ask("And now?", length=2)
    chats = page.tab.get_by_role("navigation", name="Chats").get_by_role("listitem")
    page.tab.reload()
    chats.nth(1).wait_for()
    assert chats.all_text_contents() == ["And now?", "Describe the image."]
    chats.nth(1).get_by_role("button").first.click()
    assert page.tab.locator(".said").all_text_contents() == [first] == [stock("picture")]
    assert page.tab.locator(".asked img").count() == 1
    page.ask("And then?", length=2)
    assert page.bodies()[-1]["messages"][:1] == CHATS["picture"]
    page.tab.get_by_role("button", name="Delete Describe the image.").click()
    page.tab.reload()
    chats.first.wait_for()
    assert chats.all_text_contents() == ["And now?"]
    assert not page.tab.locator(".said").count()


def test_the_form_of_an_answer(opened: Open, client: Any) -> None:
    """The answer is a table, whose text can be opened; without a form it never is."""
    page = opened()
    page.tab.get_by_text("Options").click()
    page.tab.get_by_label("Form of the answer").fill("{")
    page.tab.get_by_label("Prompt").fill("What is there?")
    page.tab.get_by_role("button", name="Ask").click()
    assert "The form is not JSON" in str(page.tab.get_by_role("alert").text_content())
    page.tab.get_by_label("Form of the answer").fill(json.dumps(THINGS))
    text = page.ask("What is there?", ["shapes.png"], length=200)
    assert page.bodies()[0]["response_format"]["json_schema"]["schema"] == THINGS
    value = json.loads(text)
    table = page.tab.locator(".table > table")
    rows = table.locator("table tr")
    assert table.locator("th").all_text_contents() == ["things", "shape", "colour", "dark"]
    shown = [rows.nth(number).locator("td").all_text_contents() for number in (1, 2)]
    assert shown == [list(each.values()) for each in value["things"]]
    assert not page.tab.locator(".said").is_visible()
    page.tab.locator(".table").get_by_text("Text").click()
    assert page.tab.locator(".said").is_visible()
    page.tab.get_by_label("Form of the answer").fill("")
    page.ask("And then?", length=2)
    assert "response_format" not in page.bodies()[1]
    assert page.tab.locator(".table > table").count() == 1


def test_shades(opened: Open, stock: Callable[..., str]) -> None:
    """The less likely a token is, the stronger its shade; its probabilities are its title."""
    page = opened()
    page.tab.get_by_text("Options").click()
    page.tab.get_by_label("Shade unlikely tokens").check()
    assert page.ask("Describe the video.", ["shapes.mp4"]) == stock("clip")
    body = page.bodies()[0]
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    spans = page.tab.locator(".said span")
    titles = [str(spans.nth(number).get_attribute("title")) for number in range(spans.count())]
    assert all(title.count("\n") == 2 for title in titles)
    doubts = spans.evaluate_all("all => all.map(each => each.style.getPropertyValue('--doubt'))")
    for title, doubt in zip(titles, doubts, strict=True):
        probability = float(title.splitlines()[0].rpartition(" ")[2].strip("%"))
        assert abs(100 - probability - float(doubt.strip("%"))) <= 1
    assert not page.tab.locator(".said mark").count()
    page.tab.get_by_label("Shade unlikely tokens").uncheck()
    page.ask("And then?", length=4)
    assert "logprobs" not in page.bodies()[1]


def test_stop(opened: Open, server: Running) -> None:
    page = opened()
    page.tab.get_by_text("Options").click()
    page.tab.get_by_label("Temperature").fill("1.9")  # an answer that goes on
    page.tab.locator("#length").fill("1000")
    page.tab.get_by_label("Prompt").fill("Describe the image.")
    page.tab.keyboard.press("Enter")
    page.tab.locator(".said:not(:empty)").wait_for()
    page.tab.get_by_role("button", name="Stop").click()
    assert page.answer()
    assert "stopped" in str(page.tab.locator(".figures").text_content())
    until(lambda: not server.scheduler.num_rows)
    page.ask("Describe the image.", length=2)  # the next answer is not affected


def test_a_keyboard_suffices(opened: Open) -> None:
    page = opened()
    page.tab.on("filechooser", lambda chooser: None)  # from now on no dialog opens
    press = page.tab.keyboard.press
    focused = "document.activeElement.id || document.activeElement.textContent"
    page.tab.keyboard.type("Describe the image.")  # the prompt has the focus
    press("Enter")
    page.tab.locator(".said:not(:empty)").wait_for()
    press("Escape")
    page.answer()
    page.tab.keyboard.type("Again")  # the focus is back
    seen = []
    for _ in range(12):
        press("Tab")
        seen.append(page.tab.evaluate(focused))
    assert {"send", "new", "turns", "add", "words"} <= set(seen)
    while page.tab.evaluate(focused) != "add":
        press("Tab")
    with page.tab.expect_file_chooser() as chooser:
        press("Enter")
    chooser.value.set_files([CLIPS / "shapes.png"])
    page.tab.get_by_role("button", name="Remove shapes.png").press("Enter")
    assert not page.tab.locator("#chosen figure").count()


def test_a_phone(opened: Open) -> None:
    page = opened(PHONE)
    page.ask("Describe " + "the.image." * 30, ["shapes.png"], length=4)
    page.tab.set_input_files("#files", [CLIPS / "shapes.png"] * 6)
    page.tab.get_by_text("Options").click()
    page.tab.get_by_text("Explain").first.click()
    widths = """[...document.querySelectorAll("html, body, main, form, #turns")]
        .map(node => [node.scrollWidth, node.clientWidth])"""
    assert all(whole <= seen for whole, seen in page.tab.evaluate(widths))
    for name in ("Ask", "New chat", "Add a picture, a clip or a PDF file"):
        box = page.tab.get_by_role("button", name=name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        assert min(box["height"], box["width"]) >= 44  # a finger's


def test_a_pdf_file_is_dropped(opened: Open, tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    from tests import pdfs

    page = opened()
    content = pdfs.write(tmp_path / "a.pdf", [pdfs.columns]).read_bytes()
    page.tab.evaluate(
        """bytes => {
          const dropped = new DataTransfer();
          const content = new Uint8Array(bytes);
          dropped.items.add(new File([content], "pages.pdf", { type: "application/pdf" }));
          dropped.items.add(new File(["x"], "a.txt", { type: "text/plain" }));
          document.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped }));
        }""",
        list(content),
    )
    page.tab.locator("#chosen").get_by_text("pages.pdf").wait_for()
    assert page.tab.get_by_role("alert").text_content() == "a.txt is no picture, clip or PDF file."
    assert page.ask("Describe the page.", length=4)
    assert page.bodies()[0]["messages"][0]["content"][0] == pdf(content)
    assert page.tab.locator(".asked .pdf").text_content() == "pages.pdf"


def test_an_error_is_shown(opened: Open, tmp_path: Path) -> None:
    page = opened()
    (tmp_path / "a.png").write_bytes(b"no picture")
    page.tab.set_input_files("#files", tmp_path / "a.png")
    page.tab.locator("#chosen figure").wait_for()
    page.tab.get_by_role("button", name="Ask").click()
    page.tab.locator(".figures .error").wait_for()
    assert "the picture cannot be read" in str(page.tab.locator(".figures").text_content())
    # The browser itself reports the status.
    assert [text for text in page.complaints if "422" not in text] == []
    page.complaints.clear()
