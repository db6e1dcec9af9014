"""The page is well-formed, loads nothing, and contains the data of the trace."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from draftlens_lab.explain import page
from draftlens_lab.explain.html import inline_image
from PIL import Image

from tests.unit.lab.explain.timelines import serial
from tests.unit.lab.explain.traces import trace_of, visual_tokens

VOID = {"meta", "img", "br", "line", "rect", "source"}
NASTY = 'a "clip" </script><b>&amp;\'.mp4 <!-- http: //x'


class Reader(HTMLParser):
    """Checks that tags close in order, and collects attributes and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))


def parsed(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def scripts(text: str) -> dict[str, object]:
    scripts = re.findall(
        r'<script type="application/json" id="(\w+)">(.*?)</script>', text, re.DOTALL
    )
    return {name: json.loads(content) for name, content in scripts}


def test_the_data_are_the_trace() -> None:
    trace = trace_of(visual_tokens(spare=2), notes=("Something.",))
    data = scripts(page(trace))["trace"]
    assert data == json.loads(json.dumps(trace.to_dict()))
    assert isinstance(data, dict)
    assert data["views"][1]["kept"] == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert data["views"][0]["scores"][0][:2] == pytest.approx([1 / 24.5, 2 / 24.5], abs=1e-4)


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = page(trace_of(visual_tokens(), timelines={"serial": serial(3)}))
    reader = parsed(text)
    assert not re.search(r"https?:", text)
    assert "@import" not in text
    assert "url(" not in text
    for tag, attributes in reader.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert all(
            str(attributes.get(name, "data:")).startswith("data:")
            for name in ("src", "href", "srcset")
        )
    assert any(
        attributes.get("content", "")
        == "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'"
        for _, attributes in reader.tags
    )


def test_no_text_breaks_out_of_its_place() -> None:
    trace = trace_of(visual_tokens(), title=NASTY, prompt=NASTY, notes=(NASTY,))
    text = page(trace)
    reader = parsed(text)
    assert "".join(words for tag, words in reader.texts if tag == "h1") == NASTY
    assert [tag for tag, _ in reader.tags].count("b") == 4  # the figures on top
    assert scripts(text)["trace"] == json.loads(json.dumps(trace.to_dict()))
    assert text.count("<script") == text.count("</script>") == 3


def test_every_view_round_and_token_is_there() -> None:
    reader = parsed(page(trace_of(visual_tokens(3))))
    by = {
        name: [a[name] for _, a in reader.tags if name in a] for name in ("data-view", "data-round")
    }
    assert sorted(by["data-view"]) == sorted(["0", "1", "2"] * 2)  # a figure and a bar
    assert sorted(by["data-round"]) == sorted(
        ["1", "2", "3", "0", "1", "1", "3"]
    )  # bars, and tokens
    drafted = [
        attributes for tag, attributes in reader.tags if attributes.get("class") == "drafted"
    ]
    assert len(drafted) == 2
    answer = "".join(
        text for tag, text in reader.texts if tag == "span" and text in ("A", " red", " ball", ".")
    )
    assert answer == "A red ball."


def test_bars_of_rounds_are_as_high_as_tokens() -> None:
    text = page(trace_of(visual_tokens()))
    chart = text[text.index("Tokens of each round") :]
    heights = [
        float(h)
        for h in re.findall(
            r'class="kept" x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)"', chart
        )
    ]
    rests = [
        float(h)
        for h in re.findall(
            r'class="bonus" x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)"', chart
        )
    ]
    assert heights == pytest.approx([99, 0, 66])  # 3, 0 and 2 of at most 4, of 132
    assert rests == pytest.approx([33, 33, 0])


def test_pictures_are_inlined_as_they_are() -> None:
    image = Image.new("RGB", (900, 300), (200, 40, 40))
    address = inline_image(image, 300)
    picture = Image.open(
        io.BytesIO(base64.b64decode(address.removeprefix("data:image/jpeg;base64,")))
    )
    assert picture.size == (300, 100)
    assert np.abs(np.asarray(picture, int) - (200, 40, 40)).max() < 6
    assert image.size == (900, 300)  # the picture itself is not changed


@pytest.mark.parametrize(
    ("size", "drawn"), [((1200, 6), (640, 32)), ((30, 6000), (32, 640)), ((2, 100), (32, 640))]
)
def test_pictures_like_a_line_are_as_thick_as_they_are_drawn(
    size: tuple[int, int], drawn: tuple[int, int]
) -> None:
    address = inline_image(Image.new("RGB", size), 640)
    assert (
        Image.open(
            io.BytesIO(base64.b64decode(address.removeprefix("data:image/jpeg;base64,")))
        ).size
        == drawn
    )


@pytest.mark.parametrize(
    ("size", "row", "frame"),
    [
        ((120, 90), None, "aspect-ratio: 1.3333"),
        ((720, 7200), None, "aspect-ratio: 0.1000; max-width: 120px"),
        ((30, 6000), None, "aspect-ratio: 0.0500; max-width: 60px"),
        ((1200, 6), "grid-column: 1 / -1", "aspect-ratio: 20.0000"),
    ],
)
def test_long_pictures_have_room_on_the_page(
    size: tuple[int, int], row: str | None, frame: str
) -> None:
    """A narrow picture is at most 1200 pixels high, a broad one has a row of its own, and any
    other fills its column."""
    tags = parsed(page(trace_of(visual_tokens(1, image=Image.new("RGB", size), kept=(5,))))).tags
    assert [attributes.get("style") for tag, attributes in tags if tag == "figure"] == [row]
    assert [
        attributes["style"] for _, attributes in tags if attributes.get("class") == "frame"
    ] == [frame]


def test_views_without_pictures_scores_or_times_have_a_page_too() -> None:
    visual = visual_tokens(2, image=None, when=False)
    for view in visual.views:
        view.scores[:] = np.nan
    text = page(trace_of(visual))
    parsed(text)
    assert "Attention" not in text
    data = scripts(text)["trace"]
    assert isinstance(data, dict)
    assert data["views"][0]["scores"][0] == [None] * 4


STAND_IN = """
const page = JSON.parse(require("fs").readFileSync(0, "utf8"));
class Part {
  constructor(tagName, dataset = {}, textContent = "") {
    Object.assign(this, { tagName, dataset, textContent, drawn: 0, hidden: true });
    Object.assign(this, { heard: {}, inside: {}, marks: {} });
    Object.assign(this, { clientWidth: 40, clientHeight: 30, style: { setProperty() {} } });
    this.classList = {
      add: (name) => { this.marks[name] = true; },
      remove: (name) => { this.marks[name] = false; },
    };
  }
  addEventListener(kind, act) { (this.heard[kind] ??= []).push(act); }
  fire(kind, x = 0, y = 0) { this.heard[kind].forEach((act) => act({ clientX: x, clientY: y })); }
  querySelector(name) { return (this.inside[name] ??= new Part(name)); }
  getContext() { return { fillRect: () => { this.drawn += 1; } }; }
  getBoundingClientRect() { return { left: 0, top: 0, width: 40, height: 30 }; }
  replaceChildren(...parts) { this.said = parts.map((part) => part.textContent).filter(Boolean); }
  setAttribute(name, value) { this.marks[name] = value; }
}
const figures = page.trace.views.map((_, index) => new Part("FIGURE", { view: String(index) }));
const buttons = page.modes.map((mode) => new Part("BUTTON", { mode }));
const rounds = page.trace.rounds.map((_, index) => new Part("rect", { round: String(index + 1) }));
const ids = { tip: new Part("DIV") };
for (const name of ["trace", "look"]) {
  ids[name] = new Part("SCRIPT", {}, JSON.stringify(page[name]));
}
const groups = {
  figure: figures, ".switch button": buttons, "[data-round]": rounds, "[data-view]": figures,
};
globalThis.document = {
  getElementById: (id) => ids[id],
  querySelectorAll: (name) => groups[name],
  querySelector: () => new Part("DIV"),
  createElement: (name) => new Part(name),
};
Object.assign(globalThis, { window: globalThis, innerWidth: 800, innerHeight: 600 });
globalThis.ResizeObserver = class { observe() {} };
require(page.script);
const drawn = () => figures.map((figure) => figure.querySelector("canvas").drawn);
const told = { drawn: {} };
buttons.forEach((button) => {
  const before = drawn();
  button.fire("click");
  told.drawn[button.dataset.mode] = drawn().map((count, index) => count - before[index]);
});
const point = (figure, x, y) => {
  figures[figure].querySelector(".frame").fire("pointermove", x, y);
  return ids.tip.said;
};
told.cells = [point(0, 1, 1), point(1, 11, 11)];
rounds[2].fire("pointermove");
told.round = ids.tip.said;
rounds[2].fire("pointerenter");
told.here = rounds.map((round) => Boolean(round.marks.here));
console.log(JSON.stringify(told));
"""
"""The parts of a browser that the script uses; prints what the script draws and shows."""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_draws_cells_and_describes_them(tmp_path: Path) -> None:
    """Two frames of 3 x 4 cells; the first cell of one frame and the sixth of the other are
    kept."""
    text = page(trace_of(visual_tokens(2)))
    for name, content in (
        ("page.js", text.rpartition("<script>")[2].partition("</script>")[0]),
        ("run.js", STAND_IN),
    ):
        (tmp_path / name).write_text(content)
    data = {
        **scripts(text),
        "script": str(tmp_path / "page.js"),
        "modes": ["score", "picture", "kept"],
    }
    run = ["node", str(tmp_path / "run.js")]
    output = json.loads(
        subprocess.run(
            run, input=json.dumps(data), capture_output=True, check=True, text=True
        ).stdout
    )
    # A kept cell has four edges. Besides, a score paints all twelve cells, and the other view
    # those left out.
    assert output["drawn"] == {"score": [12 + 4] * 2, "picture": [0, 0], "kept": [11 + 4] * 2}
    score = [f"attention {value / 12.5:.2f} x the mean cell" for value in (1, 18)]
    assert output["cells"] == [
        ["kept", "row 1, column 1", score[0], "rank 24 of 24"],
        ["kept", "row 2, column 2", score[1], "rank 7 of 24"],
    ]
    assert output["round"] == ["round 3", "2 accepted of 25 drafted", "2 tokens emitted"]
    assert output["here"] == [False, False, True]
