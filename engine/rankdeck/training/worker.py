"""What a rank does from start to exit.

Started by the supervisor as `python -P -m rankdeck.training.worker`; its environment says which run, which
rank, and where to beat. Whatever ends it is written into its own event file before it exits:

    0 done    1 the run failed    2 bad input    3 the machine lacks something    130 asked to stop

Read loop.py for the loop and launch/ for who starts and ends ranks.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from rankdeck import events
from rankdeck.base.allocations import allocation_of
from rankdeck.base.errors import MachineError, RankdeckError
from rankdeck.base.files import wait_for_folder
from rankdeck.base.garbage import kept_for_good
from rankdeck.base.heartbeat import CHECK, VERIFYING, HeartbeatWriter, die_with_parent, failed, finished
from rankdeck.base.phrases import marked, phrase
from rankdeck.diagnose.exceptions import (
    FILE_TOO_LARGE,
    advice_of,
    describe,
    is_out_of_memory,
    name_disk,
    words_of,
)
from rankdeck.rundir import FIRST_STEPS, EventWriter, RunDir

if TYPE_CHECKING:
    import torch

    from rankdeck.base.errors import Problem
    from rankdeck.config import RunConfig
    from rankdeck.parallel.tensor.split_plan import KnownModel
    from rankdeck.strategies.base import Strategy
    from rankdeck.training.loop import Trainer
    from rankdeck.training.saving import Saver
    from rankdeck.training.workload import Workload

EXIT_STOPPED = 130


@dataclass(frozen=True)
class Place:
    """Which rank this is, of which run."""

    run: RunDir
    rank: int
    world_size: int
    local_rank: int
    attempt: int
    heartbeat: str | None

    @classmethod
    def from_environment(cls) -> Place:
        env = os.environ
        return cls(
            run=RunDir(Path(env["RANKDECK_RUN"])),
            rank=int(env.get("RANK", "0")),
            world_size=int(env.get("WORLD_SIZE", "1")),
            local_rank=int(env.get("LOCAL_RANK", "0")),
            attempt=int(env.get("RANKDECK_ATTEMPT", "0")),
            heartbeat=env.get("RANKDECK_HEARTBEAT"),
        )


class _Stop:
    """Set by SIGTERM; the loop looks at it between steps."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._ask)
        # Ctrl-C goes to the whole terminal's group; ranks are ended by their supervisor alone.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave_at_once(self) -> None:
        """From here on SIGTERM ends the process: there is nothing to save."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _ask(self, *_: object) -> None:
        self.requested = True

    def __call__(self) -> bool:
        return self.requested


def main() -> NoReturn:
    supervisor = os.environ.get("RANKDECK_SUPERVISOR_PID")
    die_with_parent(None if supervisor is None else int(supervisor))
    place = Place.from_environment()
    stop = _Stop()
    writer = place.run.writer(f"rank-{place.rank}", place.attempt)
    code = _run_and_report(place, writer, stop)
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own exit with gloo's groups alive takes seconds and may hang.
    os._exit(code)


def _run_and_report(place: Place, writer: EventWriter, stop: _Stop) -> int:
    """The exit code, with the problem and the end written down."""
    rank = Worker(place, writer, stop)
    reason, code = "completed", 0
    try:
        rank.work()
    except BaseException as error:  # whatever it is, the person is told
        if _is_stop(error):
            reason, code = events.ASKED_TO_STOP if stop.requested else "stopped", EXIT_STOPPED
        else:
            rank.tell_out_of_memory(error)
            reason, code = "failed", _report_failure(error, place.rank, rank.phase, writer)
    writer.write(events.RankEnded(rank=place.rank, reason=reason, step=rank.step), sync=True)
    if writer.dropped:
        print(f"{writer.dropped} event lines could not be written: {writer.drop_reason}", file=sys.stderr)
    rank.leave(clean=code == 0)
    return code


def _is_stop(error: BaseException) -> bool:
    return type(error).__name__ == "StopRequested"


def _report_failure(error: BaseException, rank: int, phase: str, writer: EventWriter) -> int:
    """What ended the rank, for the supervisor, which names one cause for the run; returns the exit code."""
    failure = describe(error, rank)
    if not isinstance(error, RankdeckError):
        if phase in CHECK:
            said = failure.problem.said("message")
            message = phrase("{error}, in the check before the first step", error=said)
            failure.problem = failure.problem.but(message=message)
        traceback.print_exception(error, file=sys.stderr)
    else:
        behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if behind is not None:
            traceback.print_exception(behind, file=sys.stderr)
        print(failure.problem.text(), file=sys.stderr)
    writer.write(failure, sync=True)
    if failure.is_communication:
        from rankdeck.training import joining

        joining.write_down()
    return failure.exit_code


class Worker:
    """One rank's work. `step` is the last step that began, `phase` what the rank is at in it."""

    def __init__(self, place: Place, writer: EventWriter, stop: _Stop) -> None:
        self._place = place
        self._writer = writer
        self._stop = stop
        self._heart = HeartbeatWriter(place.heartbeat, place.rank) if place.heartbeat else None
        self._strategy: Strategy | None = None
        self._trainer: Trainer | None = None
        self.step, self.phase = 0, ""

    def _phase(self, phase: str, **known: int) -> None:
        self._writer.write(events.Phase(rank=self._place.rank, phase=phase, **known))
        self._beat(self.step, phase)
        if self._stop.requested:
            from rankdeck.training.saving import StopRequested

            raise StopRequested

    def _beat(self, step: int, phase: str) -> None:
        self.step, self.phase = step, phase
        if self._heart is not None:
            self._heart.beat(step, phase)

    def work(self) -> None:
        """Load, build, train, evaluate, save."""
        place = self._place
        self._phase(marked("importing torch"))
        with kept_for_good():
            from rankdeck.torch_compat.compiler import import_when_needed
            from rankdeck.training import workload as workloads
            from rankdeck.training.assembly import assemble
            from rankdeck.training.joining import join, let_wait
            from rankdeck.training.sampling import SamplingBudget

        config = place.run.config()
        if config.strategy.use != "dp":  # whose threads must not be the first to import it
            import_when_needed()
        infos, num_devices = self._own_devices(config)
        devices = self._start_devices(infos)
        if not config.strategy_card.one_process:
            self._phase(marked("joining the other ranks"))
            join(devices[0], place.world_size, None if place.heartbeat else config.launch.timeout_s)
        self._phase(marked("loading data"))
        workload = workloads.load(config)
        first_steps: int | None = place.run.environment().get(FIRST_STEPS)
        if first_steps is not None:
            workload = replace(workload, steps=first_steps, heldout=None)
            self._stop.leave_at_once()
        saver = self._saver(config, num_devices) if first_steps is None else None
        notes, known = self._verified(workload, devices, num_devices, saver)
        if first_steps == 0:
            return
        self._phase(marked("building the model"))
        trainer = assemble(
            workload,
            rank=place.rank,
            world_size=place.world_size,
            devices=devices,
            places=[info.index for info in infos],
            writer=self._writer,
            known=known,
            notes=notes,
            sampling=SamplingBudget(always=os.environ.get("RANKDECK_LEDGER") == "always"),
            beat=self._beat,
            saver=saver,
            waits=first_steps is not None,
        )
        self._strategy, self._trainer = trainer.strategy, trainer
        if place.heartbeat:
            let_wait()
        gc.collect()
        gc.freeze()  # model and data stay: no step waits for a search for garbage among them
        epochs = workload.epochs
        self._phase(
            marked("training"), steps=workload.steps, samples=epochs.num_samples, left_out=epochs.left_out
        )
        trainer.run()
        if saver is not None:
            self._save(trainer.strategy, saver)
            saver.require_saved()

    def _verified(
        self, workload: Workload, devices: list[torch.device], num_devices: int, saver: Saver | None
    ) -> tuple[list[Problem] | None, KnownModel | None]:
        """What is known to differ from one device, and what the check found out about the model; None where
        there was no check."""
        config, start = workload.config, None if saver is None else saver.start
        if start is not None and saver is not None and start.progress().layout == saver.store.layout:
            return [], None  # a resumed run under the strategy that was checked when it began
        if config.train.verify == "off" or config.strategy_card.one_device or num_devices == 1:
            return None, None
        self._phase(VERIFYING)
        from rankdeck.parallel.tensor.split_plan import KnownModel
        from rankdeck.training.verify.before_run import verify

        place, known = self._place, KnownModel()
        notes = verify(
            workload,
            rank=place.rank,
            world_size=place.world_size,
            devices=devices,
            num_devices=num_devices,
            known=known,
            beat=lambda phase: self._beat(0, phase),
            write=self._writer.write,
        )
        return notes, known

    def _own_devices(self, config: RunConfig) -> tuple[list[events.DeviceInfo], int]:
        """The devices of this rank, and how many the run has."""
        place, card = self._place, config.strategy_card
        devices = place.run.devices()  # of a run of several hosts: this host's
        if not card.one_process:
            return [msgspec.structs.replace(devices[place.local_rank], index=place.rank)], place.world_size
        own = devices[:1] if card.one_device else devices
        return [msgspec.structs.replace(info, index=at) for at, info in enumerate(own)], len(devices)

    def _start_devices(self, infos: list[events.DeviceInfo]) -> list[torch.device]:
        """This rank's torch devices, with a RankStarted that says what they are."""
        import torch

        from rankdeck.training.assembly import torch_devices

        devices, uuids = torch_devices(infos, self._place.local_rank)
        started = events.RankStarted(
            rank=self._place.rank,
            pid=os.getpid(),
            devices=[info.index for info in infos],
            uuids=uuids,
            threads=torch.get_num_threads(),
        )
        self._writer.write(started, sync=True)
        return devices

    def _saver(self, config: RunConfig, num_devices: int) -> Saver:
        """What saves this run, and where it goes on from: the newest whole checkpoint, on any attempt but the
        first."""
        if config.train.checkpoint_every:
            import rankdeck.checkpoint.sharded  # noqa: F401 - not in the midst of the training
        from rankdeck.checkpoint.spreading import hosts_of
        from rankdeck.checkpoint.store import CheckpointStore
        from rankdeck.training.joining import agreement_of, is_over_hosts
        from rankdeck.training.saving import Saver, newest_checkpoint

        place = self._place
        layout = f"{config.strategy.use} {sorted(config.strategy.options.items())} on {num_devices}"
        folder = place.run.checkpoints_folder
        several = is_over_hosts(place.world_size)
        hosts = hosts_of(place.rank, place.world_size, place.local_rank) if several else None
        store = CheckpointStore(
            folder,
            rank=place.rank,
            world_size=place.world_size,
            layout=layout,
            keep=config.train.keep_checkpoints,
            leads=place.local_rank == 0,
            hosts=hosts,
        )
        start = (
            newest_checkpoint(folder, place.rank, place.world_size, hosts, self._writer)
            if place.attempt
            else None
        )
        return Saver(
            store=store,
            agreement=agreement_of(place.run.requests_folder, place.rank, place.world_size),
            writer=self._writer,
            rank=place.rank,
            every=config.train.checkpoint_every,
            stop_requested=self._stop,
            start=start,
        )

    def _save(self, strategy: Strategy, saver: Saver) -> None:
        """Final weights, by the rank that holds them all.

        Raises: RankdeckError: without weights the run has failed; MachineError where a limit forbids them.
        """
        from rankdeck.checkpoint.weights import gather_extra_state, save_weights

        weights = strategy.weights()
        extra_state = gather_extra_state(strategy.module, strategy.stage_modules)
        if self._place.rank != 0:
            return
        self._phase(marked("saving weights"))
        path = self._place.run.weights
        wait_for_folder(path.parent)
        metadata = {"run": self._place.run.name, "step": str(self.step)}
        try:
            with saver.agreement.saving():
                try:
                    num_bytes = save_weights(path, weights, metadata, extra_state)
                except FileNotFoundError:  # the run was moved in the midst of it
                    wait_for_folder(path.parent)
                    num_bytes = save_weights(path, weights, metadata, extra_state)
        except OSError as error:
            named = name_disk(error.strerror or "")
            raise (MachineError if named.code == FILE_TOO_LARGE else RankdeckError)(
                phrase(
                    "The final weights could not be saved to {path}: {why}.", path=path, why=error.strerror
                ),
                code="weights-not-saved",
                advice=advice_of(named),
                rank=self._place.rank,
            ) from None
        self._writer.write(events.WeightsSaved(path=path.name, num_bytes=num_bytes), sync=True)

    def tell_out_of_memory(self, error: BaseException) -> None:
        """What is known of the devices if that is what the exception says; nothing may go wrong with it."""
        if not is_out_of_memory(error):
            return
        allocation = allocation_of(words_of(error))
        try:
            if self._trainer is None:
                event = events.OutOfMemory(rank=self._place.rank, step=0, allocation=allocation)
                self._writer.write(event, sync=True)
            else:
                self._trainer.tell_out_of_memory(error, allocation, self.step)
        except Exception:
            traceback.print_exc()

    def leave(self, *, clean: bool) -> None:
        """Leave the group in order after success; after a failure the others are ended by the supervisor, so
        that nothing is awaited."""
        lost = self._writer.unsaid, self._writer.error_number
        if clean:
            self._beat(self.step, finished(*lost))
        elif self._writer.unsaid:
            self._beat(self.step, failed(*lost))
        if "torch" not in sys.modules:
            return
        import torch.distributed as dist

        if self._strategy is not None:
            self._strategy.close()
        if clean and dist.is_available() and dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
