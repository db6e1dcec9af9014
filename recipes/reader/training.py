"""The training of the reader, stage by stage, on one machine after another."""

import time
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_model
from torch import nn

from recipes.pair.grow import deepen
from recipes.pair.kept import State, continued, keep, last_line, load_weights, read_state
from recipes.pair.loop import Job, newest_checkpoint, train
from recipes.reader.data import Batch, batches
from recipes.reader.evaluate import Probe
from recipes.reader.losses import Pointer, Trained, reader_loss
from recipes.reader.model import Shape, build_model
from recipes.reader.optimizer import muon
from recipes.reader.recipe import DATA_SEED, WEIGHT_SEED, Stage
from recipes.reader.tokenizer import build_tokenizer
from recipes.reader.words import Split


class ReaderTraining:
    """The training of the reader; every phase resumes from its own checkpoint.

    Args:
        stages: phases in order. Between two of them the reader may become deeper.
        runs: folder of checkpoints.
        kept: folder of the weights from another machine, which need not exist.
    """

    def __init__(self, stages: tuple[Stage, ...], runs: Path, kept: Path) -> None:
        self.stages = stages
        self.runs = runs
        self.kept = kept
        self.state = read_state(kept)
        self.tokenizer = build_tokenizer()

    def run(self, minutes: float | None = None) -> Trained:
        """Train all stages.

        Args:
            minutes: time limit of all stages together; None for none.

        Raises:
            OutOfTime: the time limit was reached; the last step is saved.
        """
        start = time.monotonic()
        trained: Trained | None = None
        for stage in self._remaining():
            trained = self._begin(stage.shape, trained)
            job, name = self.job(trained, stage)
            probe = Probe(trained.model, self.tokenizer, self.runs / f"{name}-probe.jsonl")
            left = None
            if minutes is not None:
                left = minutes - (time.monotonic() - start) / 60
            train(job, self.runs, on_save=probe, minutes=left)
        assert trained is not None, "a recipe has at least one stage"
        return trained

    def newest(self) -> tuple[Trained, State]:
        """The newest checkpoint of all stages, else the kept weights, and its state.

        Raises:
            FileNotFoundError: there is neither.
        """
        for stage in reversed(self._remaining()):
            trained = self._random(stage.shape)
            job, name = self.job(trained, stage)
            checkpoint, step = newest_checkpoint(self.runs / name)
            if checkpoint is None:
                continue
            load_model(nn.ModuleDict({"trained": trained}), checkpoint / "model.safetensors")
            figures = last_line(self.runs / f"{name}-probe.jsonl")
            state = State(stage.phase.name, job.phase.first + step, stage.shape.layers, figures)
            return trained, state
        if self.state is None:
            raise FileNotFoundError(f"there is no checkpoint in {self.runs} nor in {self.kept}")
        stage = next(stage for stage in self.stages if stage.phase.name == self.state.phase)
        return self._from_kept(stage.shape, self.state), self.state

    def deepest(self) -> tuple[Trained, State]:
        """The newest reader in the depth of the last stage, which says the same."""
        trained, state = self.newest()
        return self._deepened(trained, self.stages[-1].shape), state

    def keep(self) -> State:
        """Write the newest weights to the folder of kept ones."""
        trained, state = self.newest()
        keep(self.kept, trained, state)
        return state

    def job(self, trained: Trained, stage: Stage) -> tuple[Job[Batch], str]:
        """The job of a stage and the name of its phase in ``runs``."""
        phase = continued(stage.phase, self.runs, self.state)
        layers = trained.model.model.language_model.layers
        pointer = Pointer([layers[index] for index in stage.pointing])
        seed = DATA_SEED + self.stages.index(stage)
        job: Job[Batch] = Job(
            phase,
            trained,
            lambda start: batches(
                self.tokenizer, stage.buckets, seed, phase.first + start, Split()
            ),
            lambda batch: reader_loss(trained, pointer, batch),
            lambda batch: batch.ids.numel(),
            muon,
        )
        return job, phase.name

    def _remaining(self) -> tuple[Stage, ...]:
        """The stages from that of the kept weights on, which may have been its last step."""
        if self.state is None:
            return self.stages
        names = [stage.phase.name for stage in self.stages]
        first = names.index(self.state.phase)
        is_over = self.state.step >= self.stages[first].phase.steps
        return self.stages[first + is_over :]

    def _begin(self, shape: Shape, previous: Trained | None) -> Trained:
        """The reader with which a stage begins.

        Args:
            shape: its sizes.
            previous: that of the stage before; None for the first stage of this run.
        """
        if previous is not None:
            return self._deepened(previous, shape)
        if self.state is None:
            return self._random(shape)
        return self._from_kept(shape, self.state)

    def _from_kept(self, shape: Shape, state: State) -> Trained:
        """The reader of the kept weights, deeper if necessary."""
        trained = self._random(replace(shape, layers=state.layers))
        load_weights(self.kept, trained)
        return self._deepened(trained, shape)

    def _deepened(self, trained: Trained, shape: Shape) -> Trained:
        """A reader of the given depth that says the same; the given one if it has that depth."""
        if len(trained.model.model.language_model.layers) == shape.layers:
            return trained
        deeper = self._random(shape)
        deepen(trained.model, deeper.model)
        deeper.namer.load_state_dict(trained.namer.state_dict())
        return deeper

    def _random(self, shape: Shape) -> Trained:
        return Trained(build_model(shape, self.tokenizer, WEIGHT_SEED))
