"""What every ready model offers beside forward: its units in order, and its repeated blocks.

    pipeline_units()      [(name, module)]: running the modules one by one is the forward. A name is the
                          module's path in the model: a stage of some units knows its weights' original names.
    repeated_blocks()     the blocks that activation checkpointing wraps

Read mlp.py, gpt.py or resnet.py for the models, checkpointing.py for the wrapping.
"""

from __future__ import annotations

from rankdeck.base.errors import ModelError


def require_positive(**counts: int) -> None:
    """Raises ModelError for the first count that is not a whole number of at least 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ModelError(
                f"model.args.{name} = {count!r} is not a whole number of at least 1.",
                path=f"model.args.{name}",
                advice=f"Give {name} a whole number such as 1, 2 or 128.",
            )


def require_dropout(dropout: float) -> None:
    """Raises ModelError unless 0 <= dropout < 1."""
    if not 0 <= dropout < 1:
        raise ModelError(
            f"model.args.dropout = {dropout!r} is not a probability below 1.",
            path="model.args.dropout",
            advice="Use 0 for none, or a share such as 0.1.",
        )
