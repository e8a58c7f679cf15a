"""Run one rank from start to exit.

`launch/rank_start.py` runs this module in each rank; environment variables specify the run, rank and
heartbeat page. The rank records in its event file why it ends, then exits with one of these codes:

    0 done    1 the run failed    2 bad input    3 the machine lacks something    130 asked to stop

Read loop.py for the loop, and launch/ for how ranks are started and ended.
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
from rankdeck.base.allocations import parse_allocation
from rankdeck.base.errors import MachineError, RankdeckError
from rankdeck.base.files import wait_for_folder
from rankdeck.base.garbage import freeze_new_objects
from rankdeck.base.heartbeat import (
    CHECK_PHASES,
    VERIFYING,
    HeartbeatWriter,
    die_with_parent,
    failed_phase,
    finished_phase,
)
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.diagnose.exceptions import (
    FILE_TOO_LARGE,
    advice_for,
    describe_exception,
    error_text,
    is_out_of_memory,
    match_disk_error,
)
from rankdeck.run_dir import FIRST_STEPS_KEY, EventWriter, RunDir

if TYPE_CHECKING:
    import torch

    from rankdeck.base.errors import Problem
    from rankdeck.config import RunConfig
    from rankdeck.parallel.tensor.split_plan import ModelAnalysis
    from rankdeck.strategies.base import Strategy
    from rankdeck.training.loop import Trainer
    from rankdeck.training.saving import Saver
    from rankdeck.training.workload import Workload

EXIT_STOPPED = 130


@dataclass(frozen=True)
class RankInfo:
    run: RunDir
    rank: int
    world_size: int
    local_rank: int
    attempt: int
    heartbeat: str | None

    @classmethod
    def from_environment(cls) -> RankInfo:
        env = os.environ
        return cls(
            run=RunDir(Path(env["RANKDECK_RUN"])),
            rank=int(env.get("RANK", "0")),
            world_size=int(env.get("WORLD_SIZE", "1")),
            local_rank=int(env.get("LOCAL_RANK", "0")),
            attempt=int(env.get("RANKDECK_ATTEMPT", "0")),
            heartbeat=env.get("RANKDECK_HEARTBEAT"),
        )


class _StopFlag:
    """Flag that SIGTERM sets; the loop checks it between steps."""

    def __init__(self) -> None:
        self.is_requested = False
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from Ctrl-C; only the supervisor ends ranks

    def use_default_handler(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_signal(self, *_: object) -> None:
        self.is_requested = True

    def __call__(self) -> bool:
        return self.is_requested


def main() -> NoReturn:
    supervisor = os.environ.get("RANKDECK_SUPERVISOR_PID")
    die_with_parent(None if supervisor is None else int(supervisor))
    rank_info = RankInfo.from_environment()
    stop = _StopFlag()
    writer = rank_info.run.writer(f"rank-{rank_info.rank}", rank_info.attempt)
    code = _run_and_report(rank_info, writer, stop)
    sys.stdout.flush()
    sys.stderr.flush()
    # This flushes no buffers. With gloo's groups alive, the interpreter's own exit may hang.
    os._exit(code)


def _run_and_report(rank_info: RankInfo, writer: EventWriter, stop: _StopFlag) -> int:
    rank = Worker(rank_info, writer, stop)
    reason, code = "completed", 0
    try:
        rank.run()
    except BaseException as error:  # the user must hear of any exception
        if _is_stop_request(error):
            reason, code = events.ASKED_TO_STOP if stop.is_requested else "stopped", EXIT_STOPPED
        else:
            rank.report_out_of_memory(error)  # here, where the exception's frames keep the tensors alive
            reason, code = "failed", _report_failure(error, rank_info.rank, rank.phase, writer)
    writer.write(events.RankEnded(rank=rank_info.rank, reason=reason, step=rank.step), sync=True)
    if writer.dropped:
        print(f"{writer.dropped} event lines could not be written: {writer.drop_reason}", file=sys.stderr)
    rank.shut_down(is_clean=code == 0)
    return code


def _is_stop_request(error: BaseException) -> bool:
    return type(error).__name__ == "StopRequested"


def _report_failure(error: BaseException, rank: int, phase: str, writer: EventWriter) -> int:
    """Write the rank's failure, which may be the cause of the run's failure; return the exit code."""
    failure = describe_exception(error, rank)
    if not isinstance(error, RankdeckError):
        if phase in CHECK_PHASES:
            text = failure.problem.as_phrase("message")
            message = phrase("{error} (in the check before the first step)", error=text)
            failure.problem = failure.problem.replace_fields(message=message)
        traceback.print_exception(error, file=sys.stderr)
    else:
        # The user needs the traceback of their code's exception, the cause of ours.
        behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if behind is not None:
            traceback.print_exception(behind, file=sys.stderr)
        print(failure.problem.text(), file=sys.stderr)
    writer.write(failure, sync=True)
    if failure.is_communication:
        from rankdeck.training import process_group

        process_group.write_recorded_collectives()
    return failure.exit_code


class Worker:
    """One rank's work. `step` is the last step started, `phase` the rank's current phase in that step."""

    def __init__(self, rank_info: RankInfo, writer: EventWriter, stop: _StopFlag) -> None:
        self._rank_info, self._writer, self._stop = rank_info, writer, stop
        self._heartbeat = (
            HeartbeatWriter(rank_info.heartbeat, rank_info.rank) if rank_info.heartbeat else None
        )
        self._strategy: Strategy | None = None
        self._trainer: Trainer | None = None
        self.step, self.phase = 0, ""

    def _start_phase(self, phase: str, **details: int) -> None:
        self._writer.write(events.Phase(rank=self._rank_info.rank, phase=phase, **details))
        self._beat(self.step, phase)
        if self._stop.is_requested:
            from rankdeck.training.saving import StopRequested

            raise StopRequested

    def _beat(self, step: int, phase: str) -> None:
        self.step, self.phase = step, phase
        if self._heartbeat is not None:
            self._heartbeat.beat(step, phase)

    def run(self) -> None:
        rank_info = self._rank_info
        self._start_phase(tr_noop("importing torch"))
        with freeze_new_objects():  # imports take longer if the garbage collector runs in between
            from rankdeck.torch_compat.compiler import defer_compiler_import
            from rankdeck.training import workload as workloads
            from rankdeck.training.assembly import assemble
            from rankdeck.training.process_group import extend_group_timeouts, join_process_group
            from rankdeck.training.sampling_budget import SamplingBudget

        config = rank_info.run.config()
        if config.strategy.use != "dp":  # its threads must not be the first to import it
            defer_compiler_import()
        infos, num_devices = self._local_devices(config)
        devices = self._start_devices(infos)
        if not config.strategy_spec.one_process:
            self._start_phase(tr_noop("joining the other ranks"))
            timeout_s = None if rank_info.heartbeat else config.launch.timeout_s
            join_process_group(devices[0], rank_info.world_size, timeout_s)
        self._start_phase(tr_noop("loading data"))
        workload = workloads.load(config)
        first_steps: int | None = rank_info.run.environment().get(FIRST_STEPS_KEY)
        if first_steps is not None:
            workload = replace(workload, steps=first_steps, heldout=None)
            self._stop.use_default_handler()
        saver = self._make_saver(config, num_devices) if first_steps is None else None
        notes, analysis = self._verify(workload, devices, num_devices, saver)
        if first_steps == 0:
            return
        self._start_phase(tr_noop("building the model"))
        trainer = assemble(
            workload,
            rank=rank_info.rank,
            world_size=rank_info.world_size,
            devices=devices,
            device_indices=[info.index for info in infos],
            writer=self._writer,
            analysis=analysis,
            notes=notes,
            sampling=SamplingBudget(always=os.environ.get("RANKDECK_LEDGER") == "always"),
            beat=self._beat,
            saver=saver,
            sync_each_step=first_steps is not None,
        )
        self._strategy, self._trainer = trainer.strategy, trainer
        if rank_info.heartbeat:
            extend_group_timeouts()
        gc.collect()
        gc.freeze()  # model and data stay: no collection in a step has to search them
        samples, left_out = workload.epochs.num_samples, workload.epochs.num_dropped
        self._start_phase(tr_noop("training"), steps=workload.steps, samples=samples, left_out=left_out)
        trainer.run()
        if saver is not None:
            self._save_final_weights(trainer.strategy, saver)
            saver.raise_save_error()

    def _verify(
        self, workload: Workload, devices: list[torch.device], num_devices: int, saver: Saver | None
    ) -> tuple[list[Problem] | None, ModelAnalysis | None]:
        """Run the check if needed; return notes on differences from one device, and the model analysis (None
        without a check)."""
        config, start = workload.config, None if saver is None else saver.resume_from
        if start is not None and saver is not None and start.progress().layout == saver.store.layout:
            return [], None  # resumed under the strategy that was checked at the start
        if config.train.verify == "off" or config.strategy_spec.one_device or num_devices == 1:
            return None, None
        self._start_phase(VERIFYING)
        from rankdeck.parallel.tensor.split_plan import ModelAnalysis
        from rankdeck.training.verify.before_run import verify

        rank_info, analysis = self._rank_info, ModelAnalysis()
        notes = verify(
            workload,
            rank=rank_info.rank,
            world_size=rank_info.world_size,
            devices=devices,
            num_devices=num_devices,
            analysis=analysis,
            beat=lambda phase: self._beat(0, phase),
            write=self._writer.write,
        )
        return notes, analysis

    def _local_devices(self, config: RunConfig) -> tuple[list[events.DeviceInfo], int]:
        """Return this rank's devices and the run's number of devices."""
        rank_info, card = self._rank_info, config.strategy_spec
        devices = rank_info.run.devices()  # in a run of several hosts: this host's
        if not card.one_process:
            return [
                msgspec.structs.replace(devices[rank_info.local_rank], index=rank_info.rank)
            ], rank_info.world_size
        local_devices = devices[:1] if card.one_device else devices
        return [msgspec.structs.replace(info, index=at) for at, info in enumerate(local_devices)], len(
            devices
        )

    def _start_devices(self, infos: list[events.DeviceInfo]) -> list[torch.device]:
        import torch

        from rankdeck.training.assembly import torch_devices

        devices, uuids = torch_devices(infos, self._rank_info.local_rank)
        started = events.RankStarted(
            rank=self._rank_info.rank,
            pid=os.getpid(),
            devices=[info.index for info in infos],
            uuids=uuids,
            threads=torch.get_num_threads(),
        )
        self._writer.write(started, sync=True)
        return devices

    def _make_saver(self, config: RunConfig, num_devices: int) -> Saver:
        """Return the saver; in any attempt after the first, it resumes from the newest intact checkpoint."""
        if config.train.checkpoint_every:
            import rankdeck.checkpoint.sharded  # noqa: F401 - now, not in mid-training
        from rankdeck.checkpoint.replication import make_host_leaders
        from rankdeck.checkpoint.store import CheckpointStore
        from rankdeck.training.process_group import is_multi_host_run, make_consensus
        from rankdeck.training.saving import Saver, newest_checkpoint

        rank_info = self._rank_info
        rank, world_size = rank_info.rank, rank_info.world_size
        layout = f"{config.strategy.use} {sorted(config.strategy.options.items())} on {num_devices}"
        folder = rank_info.run.checkpoints_folder
        several = is_multi_host_run(world_size)
        hosts = make_host_leaders(rank, world_size, rank_info.local_rank) if several else None
        store = CheckpointStore(
            folder,
            rank=rank,
            world_size=world_size,
            layout=layout,
            keep=config.train.keep_checkpoints,
            is_host_leader=rank_info.local_rank == 0,
            hosts=hosts,
        )
        start = (
            newest_checkpoint(folder, rank, world_size, hosts, self._writer) if rank_info.attempt else None
        )
        return Saver(
            store=store,
            consensus=make_consensus(rank_info.run.requests_folder, rank, world_size),
            writer=self._writer,
            rank=rank,
            save_interval=config.train.checkpoint_every,
            stop_requested=self._stop,
            resume_from=start,
        )

    def _save_final_weights(self, strategy: Strategy, saver: Saver) -> None:
        """Save the final weights, gathered on rank 0. Raises: RankdeckError if that fails; MachineError if
        the file would exceed a file size limit."""
        from rankdeck.checkpoint.weights import gather_extra_state, save_weights

        weights = strategy.weights()
        extra_state = gather_extra_state(strategy.module, strategy.stage_modules)
        rank_info = self._rank_info
        if rank_info.rank != 0:
            return
        self._start_phase(tr_noop("saving weights"))
        path = rank_info.run.weights
        wait_for_folder(path.parent)
        metadata = {"run": rank_info.run.name, "step": str(self.step)}
        try:
            with saver.consensus.saving_marker():
                try:
                    num_bytes = save_weights(path, weights, metadata, extra_state)
                except FileNotFoundError:  # the run was moved meanwhile
                    wait_for_folder(path.parent)
                    num_bytes = save_weights(path, weights, metadata, extra_state)
        except OSError as error:
            why = error.strerror
            named = match_disk_error(why or "")
            kind = MachineError if named.code == FILE_TOO_LARGE else RankdeckError
            message = phrase("The final weights could not be saved to {path}: {why}.", path=path, why=why)
            raise kind(
                message, code="weights-not-saved", advice=advice_for(named), rank=rank_info.rank
            ) from None
        self._writer.write(events.WeightsSaved(path=path.name, num_bytes=num_bytes), sync=True)

    def report_out_of_memory(self, error: BaseException) -> None:
        """Report the devices' memory use if the exception is an out-of-memory error; never raise."""
        if not is_out_of_memory(error):
            return
        allocation = parse_allocation(error_text(error))
        try:
            if self._trainer is None:
                event = events.OutOfMemory(rank=self._rank_info.rank, step=0, allocation=allocation)
                self._writer.write(event, sync=True)
            else:
                self._trainer.report_out_of_memory(error, allocation, self.step)
        except Exception:
            traceback.print_exc()  # the out-of-memory error itself is still to be reported

    def shut_down(self, *, is_clean: bool) -> None:
        """Leave the process group: cleanly if `is_clean`, otherwise without waiting for other ranks."""
        lost = self._writer.num_unreported, self._writer.error_number
        if is_clean:
            self._beat(self.step, finished_phase(*lost))
        elif self._writer.num_unreported:
            self._beat(self.step, failed_phase(*lost))
        if "torch" not in sys.modules:  # it may have failed before it imported torch
            return
        import torch.distributed as dist

        if self._strategy is not None:
            self._strategy.close()
        if is_clean and dist.is_available() and dist.is_initialized():
            dist.barrier()  # no rank leaves while others still use the group
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
