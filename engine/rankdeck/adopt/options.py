"""Translates observations of a script into options: devices, strategy, optimizer, schedule, precision.

Each function returns a `Finding`: the value, and notes on observations that the value does not cover.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from rankdeck.adopt.findings import ScriptFiles, call_argument, has_unpacked_kwargs, int_or_none
from rankdeck.adopt.naming import Finding, is_toml_value
from rankdeck.adopt.script_observation import NotAdoptableError, ScriptObservation
from rankdeck.adopt.tracing import Origin
from rankdeck.base.phrases import phrase
from rankdeck.config.catalog import OPTIMIZERS, SCHEDULES, STRATEGIES, CatalogSpec, option_fields

_STRATEGIES = {
    "DistributedDataParallel": "ddp",
    "DataParallel": "dp",
    "FullyShardedDataParallel": "fsdp",
    "FSDPModule": "fsdp",
    "fully_shard": "fsdp",
}
_DDP_OPTIONS = {
    "bucket_cap_mb": "bucket_mb",
    "find_unused_parameters": "find_unused_parameters",
    "static_graph": "static_graph",
    "gradient_as_bucket_view": "gradient_as_bucket_view",
}
_PRECISIONS = {
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
}
# Entries of a parameter group that are not options, or that only change how a step is computed.
_NON_OPTIONS = {
    "params",
    "num_parameters",
    "initial_lr",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    # State of schedulers.
    "max_lr",
    "min_lr",
    "max_momentum",
    "base_momentum",
    "swa_lr",
}
_NEUTRAL_VALUES = (None, False, 0, 0.0)
_RATE_TOLERANCE = 0.02
"""Largest accepted deviation of a schedule from the observed rates, as a share of the largest rate."""


def find_strategy(observation: ScriptObservation) -> Finding:
    """Return the strategy that corresponds to the script's parallel wrapper, with the strategy's options.

    Raises:
        NotAdoptableError: no strategy corresponds to the wrapper.
    """
    lead = observation.lead
    if lead.wrapper is None:
        return Finding("single", notes=["One rank, and no parallel wrapper."])
    name = lead.wrapper.rpartition(".")[2].rpartition(":")[2]
    use = _STRATEGIES.get(name)
    if use is None:
        raise NotAdoptableError(
            phrase(
                "The model is wrapped in {wrapper}, which does not correspond to any strategy.",
                wrapper=lead.wrapper,
            ),
            advice=phrase(
                "Rankdeck has strategies for DataParallel, DistributedDataParallel, "
                "FullyShardedDataParallel and fully_shard."
            ),
        )
    finding = Finding(use, notes=[f"The script wraps its model in {name}."])
    options = lead.wrapper_options
    if use == "ddp":
        ddp_options = {ours: options.get(theirs) for theirs, ours in _DDP_OPTIONS.items()}
        finding.args = STRATEGIES["ddp"].non_default_options(
            {name: value for name, value in ddp_options.items() if value}
        )
    elif use == "fsdp":
        _apply_sharding(finding, options)
    return finding


def _apply_sharding(finding: Finding, options: Mapping[str, Any]) -> None:
    kind = str(options.get("sharding_strategy", ""))
    if "NO_SHARD" in kind:
        finding.value = "ddp"
        finding.notes.append("Its sharding_strategy is NO_SHARD: every rank has all weights, as with ddp.")
    elif "SHARD_GRAD_OP" in kind or options.get("reshard_after_forward") is False:
        finding.args = {"reshard": False}
    elif "HYBRID" in kind:
        finding.notes.append(
            'Its sharding_strategy is hybrid. To match it, set strategy.use = "hybrid", with sizes for the '
            "options data and shard."
        )


def find_devices(observation: ScriptObservation, one_process: bool) -> Finding:
    """Return the devices that the ranks used, in the format of the option `devices.use`. `one_process` is
    whether the strategy drives all devices from a single process."""
    typed = observation.script.devices
    if typed is not None and not typed.startswith("cpu"):
        return Finding(typed)
    gpus = [info for info in observation.devices() if info.kind == "gpu"]
    if not gpus:
        return Finding(f"cpu:{1 if one_process else observation.world_size}")
    names = ", ".join(info.name for info in gpus)
    return Finding("gpu:" + ",".join(info.uuid or str(info.index) for info in gpus), notes=[f"{names}."])


def find_precision(observation: ScriptObservation) -> Finding:
    """Return the precision of the model's computations."""
    dtype = observation.lead.precision
    if dtype is None:
        return Finding(None)
    word = dtype.rpartition(".")[2].lower()
    precision = word if word in _PRECISIONS.values() else _PRECISIONS.get(word)
    return Finding(precision) if precision else Finding(notes=[f"The script computes in {dtype}."])


