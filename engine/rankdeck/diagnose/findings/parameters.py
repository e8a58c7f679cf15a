"""Rules about a script's parameters: gradients that are missing, optimizers, and updates without effect."""

from __future__ import annotations

from rankdeck import events
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.diagnose.findings.anomaly_rules import AnomalyRow, Report, anomaly_rules, list_names, number_of
from rankdeck.diagnose.findings.rule_context import format_percent


def _optimizer_without_gradients(event: events.Anomaly) -> Report:
    num = number_of(event, "parameters")
    name = event.names[0] if event.names else phrase("the optimizer")
    return (
        plural_phrase(
            tr_noop("{name}'s only parameter has no gradient, so nothing is trained."),
            tr_noop("None of {name}'s {n} parameters has a gradient, so nothing is trained."),
            num,
            name=name,
        ),
        phrase(
            "at each examined step from step {step} on; number of the model's parameters that have a "
            "gradient but do not belong to the optimizer: {foreign}",
            step=event.step,
            foreign=number_of(event, "foreign"),
        ),
        _foreign_advice(event),
    )


def _foreign_advice(event: events.Anomaly) -> str:
    if event.numbers.get("sharded"):
        return phrase(
            "Create the optimizer after fully_shard, which replaces the parameters by sharded ones; then "
            "zero_grad also clears the right gradients."
        )
    advice = phrase(
        "Create the optimizer from the parameters of the model that runs, after everything that replaces "
        "them (wrapping, conversion, copying, loading a new model)."
    )
    if number_of(event, "foreign"):
        return advice
    return phrase(
        "Look for what cuts the graph between the model and the loss: .item(), .detach(), "
        "torch.tensor(...) or torch.no_grad(). If the optimizer was created from a different model than "
        "the one that runs: {advice}",
        advice=advice,
    )


def _gradient_without_optimizer(event: events.Anomaly) -> Report:
    evidence, advice = _where_left_out(event)
    return (
        plural_phrase(
            tr_noop("A parameter has a gradient, but no optimizer updates it: {names}."),
            tr_noop("{n} parameters have a gradient, but no optimizer updates them: {names}."),
            number_of(event, "names"),
            names=list_names(event),
        ),
        evidence,
        advice,
    )


def _where_left_out(event: events.Anomaly) -> tuple[str, str]:
    """Return (evidence, advice) for parameters that no optimizer updates."""
    # Parameters that only the optimizer still holds: their layers were replaced after it was created.
    replaced = number_of(event, "replaced")
    if replaced:
        evidence = plural_phrase(
            tr_noop("1 parameter of the optimizer is no longer in the model"),
            tr_noop("{n} parameters of the optimizer are no longer in the model"),
            replaced,
        )
        return evidence, phrase("Create the optimizer after the last change of the model's layers.")
    if event.numbers.get("unfrozen"):
        return (
            phrase("frozen at first, with a gradient since step {step} or earlier", step=event.step),
            phrase(
                "Call optimizer.add_param_group with the unfrozen parameters, or create the optimizer with "
                "all parameters: those without a gradient are skipped."
            ),
        )
    between = phrase(
        "between trained layers in the loss's graph, with the same values as {num} steps before",
        num=number_of(event, "steps"),
    )
    if event.numbers.get("outside"):
        return between, phrase(
            "These layers belong to no module: store them in nn.ModuleList instead of a list (or assign them "
            "as attributes), and create the optimizer afterwards."
        )
    if event.numbers.get("added"):
        return between, phrase(
            "Call optimizer.add_param_group with parameters that are added to the model later, or create the "
            "optimizer after they are added."
        )
    return (
        phrase("found in step {step}", step=event.step),
        phrase("Pass these parameters to the optimizer, or set requires_grad = False on them."),
    )


def _no_parameter_gradient(event: events.Anomaly) -> Report:
    return (
        plural_phrase(
            tr_noop("A trainable parameter never gets a gradient although its layer runs: {names}."),
            tr_noop("{n} trainable parameters never get a gradient although their layers run: {names}."),
            number_of(event, "names"),
            names=list_names(event),
        ),
        phrase("no gradient in any of 15 sampled steps from step {step} on", step=event.step),
        _gradient_advice(event),
    )


def _gradient_advice(event: events.Anomaly) -> str:
    if event.code == "no-gradient-checkpoint":
        return phrase(
            "Call checkpoint(..., use_reentrant=False). Re-entrant checkpointing cuts off a block whose "
            "inputs need no gradient, for example after a frozen embedding. To keep re-entrant "
            "checkpointing, call "
            "enable_input_require_grads() or set requires_grad on the block's input."
        )
    if event.code == "no-gradient-disabled":
        return phrase(
            "These layers run under torch.no_grad() or torch.inference_mode(): run them outside of it. "
            "If they are frozen on purpose, set requires_grad = False and call eval() on them."
        )
    return phrase(
        "Look for what cuts the graph between these layers and the loss: .detach(), .data, .item(), "
        "torch.no_grad(), or a conversion to NumPy."
    )


def _stepped_twice(event: events.Anomaly) -> Report:
    return (
        plural_phrase(
            tr_noop("Two optimizers update the same parameter after one backward pass: {names}."),
            tr_noop("Two optimizers update the same {n} parameters after one backward pass: {names}."),
            number_of(event, "names"),
            names=list_names(event),
        ),
        phrase("first in step {step}", step=event.step),
        phrase("Pass each parameter to one optimizer only."),
    )


def _frozen_after_wrapping(event: events.Anomaly) -> Report:
    return (
        plural_phrase(
            tr_noop("A parameter was frozen after DistributedDataParallel was created: {names}."),
            tr_noop("{n} parameters were frozen after DistributedDataParallel was created: {names}."),
            number_of(event, "names"),
            names=list_names(event),
        ),
        phrase(
            "DistributedDataParallel still waits for their gradients, around step {step}", step=event.step
        ),
        phrase(
            "Set requires_grad before wrapping the model, or wrap it again after freezing; "
            "find_unused_parameters=True also works, but costs a traversal of the graph in each step."
        ),
    )


def _weights_unchanged(event: events.Anomaly) -> Report:
    kind, share = event.names[0] if event.names else "", event.numbers.get("share", 0.0)
    is_half = kind in ("bfloat16", "float16")
    return (
        phrase(
            "Updates are lost to rounding: a step changes only {share} of the {kind} weights.",
            share=format_percent(share),
            kind=kind,
        ),
        phrase(
            "elements with a gradient that changed, over 10 sampled steps from step {step} on, at a learning "
            "rate of {rate:.2g}",
            step=event.step,
            rate=event.numbers.get("rate", 0.0),
        ),
        phrase("Keep the weights in float32 and compute in {kind} with torch.autocast.", kind=kind)
        if is_half
        else phrase("Raise the learning rate: an update must be larger than a weight's rounding error."),
    )


_ROWS: tuple[AnomalyRow, ...] = (
    ("optimizer-without-gradients", ("optimizer-without-gradients",), _optimizer_without_gradients),
    (
        "no-parameter-gradient",
        ("no-gradient-checkpoint", "no-gradient-graph", "no-gradient-disabled"),
        _no_parameter_gradient,
    ),
    ("gradient-without-optimizer", ("gradient-without-optimizer",), _gradient_without_optimizer),
    ("frozen-after-wrapping", ("frozen-after-wrapping",), _frozen_after_wrapping),
    ("stepped-twice", ("stepped-twice",), _stepped_twice),
    ("weights-unchanged", ("weights-unchanged",), _weights_unchanged),
)

RULES = anomaly_rules(_ROWS)
