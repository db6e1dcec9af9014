"""The code and the figures in the documents are true, and their links lead somewhere."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from ast import literal_eval
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import families
import pytest
import torch
import tour
from torch import Tensor
from transformers.generation.stopping_criteria import MaxLengthCriteria

import draftlens
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import DraftTree, from_paths
from draftlens.core.verify import match
from draftlens.decoding import Plan, Session
from draftlens.decoding.observer import Observer
from draftlens.documents.reading import StandardPipeline, open_document
from draftlens.drafting.adaptive.costs import ForwardCosts
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.methods.base import METHODS, to_dict
from draftlens.methods.tabed.views import VIEWS
from draftlens.methods.tabed.weights import WEIGHTS
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt
from draftlens.pruning import PRUNERS

REGISTRIES = (METHODS, PRUNERS, VIEWS, WEIGHTS)
ROOT = Path(__file__).resolve().parents[2]
CLIP = ROOT / "draftlens" / "embedded" / "clips" / "drift.mp4"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("benchmarks/results/records_*.md"),
        *ROOT.glob("draftlens/embedded/**/*.md"),
    ]
)


def blocks(name: str, language: str = "python") -> list[str]:
    """Code blocks of a document."""
    return re.findall(rf"```{language}\n(.*?)```", read(name), re.DOTALL)


def read(name: str) -> str:
    """The text of a document."""
    return (ROOT / name).read_text(encoding="utf-8")


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
    described = blocks("README.md", "text")[0].split("\n\n")[0].split("draftlens:\n")[1]
    assert out.startswith(" ".join(described.split()))


def test_the_readme_shows_the_table_of_the_demo() -> None:
    """Row by row; the figures are those of one run."""
    functions = {
        node.name: node
        for node in ast.walk(ast.parse(read("draftlens/cli/demo.py")))
        if isinstance(node, ast.FunctionDef)
    }
    returned = [functions["_rows"].body[-1]]
    names = [
        node.elts[0].value
        for statement in returned
        for node in ast.walk(statement)
        if isinstance(node, ast.List) and isinstance(node.elts[0], ast.Constant)
    ]
    shown = re.findall(r"^│ (\S.*?) +│", blocks("README.md", "text")[0], re.MULTILINE)
    assert shown == names


def test_the_demo_is_on_the_first_screen_of_the_readme() -> None:
    """In front of every picture, and it is cloned without the history of the weights."""
    text = read("README.md")
    assert text.index("make demo") < text.index("speedup, end to end") < text.index("![")
    assert "git clone --depth 1 " in text
    speed = text.split("## Speed\n")[1].split("\n## ")[0]
    sentences = [line for line in speed.splitlines() if line and line[0] not in "|<"]
    assert " ".join(sentences).count(". ") == 0


@pytest.mark.parametrize(("target", "extras"), [("demo", ["."]), ("test", [".", ".[dev]", "lab"])])
def test_make_installs_what_a_target_needs(target: str, extras: list[str], tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "-n", target, f"VENV={tmp_path / 'venv'}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r'-e "?([^"\s]+)"?', printed) == extras


def test_what_a_processor_needs_is_installed_with_the_package() -> None:
    """SmolVLM's, which imports num2words when it is made."""
    assert "num2words" in tomllib.loads(read("pyproject.toml"))["project"]["dependencies"]
    row = next(line for line in read("README.md").splitlines() if line.startswith("| SmolVLM"))
    assert "num2words" in row


def test_the_site_begins_at_index_html_and_keeps_quotes(tmp_path: Path) -> None:
    settings = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    connected: dict[str, Any] = {}
    settings["setup"](SimpleNamespace(connect=connected.__setitem__))
    connected["build-finished"](SimpleNamespace(outdir=str(tmp_path)), None)
    assert "url=docs/index.html" in (tmp_path / "index.html").read_text()
    assert settings["smartquotes"] is False


@pytest.mark.parametrize(
    "name", ["speculative", "specvlm", "parallel", "tabed", "lookup", "hsd", "mixed", "spava"]
)
def test_the_page_of_a_method_begins_with_one_screen(name: str) -> None:
    """What it does, how to call it and when it pays stand in front of its first table."""
    screen, _, _ = read(f"docs/{name}.md").partition("\n|")
    assert "```python\n" in screen
    assert "\n## When it pays\n" in screen
    assert len(screen.splitlines()) <= 45


def sidebar() -> list[tuple[str, str]]:
    """The captions of the sidebar and their pages."""
    tree = r"```{toctree}\n:caption: (.*?)\n:hidden:\n\n(.*?)```"
    return re.findall(tree, read("docs/index.md"), re.DOTALL)