def find_optimizer(observation: ScriptObservation, own_class: str | None) -> Finding:
    """Return the optimizer with its options. `own_class` is a reference to the user's optimizer class."""
    lead = observation.lead
    module, _, name = (lead.optimizer or "").rpartition(":")
    largest_first = sorted(lead.parameter_groups, key=lambda group: -(group.get("num_parameters") or 0))
    groups = [_options_of(group) for group in largest_first] or [{}]
    options = dict(groups[0])
    if name == "AdamW":  # its groups list what it always does
        options.pop("decoupled_weight_decay", None)
    rate = _initial_rate(observation)
    if rate is not None:
        options["lr"] = rate
    # Other packages have an Adam or AdamW of their own, with other options.
    card = OPTIMIZERS.get(name.lower()) if module.partition(".")[0] == "torch" else None
    notes = [f"{name}, with the options observed in the run."]
    if largest_first and "max_momentum" in largest_first[0]:
        notes.append(
            "Its scheduler also changes the momentum (betas), which stays at its observed value here."
        )
    others = [key for key in groups[0] if any(group.get(key) != groups[0][key] for group in groups[1:])]
    if others:
        notes.append(
            f"It has {len(groups)} parameter groups that differ in {', '.join(others)}. Here, all parameters "
            "use the values of the largest group."
        )
    if card is not None and all(key in card.options.model_fields for key in options):
        return Finding(card.name, _non_default_options(card, options), notes)
    if module.partition(".")[0] == "torch":
        return Finding(f"torch.optim:{name}", options, notes)
    if own_class is None:
        return Finding(args=options, notes=[*notes, 'Name its class: "file.py:Class".'])
    return Finding(own_class, options, notes)


def _options_of(group: Mapping[str, Any]) -> dict[str, object]:
    """Return a parameter group's options except those that are None, False or 0; `lr` is always included."""
    return {
        key: value
        for key, value in group.items()
        if key not in _NON_OPTIONS and is_toml_value(value) and (key == "lr" or value not in _NEUTRAL_VALUES)
    }


def _non_default_options(card: CatalogSpec, options: Mapping[str, Any]) -> dict[str, object]:
    """Return the learning rate, and the options that differ from the catalog's defaults."""
    changed = {}
    for item in option_fields(card.options):
        default = list(item.default) if isinstance(item.default, tuple) else item.default
        # Neutral values were left out before, so a missing weight decay is 0 and not the catalog's default.
        value = options.get(item.name, 0.0 if item.name == "weight_decay" else default)
        if item.name == "lr" or value != default:
            changed[item.name] = value
    return changed


def _initial_rate(observation: ScriptObservation) -> float | None:
    """Return the base learning rate, which a schedule multiplies by each step's factor."""
    groups = observation.lead.parameter_groups
    # A schedule here is a factor of the rate. OneCycleLR stores its peak rate in max_lr.
    initial = groups[0].get("max_lr", groups[0].get("initial_lr")) if groups else None
    if isinstance(initial, int | float):
        return float(initial)
    rates = observation.rates.get(observation.lead.rank)
    return float(rates[0][1]) if rates else None


def find_schedule(observation: ScriptObservation) -> Finding:
    """Return the catalog's schedule that fits the observed learning rates; PLACEHOLDER if none fits."""
    rates = observation.rates.get(observation.lead.rank, [])
    top = max((rate for _, rate in rates), default=0.0)
    if top <= 0 or all(rate == rates[0][1] for _, rate in rates):
        return Finding(None)
    best, distance = None, _RATE_TOLERANCE
    base = _initial_rate(observation) or top
    for name, options in _schedule_candidates(rates):
        factor = SCHEDULES[name].load()(observation.steps, **options)
        # Observed steps count from 1, but a schedule counts from 0.
        furthest = max(abs(base * factor(step - 1) - rate) for step, rate in rates) / top
        if furthest < distance:
            best, distance = Finding(name, options), furthest
    (first, start), (last, end) = rates[0], rates[-1]
    summary = f"The learning rate went from {start:.4g} in step {first} to {end:.4g} in step {last}."
    if best is None:
        return Finding(notes=[summary, f"No schedule fits. Available: {', '.join(SCHEDULES)}."])
    best.notes = [f"{summary} This schedule deviates by at most {distance * 100:.2f} % of the largest rate."]
    return best


