"""``python -m recipes.pair.near_sighted``: a draft of pictures and short clips.

It has the eyes of the embedded draft: vision encoder and projector start from the embedded draft's
weights. Its language model starts afresh. It is as wide and as deep as the draft's, but it is a
GPT-2, which has an embedding for each position. It first reads dialogues and stories of all kinds
without pictures, as drafts are made from language models, and then sees single pictures and clips
of eight frames. The embeddings of positions behind `TOLD` are never trained.

Checkpoints are in ``runs/pair``; the same command resumes from the newest.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from draftlens_lab.world import Story, story
from draftlens_lab.world.samples import Sample
from transformers import GPT2Config, LlavaOnevisionForConditionalGeneration

from recipes.pair.data import Batch, BatchPlan, Mix, collate, plans
from recipes.pair.export import export, load, size
from recipes.pair.jobs import language_job
from recipes.pair.loop import Job, OutOfTime, Phase, train
from recipes.pair.models import DRAFT, build_config, build_processor
from recipes.pair.recipe import EMBEDDED, RUNS
from recipes.pair.tokenizer import build_tokenizer

WEIGHT_SEED = 3
DATA_SEED = 21
POSITIONS = 1280  # those of 64 frames and an answer fit
INNER = 128  # width of the feed-forward layers; half of the draft's makes room for the positions
TOLD = 400  # positions of a text: five captions fit
SEEN = 280  # positions of a dialogue with a picture or a clip: 128 tokens of an answer fit
STORY_EVERY = 4  # one batch of text of this many is of stories
STORIES = 60_000_000  # seed of the first story
OUT = Path(__file__).resolve().parents[2] / "benchmarks" / "near_sighted"

# Dialogues of every kind, of which only the text is read.
READ = Mix(
    (8,),
    (1.0,),
    batch=16,
    others=(2, 1, 1),
    first=40_000_000,
    seconds=(3, 1, 1, 1, 0, 0),
    rows=16,
)
# Of 16 batches: 8 of clips, 7 of pictures, 1 of talk.
SEE = Mix((8,), (1.0,), batch=16, others=(7, 0, 1), first=50_000_000)


@dataclass(frozen=True)
class NearSightedRecipe:
    """The training of the draft.

    Args:
        read: the phase in which it reads.
        see: the phase in which it sees.
        read_every: in the second phase, one batch of this many is still of text.
    """

    read: Phase
    see: Phase
    read_every: int = 4


RECIPE = NearSightedRecipe(
    Phase("near-read", 450, 2e-3, warmup=40, save_every=250),
    Phase("near-see", 600, 2e-3, warmup=60, save_every=250),
)


def shortened(recipe: NearSightedRecipe, steps: int) -> NearSightedRecipe:
    """The same recipe with at most ``steps`` steps per phase, to test that everything runs."""
    read = replace(recipe.read, steps=min(recipe.read.steps, steps))
    see = replace(recipe.see, steps=min(recipe.see.steps, steps))
    return replace(recipe, read=read, see=see)


def fresh_model(draft: Any, tokenizer: Any) -> Any:
    """A float32 model with the draft's eyes and a new language model.

    Args:
        draft: the embedded draft.
        tokenizer: the pair's tokenizer.
    """
    config = build_config(DRAFT, tokenizer)
    config.text_config = _text_config(tokenizer)
    torch.manual_seed(WEIGHT_SEED)
    model = LlavaOnevisionForConditionalGeneration(config).float()
    model.model.vision_tower.load_state_dict(draft.model.vision_tower.state_dict())
    model.model.multi_modal_projector.load_state_dict(
        draft.model.multi_modal_projector.state_dict()
    )
    with torch.no_grad():
        model.model.image_newline.copy_(draft.model.image_newline)
    return model


def reading(tokenizer: Any, start: int) -> Iterator[Batch]:
    """Endless batches of text, beginning with number ``start``."""
    dialogues = plans(READ, DATA_SEED, start - start // STORY_EVERY)
    number = start
    while True:
        number += 1
        if number % STORY_EVERY == 0:
            first = STORIES + number * READ.batch
            samples = [told(story(seed)) for seed in range(first, first + READ.batch)]
        else:
            samples = [without_media(sample) for sample in next(dialogues).samples]
        yield cut(collate(tokenizer, samples, 0), TOLD)


def seeing(tokenizer: Any, start: int, read_every: int) -> Iterator[Batch]:
    """Endless batches of pictures and clips with some of text, beginning with number ``start``.

    Args:
        tokenizer: the pair's tokenizer.
        start: the number of the first batch.
        read_every: each batch whose number is one less than a multiple of this is of text.
    """
    num_texts = start // read_every
    # The first phase has read the batches before these.
    texts = reading(tokenizer, RECIPE.read.steps + num_texts)
    shown = plans(SEE, DATA_SEED, start - num_texts)
    number = start
    while True:
        number += 1
        if number % read_every == 0:
            yield next(texts)
        else:
            yield _shown_batch(tokenizer, next(shown))


def without_media(sample: Sample) -> Sample:
    """The dialogue of a sample, without what it is about."""
    return Sample("talk", (), sample.turns)


def told(read: Story) -> Sample:
    """A story without its pictures."""
    captions = "".join(f"{caption}\n" for caption in read.captions)
    turn = replace(read.turn, question=captions + read.turn.question)
    return Sample("talk", (), (turn,))


def cut(batch: Batch, length: int) -> Batch:
    """A batch of which only the first positions are left; media are before them."""
    shorter = {name: batch[name][:, :length] for name in ("input_ids", "labels")}
    return {**batch, **shorter}


def run(recipe: NearSightedRecipe, runs: Path, minutes: float | None) -> Any:
    """Train both phases and return the model.

    Args:
        recipe: the phases.
        runs: folder of checkpoints.
        minutes: time limit of a phase, or None.

    Raises:
        OutOfTime: the time limit of a phase was reached.
    """
    draft, processor = load(EMBEDDED / "draft")
    model = fresh_model(draft, processor.tokenizer)
    for job in jobs(recipe, model, processor.tokenizer):
        train(job, runs, minutes=minutes)
    return model


def jobs(recipe: NearSightedRecipe, model: Any, tokenizer: Any) -> list[Job[Batch]]:
    """The jobs of both phases, which train the model in place."""
    read = language_job(model, tokenizer, recipe.read, READ, DATA_SEED)
    see = language_job(model, tokenizer, recipe.see, SEE, DATA_SEED)
    return [
        replace(read, source=lambda start: reading(tokenizer, start)),
        replace(see, source=lambda start: seeing(tokenizer, start, recipe.read_every)),
    ]


def _text_config(tokenizer: Any) -> Any:
    return GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=DRAFT.width,
        n_layer=DRAFT.layers,
        n_head=DRAFT.heads,
        n_inner=INNER,
        n_positions=POSITIONS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.05,
        tie_word_embeddings=False,
    )


def _shown_batch(tokenizer: Any, plan: BatchPlan) -> Batch:
    return cut(collate(tokenizer, plan.samples, plan.num_frames), SEEN)


def main() -> None:
    options = _parse_options()
    torch.set_num_threads(options.threads)
    recipe = RECIPE if options.steps is None else shortened(RECIPE, options.steps)
    try:
        model = run(recipe, options.runs, options.minutes)
    except OutOfTime as error:
        print(f"{error}; the same command resumes from it")
        return
    export(model, build_processor(build_tokenizer()), options.out)
    print(f"{options.out}: {size(options.out) / 1e6:.2f} MB")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.pair.near_sighted")
    parser.add_argument("--threads", type=int, default=1, help="number of PyTorch threads")
    parser.add_argument("--minutes", type=float, help="save and stop a phase after this time")
    parser.add_argument("--steps", type=int, help="maximum steps per phase, for a test")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder for checkpoints")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the trained model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
