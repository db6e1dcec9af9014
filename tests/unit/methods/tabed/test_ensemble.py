"""Several views of a prompt are mixed, weighed, left out and asked again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from batches import batch_of, sequences
from families import FAMILIES, Family, inputs
from PIL import Image
from stock import LONG, draft, reference, target
from torch import Tensor
from transformers.generation import logits_process as hf

import draftlens
from draftlens.core.errors import DraftlensError
from draftlens.core.sampling import SamplingRule
from draftlens.core.sequence import Sequence
from draftlens.core.tree import Topology, Verdict, chain, from_paths, path_to
from draftlens.decoding.loop import decode
from draftlens.decoding.observer import Observer, Weighed
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_rows import Nodes, score_tokens
from draftlens.methods.tabed.ensemble import MIN_LOG_PROB, Ensemble
from draftlens.methods.tabed.prompts import ViewPrompts
from draftlens.methods.tabed.views import Source, View, make_views
from draftlens.methods.tabed.weights import make_weighting
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.request import Request, open_call

BY_NAME = {family.name: family for family in FAMILIES}
TREE = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]])
RED = Image.new("RGB", (32, 32), (255, 0, 0))
UNIFORM = {"pruner": "uniform", "ratio": 0.5}


class Scene:
    """Some rows of a family's batch with an ensemble that follows them.

    Args:
        name, kind, rows: of the batch.
        views, weights: of the ensemble.
        rule: how tokens are chosen.
        rest: whether views may rest.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        rows: list[int],
        views: list[Any],
        weights: Any,
        rule: SamplingRule | None = None,
        rest: bool = False,
    ) -> None:
        self.family: Family = BY_NAME[name]
        self.kind = kind
        self.plan = rows
        self.backbone = Backbone.of(draft(self.family))
        self.views = make_views(views)
        self.ensemble = Ensemble(
            ViewPrompts(self.backbone, self.views),
            TREE,
            self.backbone.vocab_size,
            make_weighting(weights),
            may_rest=rest,
        )
        self.seen: list[Weighed] = []
        self._prompts: dict[tuple[str, int], Prompt] = {}
        self._logits: dict[tuple[Any, ...], Tensor] = {}
        given = inputs(self.family, kind, rows)
        self.rows: list[Sequence] = sequences(
            given["input_ids"], [[5], [9], [6]][: len(rows)], rule
        )
        self.ensemble.begin(batch_of(self.rows), given, self.context(given))

    def context(self, given: Mapping[str, Any]) -> TargetContext:
        prompt = self.backbone.encode(self.backbone.prepare_prompt(given))
        cache = self.backbone.new_cache(prompt, 0)
        return TargetContext(
            prompt, cache, room=200, observer=Observer(on_weights=self.seen.append)
        )

    def prompt(self, view: View, row: int) -> Prompt:
        """What a view makes of one row alone."""
        key = (view.label, row)
        if key not in self._prompts:
            given = inputs(self.family, self.kind, [self.plan[row]])
            source = Source(self.backbone, given, {}, self.context(given))
            self._prompts[key] = view.read(source).prompt
        return self._prompts[key]

    def fresh(self, view: View, row: int, tokens: list[int]) -> Tensor:
        """Logits of a view after the last of some tokens, read from the beginning, ``[V]``."""
        key = (view.label, row, *tokens)
        if key not in self._logits:
            self._logits[key] = self.behind_all(view, row, tokens)[-1]
        return self._logits[key]

    def behind_all(self, view: View, row: int, tokens: list[int]) -> Tensor:
        """Logits of a view after each of some tokens."""
        prompt = self.prompt(view, row)
        cache = self.backbone.new_cache(prompt, len(tokens))
        self.backbone.prefill(prompt, cache)
        count = len(tokens)
        mask = torch.ones(1, 1, count, prompt.lengths[0] + count, dtype=torch.bool)
        mask = mask.tril(prompt.lengths[0])
        positions = prompt.positions(torch.arange(count)[None])
        ids = torch.tensor([tokens])
        vocab = self.backbone.vocab_size
        return score_tokens(self.backbone, vocab, ids, positions, cache, mask)[0]

    def round(self, topology: Topology, say: Callable[[int, list[int]], int]) -> int:
        """Draft and verify; `say` is the target: from a row and its tokens to the next token.
        Returns how many draft tokens stood."""
        batch = batch_of(self.rows)
        self.ensemble.rows.begin_round()
        tree = self.ensemble._grow(topology, batch, self.ensemble._catch_up(batch))
        paths = []
        for row, sequence in enumerate(self.rows):
            path: list[int] = []
            node = -1
            while True:
                token = say(row, sequence.tokens)
                sequence.tokens.append(token)
                children = topology.children.get(node, ())
                right = [child for child in children if tree.tokens[row, child] == token]
                if not right:
                    break
                node = right[0]
                path.append(node)
            paths.append(tuple(path))
        tokens = tuple(
            tuple(sequence.tokens[-len(path) - 1 :])
            for sequence, path in zip(self.rows, paths, strict=True)
        )
        self.ensemble.update(Verdict(tuple(paths), tokens), batch_of(self.rows))
        return sum(map(len, paths))


