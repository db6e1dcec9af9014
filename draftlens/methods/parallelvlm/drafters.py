"""The drafter of the schedule `parallel`, and where its model drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from draftlens.core.sequence import Batch
from draftlens.core.tree import DraftTree, Verdict
from draftlens.decoding.plan import Drafter, DraftWorker, TargetContext
from draftlens.decoding.session import Session, SessionHooks
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.draft_process import process_of
from draftlens.methods.parallelvlm.draft_thread import thread_of
from draftlens.methods.parallelvlm.loop import TARGET_SHARE, usable_cores
from draftlens.methods.parallelvlm.messages import Link, UnsendableError, WorkerLostError
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.methods.parallelvlm.target_side import (
    DraftReading,
    OwnPrompt,
    TargetsPrompt,
    WorkerDrafter,
)
from draftlens.models.adapter import Backbone
from draftlens.passes import BY_MODULES, PassEngine, engine_of

logger = logging.getLogger("draftlens")


def make_drafter(
    window: int | None,
    drafter: ModelDrafter,
    target: Backbone,
    pruning: Pruning | None,
    reads_target_prompt: bool,
) -> ParallelDrafter:
    """Arguments as for `methods.parts.parallel_drafter`."""
    reading: DraftReading
    if reads_target_prompt and pruning is not None:
        reading = TargetsPrompt(pruning)
    else:
        reading = OwnPrompt(pruning, drafter.prompts.readable)
    backbone = drafter.prompts.backbone
    # Compiled passes in a further thread of this process have not been run on a GPU.
    on_cpu = backbone.device.type == "cpu"
    engine = engine_of(backbone).without_compiling() if on_cpu else BY_MODULES
    link, another = link_of(backbone), partial(worker_of, backbone)
    schedule = Schedule(window)
    return ParallelDrafter(link, reading, schedule, target.vocab_size, drafter, engine, another)


def no_other_worker() -> Link:
    """Takes the place of `worker_of` where no worker can be started in place of a lost one."""
    raise WorkerLostError("there is no other worker")


class ParallelDrafter(DraftWorker):
    """Drafts with `ahead`, or with `serial` where there is no worker, or where it cannot be used
    when the first rows join. A worker that is lost later leaves the rows that it has to plain
    decoding; for rows that join after that another one is started."""

    needs_target_scores = False

    def __init__(
        self,
        link: Link | None,
        reading: DraftReading,
        schedule: Schedule,
        vocab_size: int,
        serial: Drafter,
        engine: PassEngine = BY_MODULES,
        another: Callable[[], Link] = no_other_worker,
    ) -> None:
        self.link = link
        self.another = another  # the link to a worker in place of a lost one
        self.schedule = schedule
        self.serial = serial
        self.ahead = WorkerDrafter(link, reading, schedule, vocab_size, engine)
        self.readings = serial.readings
        self.max_nodes = max(serial.max_nodes, schedule.longest)
        self._chosen: Drafter | WorkerDrafter = serial
        self._has_chosen = link is None

    def wait_until_ready(self) -> None:
        if self.link is not None:
            self.link.wait_until_ready()

    def processes(self) -> Sequence[int]:
        return self.link.processes if self.link is not None and self._chosen is self.ahead else ()

    @property
    def forwards(self) -> int:
        """Decode forwards of the draft that are known so far."""
        return self.ahead.done.forwards + self.serial.forwards

    @property
    def cache_bytes(self) -> int:
        return self.ahead.done.cache_bytes + self.serial.cache_bytes

    def attached(self, session: Session) -> Generator[None]:
        """Send the worker what the session reads, until this is closed, and leave cores to the
        worker as long as it drafts."""
        ahead = self.ahead
        session.hooks = SessionHooks(self.announce, ahead.read, ahead.next_proposals)
        with TARGET_SHARE.held(ahead.cores) as leave_cores:
            try:
                while True:
                    yield
                    ahead.record(session.clock)
                    leave_cores(ahead.cores)
            finally:
                ahead.close()
                ahead.record(session.clock)

    def announce(self, batch: Batch, inputs: Mapping[str, Any], room: int, observed: bool) -> None:
        """Choose the drafter, if these are the first rows. After the end of a session of the
        worker, or the loss of the worker, a new one begins."""
        if self._has_chosen and self._chosen is self.serial:
            return
        try:
            if self.ahead.link is None:
                self.ahead.connect(self.another())
            self.ahead.announce(batch, inputs, room, observed)
        except WorkerLostError as error:
            if not self._has_chosen:
                logger.warning("the schedule is serial: %s", error)
                self._choose_serial()
                return
            # The serial drafter lacks the rows that joined before.
            if self.ahead.link is not None and not isinstance(error, UnsendableError):
                self.ahead.lose(error)
            self.ahead.announce_undrafted(batch)
        self._chosen = self.ahead
        self._has_chosen = True

    def _choose_serial(self) -> None:
        self.ahead.close()
        self.ahead.cores = 0
        self._has_chosen = True

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        if not self._has_chosen:  # nothing was announced
            self._choose_serial()
        return self._chosen.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        self._chosen.begin(batch, encoded, context)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        return self._chosen.propose(batch, budget)

    def update(self, verdict: Verdict, batch: Batch) -> None:
        self._chosen.update(verdict, batch)

    def remove(self, row: int) -> None:
        self._chosen.remove(row)


def link_of(drafting: Backbone) -> Link | None:
    """The link to the worker of a draft model, which is started if necessary.

    A model on a GPU drafts in a thread, a model on the CPU in a process of its own. None means that
    no worker can draft; a log message names the cause.
    """
    why = _obstacle(drafting)
    if why is None:
        try:
            return worker_of(drafting)
        except WorkerLostError as error:
            why = str(error)
    logger.warning("the schedule is serial: %s", why)
    return None


def worker_of(drafting: Backbone) -> Link:
    """`link_of` for a model that can draft in another thread or process; raises `WorkerLostError`
    if none can be started."""
    if drafting.device.type == "cuda":
        return thread_of(drafting)
    with drafting.alone():  # its weights may move
        return process_of(drafting.model)


def _obstacle(drafting: Backbone) -> str | None:
    """Why a model cannot draft in another thread or process; None if it can."""
    if drafting.device.type == "cuda":
        return None
    if drafting.is_spread:
        return "the draft is spread over several devices or offloaded"
    if drafting.device.type != "cpu":
        return f"a draft on {drafting.device.type} cannot run beside the target"
    if usable_cores() < 2:
        return "this process may use one core only"
    return None
