"""``python -m recipes.pair.pruned``: the draft goes on with prompts that are pruned as in use.

The embedded target reads each clip; its attention chooses the visual tokens that the draft reads,
and its logits are what the draft learns. The draft begins with the embedded draft's weights.

Checkpoints are in ``runs/pair``; the same command resumes from the newest. ``--export`` writes the
newest model as ``from_pretrained`` loads it. Its mean with the embedded draft (see average.py)
keeps more of what unpruned prompts tell.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from draftlens_lab.train.distil import answer_labels, answer_logits, answer_loss
from draftlens_lab.train.draws import Draw
from draftlens_lab.train.pruned import (
    RowPruning,
    read_prompt,
    reading_only,
    select_answers,
    taken,
)
from draftlens_lab.world.samples import Sample
from safetensors.torch import load_model
from torch import Tensor, nn

from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.pruning.attention import SpecVLMPruner
from recipes.pair.data import IGNORED, Batch, BatchPlan, Mix, collate, plans
from recipes.pair.export import export, load
from recipes.pair.jobs import language_job
from recipes.pair.loop import Job, OutOfTime, Phase, StepResult, newest_checkpoint, train
from recipes.pair.recipe import EMBEDDED, RUNS

DATA_SEED = 31
REPEATS = 3  # steps with each batch, pruned anew: the target reads it once
WHOLE = 0.1  # share of the batches of dialogues that stay whole, with all answers
CAPTIONS = 0.6  # of the answers that are drawn from dialogues with a caption
UNPRUNED = 0.3  # share of the rows of other batches
LEAST, MOST = 0.8, 0.98  # prune ratios
DISTILLED = 0.8  # weight of the target's logits in the loss

# Of 16 batches: 6 of clips, 1 of pictures, 1 of talk, 5 of focus, 1 each of needles, chats and
# pairs with questions about each picture.
PRUNED = Mix(
    (8, 16, 64),
    (0.1, 0.5, 0.4),
    batch=8,
    tokens=4096,
    others=(1, 0, 1),
    first=110_000_000,
    seconds=(5, 1, 1, 1, 0, 0),
    reel_frames=(16, 64),
    reel_share=(0.5, 0.5),
)
# The measured draft is of a run that was planned for 2,000 steps and shortened at steps 300, 400
# and 500. 1,000 steps at 2.5e-4 gave the same lengths on eight clips of each kind.
PHASE = Phase("draft-pruned", 800, 5e-4, warmup=40)


@dataclass(frozen=True)
class PrunedBatch:
    """A batch of dialogues.

    Args:
        number: of the dialogues; `REPEATS` batches have the same ones.
        batch: the dialogues, with an attention mask.
        rows: what the draft reads of each.
    """

    number: int
    batch: Batch
    rows: RowPruning


@dataclass(frozen=True)
class TargetReading:
    """What one pass of the target tells of a batch.

    Args:
        number: of the batch.
        prompt: as the target reads it.
        attention: of the prompts' text to each token, float32 ``[B, L]``.
        logits: for the answers' tokens, ``[N, V]``.
    """

    number: int
    prompt: Prompt
    attention: Tensor
    logits: Tensor

    def kept(self, ratios: Sequence[float]) -> list[Tensor]:
        """The tokens that the draft reads of each row, int64 ``[K]``. Both models cut frames and
        pictures alike, so they have the same indices."""
        cache = KVCache(0, len(ratios), 0)
        context = TargetContext(self.prompt, cache, readings=PrefillFeatures(self.attention))
        return [
            Pruning(SpecVLMPruner(), ratio).keep_in_row(row, self.prompt, context)
            for row, ratio in enumerate(ratios)
        ]


def pruned_batches(tokenizer: Any, mix: Mix, seed: int, start: int) -> Iterator[PrunedBatch]:
    """Endless batches that depend on the seed only, beginning with number ``start``."""
    first, skip = divmod(start, REPEATS)
    for number, plan in enumerate(plans(mix, seed, first), first):
        repeats = range(skip, REPEATS)
        yield from repeated(tokenizer, plan, [seed, number], repeats)
        skip = 0


def repeated(
    tokenizer: Any, plan: BatchPlan, seed: list[int], repeats: Iterable[int]
) -> Iterator[PrunedBatch]:
    """The batches of one plan, with other prune ratios each."""
    rng = np.random.default_rng([*seed, 7])
    samples = plan.samples
    is_whole = samples[0].media == "none" or rng.random() < WHOLE
    if not is_whole:
        samples = [with_one_answer(sample, rng) for sample in samples]
    batch = collate(tokenizer, samples, plan.num_frames, plan.gaps)
    batch["attention_mask"] = (batch["input_ids"] != tokenizer.pad_token_id).long()
    for repeat in repeats:
        draws = [Draw()] * len(samples)
        if not is_whole:
            rng = np.random.default_rng([*seed, 8, repeat])
            draws = [Draw(_ratio(rng), len(sample.turns) - 1) for sample in samples]
        labels = batch["labels"].clone()
        rows = select_answers(labels, draws)
        yield PrunedBatch(seed[-1], {**batch, "labels": labels}, rows)


def with_one_answer(sample: Sample, rng: np.random.Generator) -> Sample:
    """A dialogue that ends with an answer drawn from it; a chat keeps the turn before."""
    if sample.kind == "chat":
        begin = 2 * int(rng.integers(len(sample.turns) // 2))
        return replace(sample, turns=sample.turns[begin : begin + 2])
    captions = [turn for turn in sample.turns if turn.family == "caption"]
    turns = captions if captions and rng.random() < CAPTIONS else sample.turns
    return replace(sample, turns=(turns[int(rng.integers(len(turns)))],))


def _ratio(rng: np.random.Generator) -> float:
    return 0.0 if rng.random() < UNPRUNED else float(rng.uniform(LEAST, MOST))


@torch.no_grad()
def read_target(target: Backbone, item: PrunedBatch) -> TargetReading:
    """Read a batch. Where the rows are long enough, one pass gives all: the tokens of the prompts
    read the attention, those of the answers give the logits."""
    inputs = {name: value for name, value in item.batch.items() if name != "labels"}
    labels = item.batch["labels"]
    prompt = read_prompt(target.model, inputs)
    probe = AttentionProbe(prompt.visual, prompt.lengths)
    probe.begin_part([0] * len(labels), item.rows.prompts)
    cache = target.new_cache(prompt, 0)
    firsts = (labels != IGNORED).int().argmax(1).tolist()
    count = 1 + max(length - first for length, first in zip(prompt.lengths, firsts, strict=True))
    in_one_pass = count <= min(prompt.lengths)
    last = target.prefill(prompt, cache, probe, num_logits=count if in_one_pass else 1)
    if in_one_pass:
        answers = []
        for row, length in enumerate(prompt.lengths):
            is_before = labels[row, length - count + 1 : length] != IGNORED
            answers.append(last[row, is_before.nonzero()[:, 0]])
        logits = torch.cat(answers).clone()  # autograd refuses tensors of inference mode
    else:
        logits = answer_logits(target.model, target.model, inputs, labels)
    return TargetReading(item.number, prompt, probe.result(), logits)


class PrunedStep:
    """Computes the loss of batches; the reading of the last dialogues is kept."""

    def __init__(self, draft: Any, target: Backbone) -> None:
        self.draft = draft
        self.target = target
        self._reading: TargetReading | None = None

    def __call__(self, item: PrunedBatch) -> StepResult:
        """The loss per answer token, and the share of the target's choices that the draft ranks
        first."""
        if self._reading is None or self._reading.number != item.number:
            self._reading = read_target(self.target, item)
        inputs = {name: value for name, value in item.batch.items() if name != "labels"}
        kept = self._reading.kept(item.rows.ratios)
        labels = taken(item.batch["labels"], kept)
        with reading_only(self.draft, inputs["input_ids"], kept):
            hidden = self.draft.model(**inputs, use_cache=False).last_hidden_state  # [B, K, D]
        logits = self.draft.lm_head(hidden[:, :-1][labels[:, 1:] != IGNORED])
        to_learn = self._reading.logits
        loss = answer_loss(logits, answer_labels(labels), to_learn, DISTILLED, 1.0)
        accuracy = float((logits.argmax(-1) == to_learn.argmax(-1)).float().mean())
        return StepResult(loss / len(logits), accuracy)


def pruned_job(
    draft: Any, target: Backbone, tokenizer: Any, phase: Phase, mix: Mix
) -> Job[PrunedBatch]:
    """The job, which trains the draft in place."""
    job = language_job(draft, tokenizer, phase, mix, DATA_SEED)
    return Job(
        phase,
        job.module,
        lambda start: pruned_batches(tokenizer, mix, DATA_SEED, start),
        PrunedStep(draft, target),
        lambda item: item.batch["input_ids"].numel(),
    )


def main() -> None:
    options = _parse_options()
    torch.set_num_threads(options.threads)
    phase = replace(PHASE, steps=options.steps or PHASE.steps)
    draft, processor = load(EMBEDDED / "draft")
    target = Backbone(load(EMBEDDED / "target")[0])
    job = pruned_job(draft, target, processor.tokenizer, phase, PRUNED)
    if options.export is None:
        try:
            train(job, options.runs, minutes=options.minutes)
        except OutOfTime as error:
            print(f"{error}; the same command resumes from it")
        return
    checkpoint, step = newest_checkpoint(options.runs / phase.name)
    assert checkpoint is not None, f"there is no checkpoint in {options.runs}"
    load_model(nn.ModuleDict({"trained": draft}), checkpoint / "model.safetensors")
    export(draft, processor, options.export)
    print(f"{options.export}: step {step}")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.pair.pruned", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="number of PyTorch threads")
    parser.add_argument("--minutes", type=float, help="save and stop after this time")
    parser.add_argument("--steps", type=int, help="steps in place of the recipe's")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder for checkpoints")
    parser.add_argument("--export", type=Path, help="write the newest model here, and stop")
    return parser.parse_args()


if __name__ == "__main__":
    main()