def _schedule_candidates(rates: list[tuple[int, float]]) -> list[tuple[str, dict[str, object]]]:
    """Return schedules to compare with `rates`, the observed (step, learning rate) pairs. If the first rate
    is not the largest, some of the schedules have a warm-up, which ends at the step with the largest rate or
    one step before it."""
    peak = max(rates, key=lambda point: point[1])[0]
    warmups: list[dict[str, object]] = [{}]
    if peak != rates[0][0]:
        # Schedulers differ in whether the peak is the warm-up's last step or the step after it.
        warmups += [{"warmup": peak}, {"warmup": peak - 1}]
    named = [(name, dict(warmup)) for name in ("constant", "cosine", "linear") for warmup in warmups]
    final = float(f"{rates[-1][1] / max(rate for _, rate in rates):.6g}")
    ends = [(name, {**warmup, "final": final}) for name, warmup in named if name != "constant"]
    # Schedules with fewer options come first, because the first of equally close candidates is taken.
    return [*named, ("one-cycle", {}), *ends]


# Settings of a script besides model, data and loss: seed, clipping, schedulers, torch.compile.

_SEED_FUNCTIONS = ("manual_seed", "seed_everything", "set_seed")
_TORCH_SEED_FUNCTIONS = ("torch.manual_seed", "torch.random.manual_seed")
_CLIPPING_TRAINERS = {"Trainer": "gradient_clip_val", "TrainingArguments": "max_grad_norm"}


def find_seed(script: ScriptFiles) -> Finding | None:
    """Return the first torch seed that the script sets to a value that can be determined from the source;
    PLACEHOLDER if there is no such value, None if the script sets no seed."""
    unread = None
    for source, call in script.calls(*_SEED_FUNCTIONS):
        node = call_argument(call, "seed", 0)
        dotted = source.dotted_name(call.func) or ""
        if dotted.endswith("manual_seed") and dotted not in _TORCH_SEED_FUNCTIONS:
            continue  # it seeds another generator
        value = int_or_none(script.evaluate(source, node))
        if value is not None and value >= 0:
            return Finding(value, notes=[f"{source.location(call)}."])
        if unread is None:
            unread = Finding(
                notes=[
                    f"{source.location(call)} sets a seed whose value could not be read:",
                    f"    {ast.unparse(call)}",
                ]
            )
    return unread


def find_clip_norm(script: ScriptFiles) -> Finding | None:
    """Return the norm that gradients are clipped to; PLACEHOLDER if unknown, None without clipping."""
    for source, call in script.calls("clip_grad_norm_", "clip_grad_norm", *_CLIPPING_TRAINERS):
        name = (source.dotted_name(call.func) or "").rpartition(".")[2]
        option = _CLIPPING_TRAINERS.get(name)
        # FSDP's own clip_grad_norm_ has the norm as its only argument, torch's function as the second.
        node = (
            call_argument(call, "max_norm", min(1, len(call.args) - 1))
            if option is None
            else call_argument(call, option)
        )
        if node is None and option is None and has_unpacked_kwargs(call):
            return Finding(
                notes=[f"{source.location(call)} clips gradients to an unknown norm: {ast.unparse(call)}"]
            )
        if node is None or script.evaluate(source, node) is None:
            continue
        value = script.evaluate(source, node)
        if isinstance(value, int | float):
            return Finding(float(value), notes=[f"{source.location(call)}."]) if value > 0 else None
        return Finding(notes=[f"{source.location(call)} clips gradients to the norm {ast.unparse(node)}."])
    # The default of max_grad_norm is 1.0.
    for source, call in script.calls("TrainingArguments"):
        return Finding(
            1.0, notes=[f"{source.location(call)}: TrainingArguments clips to the norm 1.0 by default."]
        )
    return None


def find_schedulers(script: ScriptFiles) -> list[str]:
    """Return the calls that create learning rate schedulers, with their locations."""
    schedulers = []
    for source, call in script.calls():
        module, _, name = (source.dotted_name(call.func) or "").rpartition(".")
        # transformers has functions for this, such as get_cosine_schedule_with_warmup.
        if module == "torch.optim.lr_scheduler" or re.fullmatch(r"get_\w*schedule\w*", name):
            origin = Origin(source, call)
            schedulers.append(f"{origin.location}: {origin.text}")
    return schedulers


def find_compile(script: ScriptFiles) -> Finding | None:
    """Return a note on where the script calls torch.compile; None if it does not."""
    for source, call in script.calls("compile"):
        if source.dotted_name(call.func) == "torch.compile":
            return Finding(
                notes=[
                    f"{source.location(call)} calls torch.compile. To compile here too, add compile = true."
                ]
            )
    return None
