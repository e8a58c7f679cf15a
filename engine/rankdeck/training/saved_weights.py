"""The weights of a run that has more to show than its last end: those of a checkpoint.

Checkpoints hold shards and optimizer state, and no tensor without dims: the model is built to get names and
shapes back. Read checkpoint/store.py and export.py before.
"""

from __future__ import annotations

from pathlib import Path

from rankdeck.checkpoint.store import read_weights
from rankdeck.checkpoint.weights import gather_extra_state, weights_file
from rankdeck.checkpoint_files import list_checkpoints, newest_whole
from rankdeck.config import load
from rankdeck.parallel.nested import doubled
from rankdeck.run.export import write_whole
from rankdeck.run.fold import read_fold
from rankdeck.rundir import RunDir
from rankdeck.torch_compat.modules import change_tensors, split_state
from rankdeck.training import workload as workloads


def export_saved(run: RunDir, file: Path, attempt: int | None = None) -> int | None:
    """Write those of the newest whole checkpoint as safetensors under the model's original names, or of the
    one that a later attempt than `attempt` went on from. The step that they are of; None where none is whole.

    Raises:
        RankdeckError: the run's model cannot be built any more or has changed, or the file cannot be written.
    """
    checkpoint, _ = newest_whole(run.checkpoints_folder)
    if attempt is not None:
        later = [one.restored for number, one in read_fold(run).attempts.items() if number > attempt]
        if (began := next((step for step in later if step is not None), None)) is not None:
            known = [one for one in list_checkpoints(run.checkpoints_folder) if one.step == began]
            checkpoint = known[0] if known and known[0].damage() is None else None
    if checkpoint is None:
        return None
    config = load(run.config_to_go_on_with)
    model = workloads.load(config).build_model()
    if config.train.precision == "fp64":
        change_tensors(model, lambda tensor: tensor.to(doubled(tensor.dtype)))
    read_weights(checkpoint, model)
    metadata = {"run": run.name, "step": str(checkpoint.step)}
    data = weights_file(split_state(model)[0], metadata, gather_extra_state(model))
    write_whole(file, lambda target: target.write_bytes(data))
    return checkpoint.step