@pytest.mark.parametrize("question", tour.QUESTIONS, ids=lambda question: question.asked)
def test_answers_are_two_links_and_a_minute_of_reading_away(question: tour.Question) -> None:
    assert len(question.links) <= 2
    assert tour.seconds(question) < 60


def test_the_tour_is_the_one_of_contributing() -> None:
    """Within five seconds, since each change of a page on the way moves them."""
    section = read("CONTRIBUTING.md").split("\n## The tour\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*) \| (\d+) \| (\d+) \|$", section, re.MULTILINE)
    assert [asked for asked, _, _ in rows] == [question.asked for question in tour.QUESTIONS]
    for question, (_, links, seconds) in zip(tour.QUESTIONS, rows, strict=True):
        assert len(question.links) == int(links)
        assert abs(tour.seconds(question) - int(seconds)) <= 5, question.asked


def test_the_words_for_users() -> None:
    """Without code: 900 of the README, 12,000 of the pages for use."""
    pages = [f"docs/{page}.md" for page in dict(sidebar())["Use"].split()]

    def words(page: str) -> int:
        return tour.count(re.sub(r"```.*?```", "", read(page), flags=re.DOTALL))

    assert words("README.md") <= 900
    assert sum(map(words, pages)) <= 12_000


def test_every_page_is_in_the_sidebar() -> None:
    """Once; the site has two parts, and research comes after all others."""
    trees = sidebar()
    listed = [page for _, pages in trees for page in pages.split() if not page.startswith("..")]
    written = {page.stem for page in ROOT.glob("docs/*.md")} - {"index"}
    assert sorted(listed) == sorted(written | {"cli"})
    assert [caption.partition(",")[0] for caption, _ in trees] == ["Use", *["Reference"] * 3]
    assert trees[-1][0] == "Reference, research"


def test_the_default_tree_of_specvlm_is_the_one_of_its_page() -> None:
    page = read("docs/specvlm.md")
    assert to_dict(draftlens.SpecVLM())["tree"] == "auto"
    assert "| `tree` | `auto` |" in page
    defaults = re.findall(r"[^.]*by default[^.]*\.", page)
    assert defaults
    assert not any("EAGLE's tree by default" in sentence for sentence in defaults)


def test_explain_in_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The code of docs/explain.md runs, and its captions are those of the page and the sheet."""
    (tmp_path / "clip.mp4").write_bytes(CLIP.read_bytes())
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("docs/explain.md")
    names: dict[str, Any] = {}
    exec(code, names)
    assert (tmp_path / "clip.png").exists()
    assert names["data"]["title"] == "clip.mp4"
    html = re.sub(r"<[^>]*>", "|", names["html"])
    quoted = re.findall(
        r'"([^"]{4,})"', re.sub(r"```.*?```", "", read("docs/explain.md"), flags=re.DOTALL)
    )
    assert len(quoted) >= 7
    for caption in quoted:
        assert caption.lower() in html.lower(), caption


def test_the_readers_and_pipelines_of_parse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import pdfs  # skips where the tools that make and read PDF files are not installed

    monkeypatch.chdir(tmp_path)
    pdfs.write(tmp_path / "paper.pdf", [pdfs.columns])
    (tmp_path / "letters").mkdir()
    pdfs.write(tmp_path / "letters" / "first.pdf", [pdfs.columns])
    (first,) = blocks("docs/parse.md")
    reader, pipeline = blocks("docs/document-models.md")
    exec(first, {})
    assert capsys.readouterr().out.endswith("True\n")
    names: dict[str, Any] = {}
    exec(reader, names)
    document = open_document(tmp_path / "paper.pdf")
    (region,) = StandardPipeline([names["CapitalReader"]()], "blocks").read(document.page(1))
    document.close()
    assert region.texts[0].text == "PAGE"
    few = "Letterhead(), prompt='Hello', max_new_tokens=5"
    exec(pipeline.replace("Letterhead()", few), names)
    (page,) = names["pages"]
    assert page.error is None
    assert page.regions[0].region.texts[0].source == "letterhead"


def test_the_example_of_hsd(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many draft tokens are checked follows from these costs, not from those of a busy
    machine."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ForwardCosts, "cost", lambda self, width, rows=1, context=None: 10 + width)
    exec(blocks("docs/hsd.md")[0], {})
    assert float(capsys.readouterr().out) >= 3


def test_joining_in_structure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A row that joins later has the answer that it has by itself, and so has the first one."""
    (code,) = blocks("docs/structure.md")
    (tmp_path / "clip.mp4").write_bytes(CLIP.read_bytes())
    (tmp_path / "shapes.mp4").write_bytes(CLIP.with_name("shapes.mp4").read_bytes())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    sequences = [*names["call"].sequences, names["late"]]
    for sequence, inputs in zip(sequences, ("inputs", "other_inputs"), strict=True):
        alone = draftlens.generate(names["target"], names[inputs], max_new_tokens=60)
        assert sequence.tokens == alone.tokens[0]