def listen(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> dict[int, Tensor]:
    """A table that receives the scores of an ensemble at each node."""
    process = ensemble._process
    heard: dict[int, Tensor] = {}

    def written_down(logits: Tensor, nodes: Nodes) -> Tensor:
        scores = process(logits, nodes)
        for slot, node in enumerate(nodes.nodes):
            heard[node] = scores[:, slot]
        return scores

    monkeypatch.setattr(ensemble, "_process", written_down)
    return heard


# --- mixing --------------------------------------------------------------------------------------

PROCESSORS = {
    "plain": (),
    "bent": (
        hf.RepetitionPenaltyLogitsProcessor(1.7),
        hf.TemperatureLogitsWarper(0.8),
        hf.TopKLogitsWarper(20),
    ),
}


@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.2], "bayes"], ids=str)
@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_every_node_has_the_mixture_of_what_the_views_say(
    name: str, weights: Any, processors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each view read from the beginning, processed by itself, and weighed along its path. In a
    row without pictures all views are the first."""
    rule = SamplingRule(PROCESSORS[processors])
    views = ["multimodal", "pooled", UNIFORM]
    kind, rows = ("images", [0, 2]) if name == "llava" else ("mixed", [0, 1])
    scene = Scene(name, kind, rows, views, weights, rule)
    heard = listen(scene.ensemble, monkeypatch)
    for topology in (chain(3), TREE):
        heard.clear()
        batch = batch_of(scene.rows)
        scene.ensemble.rows.begin_round()
        logits = scene.ensemble._catch_up(batch)
        roots = [scene.ensemble._tallies.rows[row].log_weights for row in range(2)]
        tree = scene.ensemble._grow(topology, batch, logits)
        for row in range(2):
            for node in topology.inner:
                path = [int(tree.tokens[row, place]) for place in path_to(topology, node)]
                slow = slow_mixture(scene, row, path, roots[row], weights == "bayes")
                found = heard[node][row].softmax(-1)
                assert torch.allclose(found, slow, atol=1e-4)
        # As if one draft token were right in the first row and none in the other.
        token = int(tree.tokens[0, 0])
        emitted = ((token, 7), (8,))
        for sequence, tokens in zip(scene.rows, emitted, strict=True):
            sequence.tokens.extend(tokens)
        scene.ensemble.update(Verdict(((0,), ()), emitted), batch_of(scene.rows))


def slow_mixture(scene: Scene, row: int, path: list[int], root: Any, follows_path: bool) -> Tensor:
    """Sum of w_v q_v after a path, ``[V]``."""
    sequence = scene.rows[row]
    has_view = torch.tensor(scene.ensemble.rows.present[row])
    log_weights = torch.tensor(root).masked_fill(~has_view, -torch.inf)
    said = list(sequence.tokens)
    for token in path if follows_path else ():
        likelihoods = torch.stack([slow_q(scene, view, row, said)[token] for view in scene.views])
        log_weights = log_weights + likelihoods.clamp_min(MIN_LOG_PROB)
        said.append(token)
    weights = log_weights.softmax(-1)
    said = [*sequence.tokens, *path]
    pairs = zip(weights, scene.views, strict=True)
    return sum(  # type: ignore[return-value]
        weight * slow_q(scene, view, row, said).exp() for weight, view in pairs
    )


def slow_q(scene: Scene, view: View, row: int, said: list[int]) -> Tensor:
    """log q_v after some tokens, ``[V]``."""
    scores = scene.fresh(view, row, said)[None]
    history = scene.rows[row].history.prompt_ids
    ids = torch.cat([history, torch.tensor(said)])[None]
    for processor in scene.rows[row].sampling.processors:
        scores = processor(ids, scores)
    return scores[0].float().log_softmax(-1)


# --- observing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [None, "eagle"])
@pytest.mark.parametrize("weights", ["bayes", "grid"])
def test_every_token_is_weighed_once_and_as_the_views_would_have_drafted(
    tree: Any, weights: str
) -> None:
    """Prefill's token, the draft tokens' and those after leaves."""
    family = BY_NAME["llava"]
    scene = Scene("llava", "images", [0, 1, 2], ["multimodal", "pooled"], weights)
    seen: list[Weighed] = []
    request = Request(
        inputs(family, "images"),
        method={
            "method": "tabed",
            "views": ["multimodal", "pooled"],
            "weights": weights,
            "rest": False,
        }
        | ({"tree": tree} if tree else {}),
        options={"max_new_tokens": LONG},
        observer=Observer(on_weights=seen.append),
    )
    call = open_call(target(family), draft(family), request)
    for _ in decode(call.session):
        pass
    answers = [sequence.tokens for sequence in call.sequences]
    assert answers == reference(family, "images", LONG)
    for row, answer in enumerate(answers):
        weighed = [entry for entry in seen if entry.row == row]
        assert [entry.index for entry in weighed] == list(range(len(weighed)))
        assert LONG - 8 < len(weighed) <= LONG
        assert [entry.token for entry in weighed] == answer[: len(weighed)]
        for slot, view in enumerate(scene.views):
            said = scene.behind_all(view, row, answer).argmax(-1).tolist()
            hits = [entry.hits[slot] for entry in weighed[1:]]
            expected = [
                draft_token == token for draft_token, token in zip(said, answer[1:], strict=False)
            ]
            assert hits == expected[: len(hits)]
            assert 0 < hits.count(True) < len(hits)
        assert all(sum(entry.weights) == pytest.approx(1) for entry in weighed)
    views = call.session.stats.views
    assert views.keys() == {"multimodal", "pooled"}
    for slot, name in enumerate(views):
        counted = views[name]
        assert counted.tokens == counted.asked == len(seen)
        assert counted.right == sum(entry.hits[slot] is True for entry in seen)
        assert counted.weight == pytest.approx(sum(entry.weights[slot] for entry in seen))


# --- views that are the same, or cannot be read --------------------------------------------------


def rounds_of(
    family: Family, kind: str, method: Any, rows: tuple[int, ...]
) -> tuple[list[Any], draftlens.Stats]:
    """Widths of the draft's forwards round by round, and the counters."""
    request = Request(inputs(family, kind, rows), method=method, options={"max_new_tokens": LONG})
    call = open_call(target(family), draft(family), request)
    drafter: Any = call.plan.drafter
    widths = []
    for _ in decode(call.session):
        widths.append(list(drafter.rows.widths))
    answers = [sequence.tokens for sequence in call.sequences]
    assert answers == [reference(family, kind, LONG)[row] for row in rows]
    return widths, call.session.stats


@pytest.mark.parametrize("name", ["llava", "qwen3_vl"])
@pytest.mark.parametrize("tree", [None, "eagle"])
def test_equal_prompts_cost_what_one_view_costs(name: str, tree: Any) -> None:
    """Text only: all views are the same."""
    family = BY_NAME[name]
    shape = {"tree": tree} if tree else {"num_speculative_tokens": 5}
    views = ["multimodal", "text", "pooled", UNIFORM]
    found, ours = rounds_of(family, "text", {"method": "tabed", "views": views, **shape}, (0, 1, 2))
    plain = {"method": "speculative", **shape}
    expected, theirs = rounds_of(family, "text", plain, (0, 1, 2))
    assert found == expected
    assert ours.draft_forwards == theirs.draft_forwards
    assert ours.accepted_by_depth == theirs.accepted_by_depth
    assert ours.draft_cache_bytes == theirs.draft_cache_bytes


def test_a_row_without_pictures_has_one_view_beside_rows_with_several() -> None:
    scene = Scene("qwen2_vl", "mixed", [0, 1, 2], ["multimodal", "pooled"], "bayes")
    packed = scene.ensemble.rows
    assert packed.present == [(True, True), (True, False), (True, True)]
    for _ in range(3):
        scene.round(chain(3), lambda row, tokens: 10 + len(tokens) % 7)
    for entry in scene.seen:
        if entry.row == 1:
            assert entry.weights == (1.0, 0.0)
            assert entry.hits[1] is None
        else:
            assert None not in entry.hits
    assert {entry.row for entry in scene.seen} == {0, 1, 2}


def test_a_view_that_cannot_be_read_is_dropped_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    family = BY_NAME["llava"]
    method = {"method": "tabed", "views": ["caption", "multimodal", "pooled"]}
    with caplog.at_level(logging.WARNING, "draftlens"):
        widths, stats = rounds_of(family, "images", method, (0, 1))
    messages = [record.message for record in caplog.records if "view" in record.message]
    assert len(messages) == 1
    assert "'caption'" in messages[0]
    assert "draft_inputs['views']['caption']" in messages[0]
    assert stats.views.keys() == {"caption", "multimodal", "pooled"}
    assert stats.views["caption"].asked == 0
    assert widths


def test_no_view_left_is_an_error() -> None:
    family = BY_NAME["llava"]
    with pytest.raises(DraftlensError, match="none of the views caption can be read"):
        rounds_of(family, "images", {"method": "tabed", "views": ["caption"]}, (0,))


@pytest.mark.parametrize("views", [["caption", "multimodal", "text"], ["multimodal", "caption"]])
def test_a_captioner_that_fails_loses_its_view_and_not_the_answer(
    engine: draftlens.Engine, views: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(picture: Any) -> str:
        raise RuntimeError("no words")

    chosen = [{"name": name, "captioner": fail} if name == "caption" else name for name in views]
    ask: dict[str, Any] = {"images": RED, "max_new_tokens": 8}
    expected = engine.generate("What is this?", method="plain", **ask)
    with caplog.at_level(logging.WARNING, "draftlens"):
        result = engine.generate(
            "What is this?", method={"method": "tabed", "views": chosen}, **ask
        )
    assert result.tokens == expected.tokens
    assert result.stats.views["caption"].asked == 0
    assert result.stats.views["multimodal"].asked > 0
    assert [record.message for record in caplog.records if "'caption'" in record.message]


def test_a_caption_is_a_view_and_its_time_a_phase(engine: draftlens.Engine) -> None:
    described = []

    def describe(picture: Any) -> str:
        described.append(picture)
        return "a red square"

    views = ["multimodal", {"name": "caption", "captioner": describe}]
    method = {"method": "tabed", "views": views}
    for _ in range(2):
        result = engine.generate("What is this?", images=RED, method=method, max_new_tokens=8)
        assert result.stats.views["caption"].asked > 0
    assert result.stats.phases["caption"] > 0
    assert len(described) == 1  # the second time it is remembered


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    return draftlens.load(device="cpu", calibrate=False)


# --- resting -------------------------------------------------------------------------------------


def test_a_view_that_is_wrong_is_dropped() -> None:
    """The target says what the draft says in one view, then what it said in the other."""
    scene = Scene("llava", "images", [0], ["multimodal", "pooled"], "bayes", rest=True)
    packed = scene.ensemble.rows
    assert packed.awake == (0, 1)
    bytes_of_both = packed.nbytes

    def say(row: int, tokens: list[int]) -> int:
        return int(scene.fresh(scene.views[len(tokens) > 20], row, tokens).argmax())

    for _ in range(10):
        scene.round(chain(2), say)
    assert packed.awake == (0,)
    assert packed.present == [(True, False)]
    assert packed.nbytes < bytes_of_both
    for _ in range(10):
        scene.round(chain(2), say)
        assert max(packed.widths) <= 2
    assert packed.awake == (0,)
    unasked = [entry for entry in scene.seen if entry.hits[1] is None]
    assert unasked
    assert all(entry.weights[1] == 0 for entry in unasked)
    indices = [entry.index for entry in scene.seen]
    assert indices == list(range(len(indices)))


def test_a_view_that_is_as_good_does_not_rest() -> None:
    scene = Scene("llava", "images", [0], ["multimodal", "pooled"], "bayes", rest=True)
    packed = scene.ensemble.rows

    def say(row: int, tokens: list[int]) -> int:
        return int(scene.fresh(scene.views[len(tokens) % 2], row, tokens).argmax())

    for _ in range(8):
        scene.round(chain(2), say)
        assert packed.awake == (0, 1)


@pytest.mark.parametrize("weights", ["bayes", [1, 0]], ids=str)
def test_views_rest_only_if_they_may(weights: Any) -> None:
    scenes = [
        Scene("llava", "images", [0], ["multimodal", "pooled"], weights, rest=rest)
        for rest in (False, True)
    ]
    for scene in scenes:
        for _ in range(8):
            scene.round(
                chain(2),
                lambda row, tokens, scene=scene: int(
                    scene.fresh(scene.views[0], row, tokens).argmax()
                ),
            )
    awake, rested = (scene.ensemble.rows.num_views for scene in scenes)
    assert (awake, rested) == (2, 1)
    assert scenes[0].rows[0].tokens[:8] == scenes[1].rows[0].tokens[:8]
