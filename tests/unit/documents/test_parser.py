"""Pages through a tiny random model: whatever the stages, the tokens are those of stock
`generate`."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import numpy as np
import pdfs
import pytest
from draftlens_lab.two_stages import BOTH, TwoStagePages, TwoStageParser, TwoStageSettings
from PIL import Image

import draftlens
from draftlens import load_engine
from draftlens.core.repetition import LoopCriterion
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import DraftTree, Verdict
from draftlens.decoding.session import Session
from draftlens.documents import run
from draftlens.documents.asking import Asker, Ending, profile_for
from draftlens.documents.drafting import PageDrafter, drafted_pages
from draftlens.documents.parser import Turn
from draftlens.documents.ray import ParseBatch
from draftlens.documents.reading import pipeline as pipelines
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Page, Piece, Reading, Region, RegionText
from draftlens.documents.reading.picture_drafts import picture_reader
from draftlens.documents.reading.pipeline import Phase, untimed
from draftlens.documents.reading.targets import TargetProfile
from draftlens.documents.regions import crops_of, groups_of, read_regions
from draftlens.documents.run import LOSSES
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.models.adapter import Backbone
from draftlens.models.load import Loaded
from draftlens.verify import run_stock

TEMPLATE = """{%- for message in messages %}{% for item in message['content'] -%}
{%- if item['type'] == 'image' %}IMAGE{% else %}{{ item['text'] }}{% endif -%}
{%- endfor %}{% endfor %} answer: """

WORDS = ("abc abd", "bac cab", "aab", "cabba ge", "bcd", "dda bca", "hello", "gf ed cb")


class FixedPipeline:
    """Says the same about every page: some regions, some of them wrong."""

    def __init__(self, answers: Sequence[str] = WORDS) -> None:
        self.answers = answers

    def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
        """Bands of different heights."""
        regions = []
        top = 0.0
        for order, text in enumerate(self.answers):
            height = 20.0 + 15 * order
            box = Box(0, top, page.box.width, top + height).within(page.box)
            regions.append(Region(box, "text", order, (RegionText("fixed", (text,)),)))
            top += height
        return regions


class BrokenPipeline:
    """Fails."""

    def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
        """Fail."""
        raise ValueError("a fault of somebody else's")


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    """A random model that sees pictures, and ends its answers by itself."""
    family = next(family for family in families.FAMILIES if family.name == "qwen2_5_vl")
    model = family.build(seed=3)
    processor = family.processor()
    processor.chat_template = TEMPLATE.replace("IMAGE", family.image)
    model.generation_config.eos_token_id = [17, 40]
    return draftlens.Engine(Loaded("tiny", Backbone.of(model), processor), None, "plain")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A file with two pages and an empty one between them."""
    return pdfs.write(tmp_path / "three.pdf", [pdfs.columns, pdfs.blank, pdfs.rotated(180)])


OPTIONS: dict[str, Any] = {"prompt": "abc", "region_prompt": "b", "max_new_tokens": 40, "dpi": 40}


def parse(engine: draftlens.Engine, path: Path, **options: Any) -> list[draftlens.ParsedPage]:
    """All pages, compared with stock `generate`."""
    pipeline = options.pop("pipeline", FixedPipeline())
    given = {**OPTIONS, "verify": True, **options}
    if given.get("stages") == BOTH:
        return list(TwoStageParser(engine, TwoStageSettings(**given), pipeline).parse(path))
    return list(draftlens.parse(path, engine=engine, pipeline=pipeline, **given))


@pytest.mark.parametrize("stages", ["page", BOTH])
@pytest.mark.parametrize("batch", [1, 3])
def test_tokens_are_those_of_stock_generate(
    engine: draftlens.Engine, three: Path, stages: str, batch: int
) -> None:
    pages = parse(engine, three, stages=stages, batch=batch)
    assert [page.number for page in pages] == [1, 2, 3]
    assert [page.ended == "blank" for page in pages] == [False, True, False]
    for page in (pages[0], pages[2]):
        assert page.error is None
        assert page.verification is not None
        assert page.verification["identical"], page.verification
        assert page.lossless
        assert page.stages == stages
        assert sum(page.shares.values()) == pytest.approx(1)
        assert len(page.regions) == len(WORDS)
        assert (page.region_stats is not None) == (stages == BOTH)
        assert (page.seconds.get("regions", 0) > 0) == (stages == BOTH)
        for name in ("render", "frames", "vision", "target_prefill"):
            assert page.seconds[name] > 0
        assert page.to_dict()["tokens"] == len(page.tokens)


