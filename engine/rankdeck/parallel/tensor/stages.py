"""Split layers along the tensor axis inside the stages of a pipeline: each rank applies the part of the whole
model's plan that concerns its stages.

Read plan.py and apply.py first.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config.catalog import HybridOptions
from rankdeck.parallel.pipelining.communication import StageCommunication
from rankdeck.parallel.tensor.apply import LayerSplit
from rankdeck.parallel.tensor.split_plan import SplitPlan, is_head_table


def split_stages(
    stages: StageCommunication, plan: SplitPlan, mesh: DeviceMesh, options: HybridOptions
) -> LayerSplit:
    """Return the split of this rank's stages. Groups of layers that a pipeline cut separates are not split.

    Raises: ModelError if nothing can be split in these stages, or if an option requires different cuts.
    """
    cut = stages.cut
    # Splitting replaces weights in the model's modules; copies of them would keep the old weights.
    require_model_modules(stages, "tensor")
    tables = [layer.name for layer in plan.layers if is_head_table(cut.model, layer)]
    if tables:
        raise ModelError(
            phrase(
                "{module} is a per-head attention bias that later stages also add, but only "
                "unsplit tensors can be passed between stages.",
                module=tables[0],
            ),
            path="strategy.tensor",
            advice=phrase('Use only one of "stage" and "tensor", optionally with "data" or "shard".'),
        )
    inside = plan.restrict_to_stages(
        cut.model, [set(cut.stages[stage].modules()) for stage in stages.local_stages]
    )
    if not inside.restrict_to_model(cut.model).layers and (torn := plan.restrict_to_model(cut.model).layers):
        raise ModelError(
            phrase(
                "The tensor axis would split {module} together with a layer in another stage.",
                module=torn[0].name,
            ),
            path="strategy.tensor",
            advice=phrase(
                "Set strategy.cuts so that such layers are in one stage, or use only one of strategy.stage "
                "and strategy.tensor."
            ),
        )
    blocks = [[name for name in inside.blocks if name in cut.units[stage]] for stage in stages.local_stages]
    if options.sequence_parallel and sum(map(len, blocks)) < len(plan.restrict_to_model(cut.model).blocks):
        raise ModelError(
            phrase(
                "strategy.sequence_parallel needs stages of whole transformer blocks, but the "
                "model was cut inside a block."
            ),
            path="strategy.sequence_parallel",
            advice=phrase(
                "Leave strategy.sequence_parallel out, or set strategy.cuts so that each stage "
                "starts with a block."
            ),
        )
    return LayerSplit(
        cut.model,
        plan,
        mesh,
        options,
        local_modules=stages.local_modules(),
        stage_plan=inside,
        block_runs=blocks,
    )


def require_model_modules(stages: StageCommunication, axis: str) -> None:
    """Check that stages run the model's own modules.

    Raises: ModelError if a stage runs copies of the model's modules, which share the model's weights.
    """
    modules: set[nn.Module] = set(stages.cut.model.modules())
    for stage in stages.local_stages:
        for module in stages.cut.stages[stage].modules():
            if any(True for _ in module.parameters(recurse=False)) and module not in modules:
                raise ModelError(
                    phrase(
                        "The stages of {model} run copies of its modules, but strategy.{axis} changes "
                        "the original modules.",
                        model=type(stages.cut.model).__name__,
                        axis=axis,
                    ),
                    path=f"strategy.{axis}",
                    advice=phrase(
                        "Add a pipeline_units() method to the model, or set strategy.{axis} = 1.", axis=axis
                    ),
                )
