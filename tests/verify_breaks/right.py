"""Combinations in which strategy and one device compute the same, as the zoo's plain loops say: every setting
in every precision, models, losses, optimizers and data by turns.
"""

from __future__ import annotations

import itertools

from tests.verify_breaks.rows import Case
from tests.zoo.strategies import SETTINGS

_MODELS = (
    "mlp", "mlp_deep", "mlp_in_parts", "mlp_adamw", "mlp_regression", "residual_mlp", "dense_skips",
    "highway", "long_skip", "frozen_first_layers", "layer_used_again", "two_inputs", "weighted_dict",
    "factors", "lm_small", "lm_deep", "lm_ragged", "lm_ragged_in_parts", "lm_tied", "lm_functional_tie",
    "lm_post_norm", "lm_gated_rotary", "lm_grouped_keys", "lm_relative_places", "lm_slopes_buffer",
    "lm_masked", "torch_encoder", "layer_norms", "rms_norms", "batch_norms", "row_with_batch_norms",
    "batch_norm_conv", "batch_norms_in_parts", "batch_norms_of_all_time", "spectral_norms", "weight_norms",
    "group_norm_conv", "resnet", "unet", "vision_transformer", "lstm_forecast", "gru_forecast",
    "seq2seq_transformer", "vae", "flow", "tied_autoencoder", "counter_buffer", "counter_attribute",
    "late_zero_gate", "shares_that_start_at_zero", "lora", "adapters", "soft_prompt",
    "quantisation_aware", "straight_through_signs", "soft_experts", "dropout", "functional_dropout",
    "vae_that_draws", "own_checkpoints", "actor_critic", "ctc_reader", "weights_of_the_block_before",
    "own_loss_weighted", "returns_nested", "penalty_on_a_weight", "parameters_of_no_dims",
    "squeeze_and_excite", "detector",
)  # fmt: skip
_OTHER_ENTRIES = (
    "data/masked", "data/ragged_batches", "data/translation", "data/segmentation", "data/with_lengths",
    "data/uneven_tail", "data/tail_in_parts", "data/wholly_masked_step", "losses/focal",
    "losses/class_weights", "losses/gaussian_likelihood", "losses/weighted_samples",
    "losses/evidence_bound", "losses/ctc", "losses/mean_of_sentences", "losses/with_z_term",
    "optimizers/torch_adam", "optimizers/torch_adamw_foreach", "optimizers/torch_rmsprop",
    "optimizers/torch_adagrad", "optimizers/torch_radam", "optimizers/torch_adamax",
    "optimizers/torch_nadam", "optimizers/torch_adadelta", "optimizers/torch_sgd", "optimizers/Lion",
    "optimizers/Signs", "optimizers/Kahan", "optimizers/Adan", "optimizers/ScheduleFree",
    "optimizers/TwoGroups", "optimizers/EveryOther", "optimizers/Lookahead", "optimizers/BySize",
)  # fmt: skip
_PRECISIONS = (("fp64", False), ("fp32", False), ("fp32", True), ("bf16", False), ("bf16", True))
"""With the computation in fp64 where that is not the run's own, and without it."""
_CASES_PER_SETTING = 3
"""Of each setting in each precision."""


def correct_cases() -> list[Case]:
    """Some are refused by the engine, whose strategy cannot take the model: those count nothing."""
    entries = itertools.cycle(
        entry
        for pair in itertools.zip_longest((f"models/{name}" for name in _MODELS), _OTHER_ENTRIES)
        for entry in pair
        if entry is not None
    )
    return [
        Case(next(entries), setting, precision=precision, in_own=in_own)
        for precision, in_own in _PRECISIONS
        for setting in SETTINGS
        if setting != "single"
        for _ in range(_CASES_PER_SETTING)
    ]