@pytest.mark.usefixtures("steady_costs")
def test_drafts_that_are_the_answer_take_few_passes(engine: draftlens.Engine, three: Path) -> None:
    (slow,) = parse(engine, three, pages="1", method="plain", on_loop="ignore")
    assert len(slow.tokens) > 12
    pipeline = FixedPipeline([slow.markdown])
    (fast,) = parse(engine, three, pages="1", pipeline=pipeline, form="text", on_loop="ignore")
    assert fast.tokens == slow.tokens
    assert fast.stats.target_forwards < slow.stats.target_forwards
    assert fast.shares["target"] < 0.5


def test_a_tolerant_page_is_named_and_a_tolerant_region_is_not(
    engine: draftlens.Engine, three: Path
) -> None:
    (page,) = parse(engine, three, pages="1", tolerance=0.5, verify=False)
    assert not page.lossless
    assert page.approximate == ("draft tokens accepted with tolerance 0.5",)
    (page,) = parse(engine, three, pages="1", stages=BOTH, region_tolerance=0.3)
    assert page.lossless


@pytest.mark.parametrize("form", ["markdown", "layout-json"])
def test_answers_for_crops_are_the_first_drafts_of_a_page(
    engine: draftlens.Engine, three: Path, form: str
) -> None:
    settings = TwoStageSettings(**OPTIONS, form=form)
    pages = TwoStagePages(Asker(engine, profile_for(engine.target), settings))
    drafter = PageDrafter(FixedPipeline(), pages.asker.profile)
    (page,) = drafted_pages(three, drafter, draftlens.ParseSettings(pages="1"))
    answers = pages.read_crops([page])
    (drafts,) = pages.sources(Turn([page], BOTH, answers, Clock(Stats())))
    first, *others = drafts.items()
    assert first[1] == "regions"
    assert "fixed" in dict(others).values()
    assert answers is not None
    assert answers.of_page(0)[0].strip() in first[0]


def test_regions_without_a_page_are_named(engine: draftlens.Engine, three: Path) -> None:
    (page,) = parse(engine, three, pages="1", stages="regions")
    assert page.approximate == ("regions without a page",)
    assert not page.lossless
    assert page.ended == "regions"
    answers = [region.answer for region in page.regions if region.answer]
    assert page.markdown == "\n\n".join(answer.strip() for answer in answers)