def test_sampling_in_world() -> None:
    """The code of docs/world.md samples a scene, renders it and asks questions."""
    code = next(block for block in blocks("docs/world.md") if "sample_scene" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["frames"].shape == (8, 256, 256, 3)


def parts_of(file: str) -> list[str]:
    """Code blocks of CONTRIBUTING that begin with a file's name."""
    return [block for block in blocks("CONTRIBUTING.md") if block.startswith(f"# {file}\n")]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The modules and the entry points of CONTRIBUTING, installed as a package."""
    (tmp_path / "my_package.py").write_text("\n\n".join(parts_of("my_package.py")))
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    project = tomllib.loads("\n".join(blocks("CONTRIBUTING.md", "toml")))["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {location}" for name, location in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    for registry in REGISTRIES:
        registry.refresh()
    yield "my-package"
    monkeypatch.undo()
    sys.modules.pop("my_package", None)
    for registry in REGISTRIES:
        registry.refresh()


def test_the_packages_of_contributing_are_found(package: str) -> None:
    """Names come from entry points, and their objects are the classes of the document."""
    entries = {entry.name: entry for registry in REGISTRIES for entry in registry.entries()}
    for name in ("repetition", "last", "faded", "leader"):
        assert entries[name].package == package
        assert entries[name].error is None
    with pytest.raises(draftlens.ConfigError, match="tokens"):
        draftlens.from_dict({"method": "repetition", "tokens": 0})


def test_the_drafter_and_the_method_of_contributing(package: str, engine: draftlens.Engine) -> None:
    """The draft tokens are bad, and the answer is the same."""
    inputs = engine.read("Describe the video.", video=CLIP)
    method = {"method": "repetition", "tokens": 2}
    for length in (1, 2, 3, 40):
        fast = engine.answer(inputs, method=method, max_new_tokens=length).run()
        plain = engine.answer(inputs, method="plain", max_new_tokens=length).run()
        assert fast.tokens == plain.tokens
    assert fast.stats.drafted > fast.stats.accepted


def test_the_pruner_of_contributing(package: str, engine: draftlens.Engine) -> None:
    """It keeps the newest tokens of the requested share, and the answer is the same."""
    inputs = engine.read("Describe the video.", video=CLIP)
    choices: list[Any] = []
    fast = engine.answer(
        inputs,
        method={"method": "specvlm", "pruner": "last", "prune_ratio": 0.75},
        max_new_tokens=20,
        observe=choices.append,
    ).run()
    assert fast.tokens == engine.answer(inputs, method="plain", max_new_tokens=20).run().tokens
    (choice,) = choices
    total = len(choice.visual)
    assert choice.kept.tolist() == list(range(total - total // 4, total))


def test_the_view_and_the_weighting_of_contributing(package: str, engine: draftlens.Engine) -> None:
    """The answer is the same; the view that is less sure of what it sees counts only at times."""
    inputs = engine.read("Describe the video.", video=CLIP)
    views = ["multimodal", {"name": "faded", "strength": 0.25}]
    seen: list[Any] = []
    fast = engine.answer(
        inputs,
        method={"method": "tabed", "views": views, "weights": "leader"},
        max_new_tokens=40,
        observe=Observer(on_weights=seen.append),
    ).run()
    assert fast.tokens == engine.answer(inputs, method="plain", max_new_tokens=40).run().tokens
    assert set(fast.stats.views) == {"multimodal", "faded(0.25)"}
    assert fast.stats.accepted > 0
    assert all(set(weighed.weights) == {0.0, 1.0} for weighed in seen)


def test_the_family_of_contributing() -> None:
    """The entry builds the family that the tests run."""
    (entry,) = parts_of("tests/families.py")
    family = eval(entry, vars(families))
    for field in fields(families.Family):
        assert getattr(family, field.name) == getattr(families.FAMILIES[0], field.name)


class Scripted:
    """A model of a few tokens. After a token it ranks the tokens that the script names first.

    Args:
        script: token to the next tokens, best first.
    """

    device = torch.device("cpu")
    name = "scripted"
    vocab_size = 50
    text_config = SimpleNamespace(num_hidden_layers=1)
    prompt_cache = None
    plain_only = chains_only = ""

    def __init__(self, script: dict[int, list[int]]) -> None:
        self.script = script
        self.passes: list[tuple[list[list[int]], list[list[int]]]] = []
        self.choices: list[list[int]] = []

    def prepare_prompt(self, inputs: Any) -> Any:
        return SimpleNamespace(input_ids=inputs["input_ids"])

    def encode(self, prepared: Any) -> Prompt:
        """Left-padded ids with padding moved after them."""
        rows = [[token for token in row if token] for row in prepared.input_ids.tolist()]
        lengths = [len(row) for row in rows]
        width = max(lengths)
        embeds = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        positions = torch.arange(width).expand(len(rows), -1)
        next_position = torch.tensor(lengths)[:, None]
        return Prompt(embeds, positions, lengths, next_position, embeds < 0, {})

    def new_cache(self, prompt: Prompt, room: int) -> KVCache:
        return KVCache(1, len(prompt.lengths), max(prompt.lengths) + room)

    def hidden_states(self, layers: Any) -> AbstractContextManager[dict[int, Tensor]]:
        return nullcontext({})

    def prefill(self, prompt: Prompt, cache: KVCache, attention: Any = None) -> Tensor:
        logits = self.forward(prompt.embeds, prompt.position_ids, cache, None)
        cache.truncate(prompt.lengths)
        last = torch.tensor(prompt.lengths)[:, None] - 1
        return logits[torch.arange(len(last))[:, None], last]

    def greedy_chain(self, *_: Any) -> None:
        """Chains are computed by `forward`."""

    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        """Token ids take the place of keys and values, so that the cache can be read."""
        states = tokens[:, None, :, None]
        cache.update(states, states, 0)
        cache.advance(tokens.shape[1])
        self.passes.append((tokens.tolist(), position_ids.tolist()))
        logits = torch.zeros(*tokens.shape, self.vocab_size)
        for row, ids in enumerate(tokens.tolist()):
            for place, token in enumerate(ids):
                for rank, next_token in enumerate(self.script.get(token, [])):
                    logits[row, place, next_token] = 10 - rank
        self.choices = logits.argmax(-1).tolist()
        return logits


def contents(cache: KVCache) -> list[list[int]]:
    """The tokens that a scripted model's cache holds."""
    keys = cache.layers[0].keys
    return [keys[row, 0, :length, 0].tolist() for row, length in enumerate(cache.lengths)]


def recorded_keep(
    cache: KVCache, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[list[int], list[list[int]]]]:
    """Arguments of the cache's `keep`, filled as it is called."""
    calls: list[tuple[list[int], list[list[int]]]] = []
    keep = cache.keep

    def recording(base: Any, slots: Any) -> None:
        calls.append((list(base), [list(row) for row in slots]))
        keep(base, slots)

    monkeypatch.setattr(cache, "keep", recording)
    return calls


def figures_of_the_round() -> dict[str, Any]:
    """Names and values in the worked round of docs/structure.md."""
    section = read("docs/structure.md").split("## One worked round")[1]
    figures: dict[str, Any] = {}
    for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL):
        for line in block.splitlines():
            name, _, value = line.partition("=")
            figures[name.strip()] = literal_eval(value.strip())
    return figures


