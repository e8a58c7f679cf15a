"""The weights of a run that has more to show than its last end: those of its newest whole checkpoint.

Checkpoints hold shards and optimizer state, and no tensor without dims: the model is built to get names and
shapes back. Read checkpoint/store.py and export.py before.
"""

from __future__ import annotations

from pathlib import Path

from rankdeck.checkpoint.store import read_weights
from rankdeck.checkpoint.weights import gather_extra_state, weights_file
from rankdeck.checkpoint_files import newest_whole
from rankdeck.config import load
from rankdeck.run.export import write_whole
from rankdeck.rundir import RunDir
from rankdeck.torch_compat.modules import split_state
from rankdeck.training import workload as workloads


def export_newest(run: RunDir, file: Path) -> int | None:
    """Write them as safetensors under the model's original names; the step that they are of, None where no
    checkpoint is whole.

    Raises:
        RankdeckError: the run's model cannot be built any more or has changed, or the file cannot be written.
    """
    checkpoint, _ = newest_whole(run.checkpoints_folder)
    if checkpoint is None:
        return None
    config = load(run.config_to_go_on_with)
    model = workloads.load(config).build_model()
    if config.train.precision == "fp64":
        model = model.double()
    read_weights(checkpoint, model)
    metadata = {"run": run.name, "step": str(checkpoint.step)}
    data = weights_file(split_state(model)[0], metadata, gather_extra_state(model))
    write_whole(file, lambda target: target.write_bytes(data))
    return checkpoint.step