def test_rows_that_leave_and_join_read_what_each_crop_reads_alone(
    engine: draftlens.Engine, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most three rows at once, in several groups, against one plain answer for each crop."""
    num_rows: list[int] = []
    check = Session.check

    def counted(self: Session, tree: DraftTree) -> Verdict:
        num_rows.append(len(self.sequences))
        return check(self, tree)

    monkeypatch.setattr(Session, "check", counted)
    settings = draftlens.ParseSettings(**OPTIONS, stages="regions")
    asker = Asker(engine, profile_for(engine.target), settings)
    drafter = PageDrafter(FixedPipeline(), asker.profile)
    (page,) = drafted_pages(three, drafter, draftlens.ParseSettings(pages="1"))
    crops = crops_of([page], asker)
    groups = groups_of(crops, 3)
    assert len(groups) > 2
    assert max(map(len, groups)) > 1
    together = read_regions(crops, asker, Ending(40), most_rows=3)
    assert together.num_crops == len(crops)
    assert max(num_rows) == 3  # also where rows that have joined wait to be read
    assert together.stats.target_forwards == len(num_rows)
    lengths = set()
    for group in groups:
        for crop in group:
            inputs = asker.process([crop.picture], [crop.prompt])
            alone = asker.answer(inputs, [[]], {"method": "lookup"}, Ending(crop.room)).run()
            assert together.texts[0, crop.place] == asker.text(alone.tokens[0])
            lengths.add(len(alone.tokens[0]))
    assert len(lengths) > 2
    assert together.stats.target_forwards < sum(len(text) for text in together.texts.values())


@pytest.mark.usefixtures("steady_costs")
def test_a_loop_ends_where_stock_generate_with_the_criterion_ends(
    engine: draftlens.Engine,
) -> None:
    """The model is made to loop by forbidding nearly everything else."""
    inputs = engine.read("abc", images=Image.new("RGB", (40, 40), "white"))
    length = inputs.target["input_ids"].shape[1]
    allowed = {"prefix_allowed_tokens_fn": lambda row, ids: [30, 31], "do_sample": False}
    criterion = LoopCriterion(length, repeats=3, least_tokens=9)
    limits = {"max_new_tokens": 90, "stopping_criteria": [criterion], **allowed}
    stock = run_stock(engine.target.backbone, inputs.target, **limits)
    references = [[[30, 31] * 20, [31] * 30, [30] * 30]]
    result = engine.answer(inputs, method="hsd", references=references, **limits).run()
    assert result.tokens == stock.tokens
    assert criterion.is_loop(result.tokens[0])
    assert not criterion.is_loop(result.tokens[0][:-1])
    assert result.stats.accepted > 0


def test_a_timeout_ends_a_page_where_it_is(engine: draftlens.Engine, three: Path) -> None:
    (page,) = parse(engine, three, pages="1", page_timeout=1e-6, stages=BOTH)
    assert page.ended == "timeout"
    assert len(page.tokens) == 1
    assert page.verification is not None
    assert page.verification["identical"]


def test_a_failing_page_and_a_failing_file_do_not_stop_the_others(
    engine: draftlens.Engine, three: Path, tmp_path: Path
) -> None:
    secret = pdfs.encrypted(tmp_path / "secret.pdf", "x")
    many = pdfs.stating(tmp_path / "many.pdf", 5000)
    inputs = [secret, many, three]
    pages = list(
        draftlens.parse(inputs, engine=engine, pipeline=BrokenPipeline(), pages="1-3", **OPTIONS)
    )
    assert [page.number for page in pages] == [0, 1, 2, 1, 2, 3]
    assert pages[0].error is not None
    assert "it needs a password" in pages[0].error
    assert pages[2].error is not None
    assert pages[2].error.endswith("nor can the pages up to 3")
    assert all(page.error is None for page in pages[3:])
    assert pages[3].shares.keys() <= {"target", "answer"}  # no drafts, and yet an answer


def test_notes_say_which_pages_have_no_drafts(engine: draftlens.Engine, three: Path) -> None:
    settings = draftlens.ParseSettings(pages="1", **OPTIONS)
    parser = draftlens.DocumentParser(engine, settings, BrokenPipeline())
    assert len(list(parser.parse(three))) == 1
    (note,) = parser.notes
    assert note.endswith("three.pdf, page 1 has no drafts: a fault of somebody else's")


@pytest.mark.parametrize("stages", [BOTH, "regions"])
def test_crops_that_the_model_cannot_read_cost_no_page(
    engine: draftlens.Engine, three: Path, monkeypatch: pytest.MonkeyPatch, stages: str
) -> None:
    """Their answers are drafts, unless nothing else is read."""
    process = Asker.process

    def fails(asker: Asker, pictures: Sequence[Image.Image], prompts: Sequence[str]) -> Any:
        if prompts[0] == OPTIONS["region_prompt"]:
            raise RuntimeError("a crop is too small")
        return process(asker, pictures, prompts)

    monkeypatch.setattr(Asker, "process", fails)
    (page,) = parse(engine, three, pages="1", stages=stages)
    if stages == "regions":
        assert page.error == f"cannot parse {three}, page 1: a crop is too small"
        return
    assert page.stages == "page"
    assert page.verification is not None
    assert page.verification["identical"]


def test_memory_of_the_model_that_runs_out_fails_one_page(
    engine: draftlens.Engine, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = engine.answer
    calls = []

    def fails_once(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return answer(*args, **options)

    monkeypatch.setattr(engine, "answer", fails_once)
    first, _, third = parse(engine, three)
    assert first.error == f"cannot parse {three}, page 1: out of memory"
    assert third.error is None


class SlowOcr:
    """Reads one wrong word, slowly."""

    def __init__(self) -> None:
        self.calls = 0

    def read(self, page: Page) -> Reading:
        """See `Reader.read`."""
        self.calls += 1
        time.sleep(0.3)
        box = Box(0, 0, page.box.width, page.box.height)
        return Reading("tesseract", (Piece("word", box, line=0),))


@pytest.mark.parametrize("drafter", ["auto", "tesseract"])
def test_pictures_are_read_no_more_once_that_takes_longer_than_it_saves(
    engine: draftlens.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    ocr = SlowOcr()
    monkeypatch.setattr(pipelines, "installed_ocr", lambda: ocr)
    monkeypatch.setattr(pipelines, "_installed_reader", lambda choice: ocr)
    monkeypatch.setattr(run, "checked_curve", lambda backbone: CostCurve((1,), (1e-3,)))
    for number in range(6):
        picture = Image.new("RGB", (90, 60), (10 * number, 200, 90))
        picture.paste((0, 0, 0), (5, 5, 40, 20))
        picture.save(tmp_path / f"scan-{number}.png")
    settings = draftlens.ParseSettings(
        **OPTIONS, drafter=drafter, layout="page", stages="page", ahead=False
    )
    parser = draftlens.DocumentParser(engine, settings)
    pages = list(parser.parse(tmp_path))
    assert [page.error for page in pages] == [None] * 6
    assert ocr.calls == (LOSSES if drafter == "auto" else 6)
    assert [("takes longer" in note) for note in parser.notes] == [True] * (drafter == "auto")


def test_pages_are_read_one_ahead_and_no_further(engine: draftlens.Engine, tmp_path: Path) -> None:
    """So memory does not grow with the number of pages."""
    path = pdfs.write(tmp_path / "long.pdf", [pdfs.columns] * 30)
    read: list[int] = []

    class Counting(FixedPipeline):
        def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
            read.append(page.number)
            return []

    pages = draftlens.parse(
        path, engine=engine, pipeline=Counting(), prompt="a", max_new_tokens=2, dpi=40
    )
    for number in (1, 2, 3):
        assert next(pages).number == number
        assert len(read) <= number + 1
    pages.close()  # type: ignore[attr-defined]


def test_memory_is_flat_over_137_pages(engine: draftlens.Engine, tmp_path: Path) -> None:
    """Neither pages nor pictures outlive their turn, and nothing else piles up either. Most pages
    are blank, which saves the target's time and none of the rest."""
    path = pdfs.write(
        tmp_path / "long.pdf", [pdfs.columns, *[pdfs.blank] * 8] * 15 + [pdfs.blank] * 2
    )
    alive: list[weakref.ref[Any]] = []
    most_alive = 0

    class Watched(FixedPipeline):
        def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
            alive.append(weakref.ref(page))
            alive.append(weakref.ref(page.picture(20)))
            return super().read(page)

    objects = []
    pages = draftlens.parse(
        path, engine=engine, pipeline=Watched(), prompt="a", max_new_tokens=2, dpi=20
    )
    for number, _ in enumerate(pages, start=1):
        alive = [reference for reference in alive if reference() is not None]
        most_alive = max(most_alive, len(alive))
        if number % 45 == 1:
            gc.collect()
            objects.append(len(gc.get_objects()))
    assert number == 137
    assert most_alive <= 6
    assert objects[-1] - objects[1] < 300


def test_an_engine_reads_its_pictures_if_no_references_are_given(
    engine: draftlens.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = Image.new("RGB", (60, 40), "white")
    plain = engine.generate("abc", images=picture, max_new_tokens=30)
    config = engine.target.backbone.model.config
    monkeypatch.setattr(config, "_name_or_path", "allenai/olmOCR-2-7B-1025")
    reader = picture_reader(config.model_type, config._name_or_path)
    assert reader is not picture_reader(config.model_type)
    monkeypatch.setattr(type(reader), "can_read", True)
    monkeypatch.setattr(reader, "_pipeline", FixedPipeline([plain.text]))
    method = {"method": "hsd", "num_speculative_tokens": 12}
    read = engine.generate("abc", images=picture, method=method, max_new_tokens=30)
    assert read.tokens == plain.tokens
    assert read.stats.target_forwards < plain.stats.target_forwards / 2
    monkeypatch.setattr(type(reader), "can_read", False)
    with pytest.warns(UserWarning, match="no reader of pictures is installed"):
        unread = engine.generate("abc", images=picture, method="hsd", max_new_tokens=30)
    assert unread.tokens == plain.tokens


def test_wrong_arguments_are_refused(engine: draftlens.Engine) -> None:
    with pytest.raises(draftlens.ConfigError, match="no such setting"):
        draftlens.parse("a.pdf", engine=engine, colour="red")
    with pytest.raises(draftlens.ConfigError, match="a target or an engine"):
        draftlens.parse("a.pdf", engine=engine, target="embedded")
    given: dict[str, Any]
    for given, message in (
        ({"engine": "a"}, "engine must be a draftlens.Engine"),
        ({"engine": engine, "compile": np.zeros([2, 2])}, "compile must be True"),
        ({"compile": np.zeros([2, 2])}, "compile"),
    ):
        with pytest.raises(draftlens.ConfigError, match=message):
            draftlens.parse("a.pdf", **given)


def test_pages_say_whether_a_model_has_answered(engine: draftlens.Engine, three: Path) -> None:
    """A blank page is not shown to the target, so nothing of it is lossless."""
    first, blank, failed = parse(engine, three, pages="1-2,9")[1:] + parse(engine, three, pages="9")
    assert (first.source, first.lossless, first.stages) == ("model", True, "page")
    for page, ended in ((blank, "blank"), (failed, "failed")):
        values = page.to_dict()
        assert values["ended"] == ended
        assert values["source"] == "none"
        assert [values[name] for name in ("lossless", "stages", "tokens")] == [None] * 3
        assert values["stats"] == {}


class LayerPipeline(FixedPipeline):
    """Says what the text layer would say."""

    def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
        """The same regions by another name."""
        return [
            replace(
                region, texts=tuple(replace(text, source="text-layer") for text in region.texts)
            )
            for region in super().read(page, phase)
        ]


PAGE = "The mill stands by the river and grinds rye for seven villages in the valley."


@pytest.mark.parametrize("method", ["hsd", "plain"])
def test_an_answer_without_the_text_of_its_page_is_doubtful(
    engine: draftlens.Engine, three: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The model is random."""
    profile = TargetProfile(page_prompt="abc", max_new_tokens=120, dpi=40)
    settings = draftlens.ParseSettings(pages="1", method=method, on_loop="ignore")
    parser = draftlens.DocumentParser(engine, settings, LayerPipeline([PAGE]), profile)
    (page,) = parser.parse(three)
    assert page.doubt == "it has 0% of its text in common with the text of the page"
    assert page.to_dict()["doubt"] == page.doubt
    (mine,) = parse(engine, three, pages="1", pipeline=LayerPipeline([PAGE]), on_loop="ignore")
    assert mine.doubt is None  # a prompt of the user may ask for anything
    monkeypatch.setattr(parser.asker, "text", lambda tokens: f"# {PAGE.upper()}")
    (page,) = parser.parse(three)
    assert page.doubt is None


def test_an_answer_that_repeats_itself_is_doubtful(
    engine: draftlens.Engine, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Asker, "why_ended", lambda self, tokens, ending: "loop")
    (page,) = parse(engine, three, pages="1")
    assert page.doubt == "it repeats itself without end"


def test_the_prompt_stands_on_the_side_of_the_picture_that_the_profile_names(
    engine: draftlens.Engine,
) -> None:
    picture = Image.new("RGB", (40, 40), "white")
    texts = []
    for prompt_first in (False, True):
        profile = TargetProfile(prompt_first=prompt_first)
        asker = Asker(engine, profile, draftlens.ParseSettings())
        ids = asker.process([picture], ["abc"]).target["input_ids"][0]
        texts.append(engine.target.processor.tokenizer.decode(ids))
    assert texts[0].endswith("abc answer: ")
    assert texts[1].startswith("abc")


def test_marks_stay_in_answers_where_they_may_be_special_tokens(engine: draftlens.Engine) -> None:
    tokens = [engine.target.processor.tokenizer.convert_tokens_to_ids("<|vision_start|>"), 20, 17]
    for form, kept in (("markdown", False), ("doctags", True), ("text-otsl", True)):
        asker = Asker(engine, TargetProfile(form=form), draftlens.ParseSettings())
        assert asker.eos == {17, 40}
        assert ("<|vision_start|>" in asker.text(tokens)) == kept
        word = engine.target.processor.tokenizer.decode([20])
        assert asker.text(tokens).endswith(word) == kept


def test_a_profile_may_be_a_name(engine: draftlens.Engine, three: Path) -> None:
    parser = draftlens.DocumentParser(engine, profile="olmocr")
    assert parser.asker.profile.prompt_first
    with pytest.raises(draftlens.ConfigError, match="unknown profile"):
        draftlens.parse(three, engine=engine, profile="nobody")


def test_a_worker_of_ray_loads_its_target_once(
    engine: draftlens.Engine, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[Any, ...]] = []

    def load(*words: Any, **options: Any) -> draftlens.Engine:
        loaded.append((*words, options))
        return engine

    monkeypatch.setattr(load_engine, "load", load)
    monkeypatch.setattr(draftlens.DocumentParser, "calibrate", lambda self: None)
    settings = {**OPTIONS, "drafter": "none", "pages": "1", "max_new_tokens": 8}
    worker = ParseBatch("tiny", "file", {"device": "cpu"}, **settings)
    (expected,) = draftlens.parse(three, engine=engine, **settings)
    for _ in range(2):
        batch = worker({"file": [str(three)]})
        assert list(batch["markdown"]) == [expected.markdown.strip()]
        assert (list(batch["pages"]), list(batch["error"])) == ([1], [""])
    assert expected.markdown.strip()
    assert loaded == [("tiny", {"method": "plain", "device": "cpu"})]


@pytest.mark.usefixtures("steady_costs")
def test_results_of_other_pipelines_are_drafts(
    engine: draftlens.Engine, three: Path, tmp_path: Path
) -> None:
    """A good file saves passes and a damaged one does not; no token depends on either."""
    options = {**OPTIONS, "pages": "1", "on_loop": "ignore", "form": "text"}
    (plain,) = draftlens.parse(three, engine=engine, method="plain", **options)
    block = {"type": "text", "page_idx": 0, "bbox": [0, 0, 900, 900], "text": plain.markdown}
    passes = []
    for text in (json.dumps([block]), json.dumps([block])[:-3]):
        file = tmp_path / "three_content_list.json"
        file.write_text(text)
        for drafter in (file, f"{tmp_path}/"):
            settings = draftlens.ParseSettings(**options, drafter=drafter, verify=True)
            parser = draftlens.DocumentParser(engine, settings)
            (page,) = parser.parse(three)
            assert page.tokens == plain.tokens
            assert page.verification is not None
            assert page.verification["identical"]
            passes.append(page.stats.target_forwards)
            notes = [note for note in parser.notes if note.startswith(f"cannot read {file}: ")]
            assert len(notes) == (text[-1] != "]")
    assert max(passes[:2]) < min(passes[2:])
    assert max(passes[:2]) < plain.stats.target_forwards / 2


def test_results_of_other_pipelines_need_a_target(three: Path, tmp_path: Path) -> None:
    for drafter in ("a.json", "results/", tmp_path):
        with pytest.raises(draftlens.ConfigError, match="needs a document model"):
            list(draftlens.parse(three, drafter=drafter))
    settings = draftlens.ParseSettings
    assert settings(drafter="a.json").stored_results == Path("a.json")
    assert settings(drafter="text-layer,tesseract").stored_results is None
    assert settings(drafter=["tesseract"]).stored_results is None