def test_the_worked_round_of_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round of a session with scripted models has every figure of the document."""
    target: Any = Scripted(
        {14: [21], 21: [25], 22: [24], 25: [26], 23: [29], 26: [27]}
        | {17: [31], 31: [32], 32: [34], 35: [39], 33: [38], 36: [37]}
    )
    draft: Any = Scripted({21: [22, 25], 22: [23], 25: [26], 31: [32, 35], 32: [33], 35: [36]})
    tree = from_paths([[0], [1], [0, 0], [1, 0]])
    drafter = ModelDrafter(DraftPromptBuilder(draft), tree, target.vocab_size)
    session = Session(target, Plan(drafter), Clock(Stats()))
    prompt_ids = torch.tensor([[11, 12, 13, 14], [0, 15, 16, 17]])
    config: Any = SimpleNamespace(do_sample=False)
    session.add(
        Prepared(prompt_ids, (), (MaxLengthCriteria(20),), config, {}),
        seeds=[0, 0],
        draft_inputs={"input_ids": prompt_ids},
    )
    session.start()
    session.begin()
    assert session.cache is not None
    assert drafter.rows.cache is not None
    measured: dict[str, Any] = {
        "prompts": contents(session.cache),
        "answers": [list(sequence.tokens) for sequence in session.sequences],
        "base": list(session.cache.lengths),
    }
    target_calls = recorded_keep(session.cache, monkeypatch)
    draft_calls = recorded_keep(drafter.rows.cache, monkeypatch)
    proposal = session.propose()
    measured["parents"] = list(proposal.topologies[1].parents)
    measured["draft forwards"] = drafter.forwards
    measured["draft tokens"] = proposal.tokens.tolist()
    verdict = session.check(proposal)
    measured["forwarded"], measured["positions"] = target.passes[-1]
    measured["choices"] = target.choices
    measured["paths"] = [list(path) for path in verdict.paths]
    measured["tokens"] = [list(tokens) for tokens in verdict.tokens]
    session.accept(verdict)
    assert target_calls[0][0] == measured["base"]
    measured["target slots"] = target_calls[0][1]
    measured["target cache"] = contents(session.cache)
    measured["draft base"], measured["draft slots"] = draft_calls[0]
    measured["draft cache"] = contents(drafter.rows.cache)
    measured["pending"] = [list(tokens) for tokens in drafter.rows.pending]
    stats = session.stats
    counts = (stats.passes, stats.target_forwards, stats.drafted, stats.accepted, stats.emitted)
    assert counts == (2, 1, 8, 3, 2 + 5)
    assert stats.mean_acceptance_length == 2.5
    session.propose()
    measured["next draft forward"] = draft.passes[-2][0]
    assert figures_of_the_round() == measured


def test_the_worked_round_without_models() -> None:
    """The verdict and the slots of the document, by `match` and `KVCache.keep` alone."""
    figures = figures_of_the_round()
    tree = from_paths([[0], [1], [0, 0], [1, 0]])
    assert list(tree.parents) == figures["parents"]
    draft_tokens = DraftTree.uniform(tree, torch.tensor(figures["draft tokens"]))
    ranking = torch.nn.functional.one_hot(torch.tensor(figures["choices"]), 50)
    verdict = match(draft_tokens, ranking)
    assert [list(path) for path in verdict.paths] == figures["paths"]
    assert [list(tokens) for tokens in verdict.tokens] == figures["tokens"]
    cache = KVCache(1, 2, 9)
    prompts = [ids + [0] * (4 - len(ids)) for ids in figures["prompts"]]
    for tokens, lengths in ((prompts, figures["base"]), (figures["forwarded"], None)):
        states = torch.tensor(tokens)[:, None, :, None]
        cache.update(states, states, 0)
        cache.advance(len(tokens[0]))
        if lengths is not None:
            cache.truncate(lengths)
    cache.keep(figures["base"], figures["target slots"])
    assert contents(cache) == figures["target cache"]


def test_the_packages_of_structure() -> None:
    """The table lists all layers of pyproject.toml from top to bottom, some of them in one row."""
    contracts = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    depth: dict[str, int] = {}
    for number, layer in enumerate(layers):
        for module in layer.split(" : "):
            depth.setdefault(module.removeprefix("draftlens.").split(".")[0], number)
    table = read("docs/structure.md").split("| question |")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = [[Path(name).stem for name in re.findall(r"`(.*?)`", row)] for row in rows]
    assert sorted(name for row in listed for name in row) == sorted(set(depth) - {"recipes"})
    depths = [[depth[name] for name in row] for row in listed]
    for above, below in pairwise(depths):
        assert max(above) < min(below)


def sentences_of_the_source() -> list[str]:
    """All texts in the code; those with values in them in pieces."""
    sentences = []
    for path in (ROOT / "draftlens").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                sentences.append(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                sentences += map(str, parts)
    return sentences


def test_the_messages_of_troubleshooting_are_those_of_the_code() -> None:
    source = sentences_of_the_source()
    messages: list[str] = []
    for row in re.findall(r"^\| (`.*?) \|", read("docs/troubleshooting.md"), re.MULTILINE):
        messages += re.findall(r"`([^`]+)`", row)
    assert len(messages) >= 14
    for message in messages:
        for piece in message.split("..."):
            assert any(piece.strip() in sentence for sentence in source), message


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    """Links and pictures of a document lead to files of the repository and to headings in them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert anchor in [_anchor(heading) for heading in headings], link


def _anchor(heading: str) -> str:
    """The anchor of a heading on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
