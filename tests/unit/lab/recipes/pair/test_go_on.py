"""The second edition of the pair: it goes on from kept weights, and is probed on held-out
answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from draftlens_lab.world import HELD_OUT, Turn
from draftlens_lab.world.sample import HELD_OUT_LOOKS
from draftlens_lab.world.samples import draw
from draftlens_lab.world.scene import COLOURS, SHAPES

from recipes.pair import events, go_on, probe, video
from recipes.pair.data import Mix
from recipes.pair.export import export, load
from recipes.pair.grow import deepen, shallow_copy
from recipes.pair.kept import State, first_step, keep, load_weights, read_state
from recipes.pair.loop import Phase, learning_rate
from recipes.pair.models import (
    DRAFT,
    FAR_POSITIONS,
    SLOWING,
    Shape,
    build_model,
    slow_down,
)
from recipes.pair.recipe import LanguageStage
from recipes.pair.second import SECOND, SecondRecipe
from recipes.pair.video import FilmModel

SLOW_TURN = 8192
TINY = Shape(2, 32, 64, 2, 1, 32, 64, 2)
DEEP = replace(TINY, layers=6)
FEW = Mix((4,), (1.0,), batch=2, others=(0, 0, 0), seconds=(8, 4, 2, 0, 2, 0), rows=1)


def tiny(processor: Any, shape: Shape = TINY, seed: int = 0) -> Any:
    return build_model(shape, processor.tokenizer, seed).eval()


def outputs(model: Any, sample_seed: int = 0) -> torch.Tensor:
    torch.manual_seed(sample_seed)
    ids = torch.randint(10, 700, (1, 12))
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids).logits
    return logits


def test_a_deepened_model_is_made_shallow_again(fresh_processor: Any) -> None:
    model = tiny(fresh_processor)
    deep = deepen(model, tiny(fresh_processor, DEEP, 1))
    back = shallow_copy(deep, tiny(fresh_processor, TINY, 2))
    torch.testing.assert_close(outputs(back), outputs(model), rtol=0, atol=0)
    with pytest.raises(ValueError, match="cannot spread 4 layers evenly over 6"):
        shallow_copy(deep, tiny(fresh_processor, replace(TINY, layers=4)))


def test_spread_copies_share_the_work(fresh_processor: Any) -> None:
    model = tiny(fresh_processor)
    deep = deepen(model, tiny(fresh_processor, DEEP, 1), spread=True)
    for index, layer in enumerate(deep.model.language_model.layers):
        source = model.model.language_model.layers[index // 3]
        torch.testing.assert_close(3 * layer.mlp.down_proj.weight, source.mlp.down_proj.weight)
        torch.testing.assert_close(layer.mlp.up_proj.weight, source.mlp.up_proj.weight)
    profile = list(probe.layer_profile(deep, fresh_processor.tokenizer, share=0.01))
    assert len(profile) == 6
    assert all(rise != 0 for rise in profile)
    uneven = deepen(model, tiny(fresh_processor, replace(TINY, layers=5), 1), spread=True)
    shares = []
    for layer, source in zip(uneven.model.language_model.layers, (0, 0, 0, 1, 1), strict=True):
        whole = model.model.language_model.layers[source].mlp.down_proj.weight.detach()
        shares.append(float((layer.mlp.down_proj.weight.detach() / whole).mean()))
    assert shares == pytest.approx([1 / 3] * 3 + [1 / 2] * 2, rel=1e-4)
    idle = deepen(model, tiny(fresh_processor, DEEP, 1))
    profile = list(probe.layer_profile(idle, fresh_processor.tokenizer, share=0.01))
    assert [abs(rise) > 1e-6 for rise in profile] == [True, False, False] * 2


def test_kept_weights_are_half_and_come_back(fresh_processor: Any, tmp_path: Path) -> None:
    model = tiny(fresh_processor)
    state = State("some", 7, 2, {"focus right": 0.5})
    assert read_state(tmp_path / "kept") is None
    keep(tmp_path / "kept", model, state)
    assert read_state(tmp_path / "kept") == state
    other = tiny(fresh_processor, TINY, 3)
    load_weights(tmp_path / "kept", other)
    assert all(p.dtype == torch.float32 for p in other.parameters())
    torch.testing.assert_close(outputs(other), outputs(model), rtol=0, atol=0.02)
    size = (tmp_path / "kept" / "weights.safetensors").stat().st_size
    assert size < 2.1 * sum(p.numel() for p in model.parameters()) + 20_000


def test_a_resumed_phase_warms_up_and_goes_on_with_its_decay() -> None:
    whole = Phase("p", 100, 1.0, warmup=10)
    rest = replace(whole, steps=60, first=40)
    assert learning_rate(rest, 0) == pytest.approx(learning_rate(whole, 40) / 10)
    for step in range(10, 60):
        assert learning_rate(rest, step) == pytest.approx(learning_rate(whole, 40 + step))


def recipe(steps: int) -> SecondRecipe:
    stages = (
        (DRAFT, LanguageStage(Phase("one", 1, 1e-3, save_every=1), FEW)),
        (DRAFT, LanguageStage(Phase("two", steps, 1e-3, save_every=1), FEW)),
    )
    return SecondRecipe("draft", 5, stages)


def training(runs: Path, kept: Path, steps: int = 2) -> go_on.FurtherTraining:
    return go_on.FurtherTraining(recipe(steps), runs, kept)


def test_training_goes_on_from_kept_weights_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PLAN", (("spot", 2, 1),))
    here, kept, there = tmp_path / "here", tmp_path / "kept", tmp_path / "there"
    with pytest.raises(FileNotFoundError, match="no checkpoint of draft"):
        training(here, kept).newest()
    training(here, kept).run(None)
    model, state, _ = training(here, kept).newest()
    assert (state.phase, state.step, state.layers) == ("two", 2, DRAFT.layers)
    keep(kept, model, state)
    other, same, _ = training(there, kept).newest()
    assert same == state
    torch.testing.assert_close(outputs(other), outputs(model), rtol=0, atol=0.05)
    assert not list(there.glob("*/checkpoint-*"))
    longer = training(there, kept, steps=3)
    longer.run(None)
    assert sorted(file.name for file in there.iterdir() if file.is_dir()) == ["two-from-2"]
    _, state, _ = longer.newest()
    assert (state.phase, state.step) == ("two", 3)


def test_the_run_that_came_furthest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PLAN", (("spot", 2, 1),))
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    start = training(runs, kept, steps=3)
    assert first_step("two", start.runs, start.state) is None
    keep(kept, start.model_of(DRAFT, None), State("two", 1, DRAFT.layers, {}))
    assert first_step("two", runs, read_state(kept)) == 1
    training(runs, kept, steps=3).run(None)
    keep(kept, start.model_of(DRAFT, None), State("two", 2, DRAFT.layers, {}))
    # The run from step 1 on has reached step 3, further than what was kept since.
    assert first_step("two", runs, read_state(kept)) == 1
    assert training(runs, kept, steps=3).newest()[1].step == 3
    assert first_step("two", tmp_path / "elsewhere", read_state(kept)) == 2


def test_the_mean_with_the_kept_weights_begins_the_next_stage(tmp_path: Path) -> None:
    start = training(tmp_path / "runs", tmp_path / "kept")
    model = start.model_of(DRAFT, None)
    with pytest.raises(FileNotFoundError, match="no weights of draft are kept"):
        start.mix_with_kept(model, 0.5)
    keep(tmp_path / "kept", model, State("one", 0, DRAFT.layers, {}))
    mixed = training(tmp_path / "runs", tmp_path / "kept")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    mixed.mix_with_kept(model, 0.6)
    for name, value in model.state_dict().items():
        expected = before[name] + (0.3 if name in dict(model.named_parameters()) else 0)
        torch.testing.assert_close(value, expected, rtol=0, atol=2e-3)  # kept in float16


def test_a_later_stage_goes_on_with_the_trained_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PLAN", (("spot", 2, 1),))
    kept = tmp_path / "kept"
    start = training(tmp_path / "runs", kept)
    first = start.model_of(DRAFT, None)
    assert start.model_of(DRAFT, first) is first
    keep(kept, first, State("one", 0, DRAFT.layers, {}))
    further = training(tmp_path / "runs", kept)
    assert torch.equal(outputs(further.run(None)), outputs(further.newest()[0]))
    assert not torch.equal(outputs(further.newest()[0]), outputs(further.model_of(DRAFT, None)))


def test_a_stage_begins_with_the_heads_of_the_stage_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_heads = []

    def train(job: Any, *args: Any, **kwargs: Any) -> None:
        first_heads.append([head.weight.clone() for head in (job.module.head, job.module.asked)])
        with torch.no_grad():
            for head in (job.module.head, job.module.asked):
                head.weight.add_(1.0)

    monkeypatch.setattr(go_on, "train", train)
    stage = LanguageStage(Phase("one", 1, 1e-3), FEW, film_depth=1)
    next_stage = replace(stage, phase=Phase("two", 1, 1e-3), seed_offset=1)
    stages = ((DRAFT, stage), (DRAFT, next_stage))
    go_on.FurtherTraining(SecondRecipe("draft", 5, stages), tmp_path, tmp_path / "kept").run(None)
    for first, second in zip(*first_heads, strict=True):
        assert torch.equal(first + 1.0, second)


def test_heads_with_fewer_classes_are_taken(
    fresh_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(fresh_processor)
    whole = FilmModel(model)
    classes = dict(events.LOOK_CLASSES)
    *_, last = classes
    monkeypatch.setattr(
        video, "LOOK_CLASSES", {name: n for name, n in classes.items() if name != last}
    )
    heads = FilmModel(model).heads()
    whole.take_heads(heads)
    count = len(heads["head.bias"])
    assert len(whole.head.bias) == count + classes[last]
    assert torch.equal(whole.head.weight[:count], heads["head.weight"])
    assert not whole.head.weight[count:].any()
    assert not whole.head.bias[count:].any()
    assert torch.equal(whole.asked.weight, heads["asked.weight"])


def test_slow_rotary_pairs_become_slower_and_others_stay(fresh_processor: Any) -> None:
    model = build_model(TINY, fresh_processor.tokenizer, 0).eval()
    before = model.model.language_model.rotary_emb.inv_freq.clone()
    slow_down(model, SLOW_TURN)
    after = model.model.language_model.rotary_emb.inv_freq
    turns = 2 * torch.pi / before  # positions of a full turn
    is_fast, is_slow = turns <= SLOW_TURN / 2, turns > SLOW_TURN
    assert is_fast.any()
    assert is_slow.any()
    assert torch.equal(after[is_fast], before[is_fast])
    torch.testing.assert_close(after[is_slow], before[is_slow] / SLOWING)
    between = ~is_fast & ~is_slow
    assert (after[between] < before[between]).all()


def test_slow_rotary_pairs_are_exported(fresh_processor: Any, tmp_path: Path) -> None:
    model = tiny(fresh_processor)
    before = outputs(model)
    slow_down(model, SLOW_TURN)
    after = outputs(model)
    assert not torch.equal(after, before)
    export(model, fresh_processor, tmp_path / "export")
    loaded, _ = load(tmp_path / "export")
    assert loaded.config.text_config.max_position_embeddings == FAR_POSITIONS
    assert loaded.config.text_config.rope_parameters["rope_type"] == "llama3"
    torch.testing.assert_close(outputs(loaded), after, rtol=0, atol=0.02)  # float16 weights


def test_stages_slow_rotary_pairs_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PLAN", (("spot", 2, 1),))
    stages = (
        (DRAFT, LanguageStage(Phase("one", 1, 1e-3, save_every=1), FEW)),
        (DRAFT, LanguageStage(Phase("two", 1, 1e-3, save_every=1), FEW, slow_turn=8192)),
    )
    first = go_on.FurtherTraining(SecondRecipe("draft", 5, stages[:1]), tmp_path, tmp_path / "kept")
    assert rope_type(first.run(None)) == "default"
    further = go_on.FurtherTraining(SecondRecipe("draft", 5, stages), tmp_path, tmp_path / "kept")
    assert rope_type(further.run(None)) == "llama3"
    newest, state, heads = further.newest()
    assert heads is None
    keep(tmp_path / "kept", newest, state)
    elsewhere = go_on.FurtherTraining(further.recipe, tmp_path / "there", tmp_path / "kept")
    kept, *_ = elsewhere.newest()
    assert [rope_type(model) for model in (newest, kept)] == ["llama3", "llama3"]
    torch.testing.assert_close(outputs(kept), outputs(newest), rtol=0, atol=0.05)


def rope_type(model: Any) -> str:
    name: str = model.config.text_config.rope_parameters["rope_type"]
    return name


def test_fresh_heads_are_trained_on_a_frozen_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PLAN", (("spot", 2, 1),))
    stage = LanguageStage(
        Phase("one", 1, 1e-3, save_every=1), FEW, film_depth=1, asked_depth=2, heads_first=2
    )
    jobs: list[Any] = []
    train = go_on.train

    def watched(job: Any, *args: Any, **kwargs: Any) -> float:
        before = {name: value.clone() for name, value in job.module.state_dict().items()}
        seconds = train(job, *args, **kwargs)
        after = job.module.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        jobs.append((job.phase.name, before, after, changed))
        return seconds

    monkeypatch.setattr(go_on, "train", watched)
    recipe = SecondRecipe("draft", 5, ((DRAFT, stage),))
    go_on.FurtherTraining(recipe, tmp_path / "here", tmp_path / "kept").run(None)
    (name, _, heads, changed), (_, begun, _, trained) = jobs
    assert name == "one-heads"
    assert changed == {"head.weight", "head.bias", "asked.weight", "asked.bias"}
    assert all(torch.equal(begun[head], heads[head]) for head in changed)
    assert any(name.startswith("model.model.language_model") for name in trained)
    assert not any("vision_tower" in name for name in trained)

    jobs.clear()
    newest = go_on.FurtherTraining(recipe, tmp_path / "here", tmp_path / "kept").newest()
    keep(tmp_path / "kept", *newest)
    longer = SecondRecipe("draft", 5, ((DRAFT, replace(stage, phase=Phase("one", 2, 1e-3))),))
    go_on.FurtherTraining(longer, tmp_path / "there", tmp_path / "kept").run(None)
    ((name, begun, _, _),) = jobs  # kept heads are not fresh
    assert name == "one-from-1"
    kept = newest[2]
    assert kept is not None
    for head, value in kept.items():
        torch.testing.assert_close(begun[head], value, rtol=1e-3, atol=1e-3)


def test_the_recipes_follow_from_the_first_edition() -> None:
    for name, second in SECOND.items():
        assert second.name == name
        names = [stage.phase.name for _, stage in second.stages]
        assert len(set(names)) == len(names)
        layers = [shape.layers for shape, _ in second.stages]
        assert layers == sorted(layers)
        for _, stage in second.stages:
            assert sum(stage.mix.others) + sum(stage.mix.seconds) <= 16
            assert stage.mix.rows <= stage.mix.batch
    assert SECOND["target"].stages[-1][0].layers == 20


def test_a_probe_counts_what_must_be_seen(fresh_processor: Any) -> None:
    tokenizer = fresh_processor.tokenizer
    turn = Turn("What colour is the ring?", "The ring is [red].", "attribute")
    (index,) = probe._seen_tokens(tokenizer, turn)
    assert tokenizer.decode(tokenizer(turn.answer).input_ids[index]) == " red"
    figures = probe.measure(tiny(fresh_processor), tokenizer, share=0.01)
    assert {"focus word 16", "caption 8", "spot pairs compare"} <= figures.keys()
    assert all(0 <= figure.right <= 1 and figure.loss > 0 for figure in figures.values())
    sample = draw("clip", HELD_OUT + 900_000)
    tokens = sum(len(probe._seen_tokens(tokenizer, turn)) for turn in sample.turns)
    assert tokens == sum(f.tokens for name, f in figures.items() if name.endswith(" 8"))


def test_shapes_are_counted_by_their_colours(fresh_processor: Any) -> None:
    """Each colour that is named before a shape in an answer is counted once."""
    tokenizer = fresh_processor.tokenizer
    figures = probe.measure_shapes(tiny(fresh_processor), tokenizer, (("clip", 8, 6),))
    counts = {True: 0, False: 0}
    for index in range(6):
        for turn in draw("clip", probe.SEED + index, 8).turns:
            for look in re.findall(rf"({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})", turn.answer):
                counts[look in HELD_OUT_LOOKS] += 1
    assert figures["shapes in new colours"].tokens == counts[True] > 0
    assert figures["shapes in other colours"].tokens == counts[False] > 0


def test_probes_are_written_every_so_many_steps(
    fresh_processor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PLAN", (("spot", 2, 1),))
    watch = probe.Probe(tiny(fresh_processor), fresh_processor.tokenizer, tmp_path / "p", every=4)
    for step in range(1, 9):
        watch(step)
    lines = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 8]
    assert "spot pairs compare right" in lines[0]
