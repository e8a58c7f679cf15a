"""Rules about a script's order of calls, modes and parameters: what its ranks reported as anomalies.

Each row names an anomaly's code and turns the first report into a problem. Read rule_context.py first.
"""

from __future__ import annotations

from collections.abc import Callable

from rankdeck import events
from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, format_percent, make_finding

_Report = tuple[str, str, str]
"""(message, evidence, advice)"""
_MAX_NAMES = 3


def _names(event: events.Anomaly) -> str:
    """Return the first names, and how many more there are."""
    first_names = ", ".join(event.names[:_MAX_NAMES])
    more = int(event.numbers.get("names", 0)) - min(len(event.names), _MAX_NAMES)
    return first_names if more <= 0 else phrase("{names} and {n} more", names=first_names, n=more)


def _number(event: events.Anomaly, name: str) -> int:
    return int(event.numbers.get(name, 0))


def _clip_before_unscale(event: events.Anomaly) -> _Report:
    return (
        phrase(
            "Gradients are clipped to {limit:g} while they are still multiplied by the scaler's {scale:g}: "
            "after unscaling, their norm is at most {norm:.2g}.",
            limit=event.numbers.get("limit", 0.0),
            scale=event.numbers.get("scale", 1.0),
            norm=event.numbers.get("limit", 0.0) / max(1.0, event.numbers.get("scale", 1.0)),
        ),
        phrase(
            "clipped without scaler.unscale_(optimizer) since the backward pass of step {step}",
            step=event.step,
        ),
        phrase("Call scaler.unscale_(optimizer) before clipping."),
    )


def _gradients_not_cleared(event: events.Anomaly) -> _Report:
    return (
        phrase("Gradients are never cleared: each step adds to the gradients of all earlier steps."),
        phrase("no zero_grad between the steps from step {step} on", step=event.step),
        phrase("Call optimizer.zero_grad() once per step, before the backward pass or after the step."),
    )


def _zeroed_before_step(event: events.Anomaly) -> _Report:
    return (
        phrase("Gradients are cleared between the backward pass and optimizer.step, so nothing is trained."),
        phrase(
            "optimizer.zero_grad() after the last backward pass in each step from step {step} on",
            step=event.step,
        ),
        phrase("Move optimizer.zero_grad() before the backward pass, or after optimizer.step()."),
    )


def _optimizer_without_gradients(event: events.Anomaly) -> _Report:
    num = _number(event, "parameters")
    name = event.names[0] if event.names else phrase("the optimizer")
    return (
        plural_phrase(
            tr_noop("{name}'s only parameter has no gradient, so nothing is trained."),
            tr_noop("None of {name}'s {n} parameters has a gradient, so nothing is trained."),
            num,
            name=name,
        ),
        phrase(
            "at each examined step from step {step} on; {foreign} parameters of the model have a gradient "
            "and do not belong to the optimizer",
            step=event.step,
            foreign=_number(event, "foreign"),
        ),
        phrase(
            "Create the optimizer after fully_shard, which replaces the parameters by sharded ones; then "
            "zero_grad also clears the right gradients."
        )
        if event.numbers.get("sharded")
        else phrase(
            "Create the optimizer from the parameters of the model that runs, after everything that replaces "
            "them (wrapping, conversion, copying, loading a new model)."
        ),
    )


def _gradient_without_optimizer(event: events.Anomaly) -> _Report:
    # Parameters that only the optimizer still holds: their layers were replaced after it was created.
    replaced = _number(event, "replaced")
    return (
        plural_phrase(
            tr_noop("A parameter has a gradient, but no optimizer steps it: {names}."),
            tr_noop("{n} parameters have a gradient, but no optimizer steps them: {names}."),
            _number(event, "names"),
            names=_names(event),
        ),
        plural_phrase(
            tr_noop("1 parameter of the optimizer is no longer in the model"),
            tr_noop("{n} parameters of the optimizer are no longer in the model"),
            replaced,
        )
        if replaced
        else phrase("found in step {step}", step=event.step),
        phrase("Create the optimizer after the last change of the model's layers.")
        if replaced
        else phrase("Pass these parameters to the optimizer, or set requires_grad = False on them."),
    )


def _no_parameter_gradient(event: events.Anomaly) -> _Report:
    return (
        plural_phrase(
            tr_noop("A trainable parameter never gets a gradient although its layer runs: {names}."),
            tr_noop("{n} trainable parameters never get a gradient although their layers run: {names}."),
            _number(event, "names"),
            names=_names(event),
        ),
        phrase("no gradient in any of 15 sampled steps from step {step} on", step=event.step),
        phrase(
            "Call checkpoint(..., use_reentrant=False). Re-entrant checkpointing cuts off a block whose "
            "inputs need no gradient, as after a frozen embedding; with it, call "
            "enable_input_require_grads() or set requires_grad on the block's input."
        )
        if event.code == "no-gradient-checkpoint"
        else phrase(
            "Look for what cuts the graph between these layers and the loss: .detach(), .data, .item(), "
            "torch.no_grad(), or a conversion to NumPy."
        ),
    )


def _stepped_twice(event: events.Anomaly) -> _Report:
    return (
        plural_phrase(
            tr_noop("Two optimizers step the same parameter after one backward pass: {names}."),
            tr_noop("Two optimizers step the same {n} parameters after one backward pass: {names}."),
            _number(event, "names"),
            names=_names(event),
        ),
        phrase("first in step {step}", step=event.step),
        phrase("Pass each parameter to one optimizer only."),
    )


def _frozen_after_wrapping(event: events.Anomaly) -> _Report:
    return (
        plural_phrase(
            tr_noop("A parameter was frozen after DistributedDataParallel was created: {names}."),
            tr_noop("{n} parameters were frozen after DistributedDataParallel was created: {names}."),
            _number(event, "names"),
            names=_names(event),
        ),
        phrase(
            "DistributedDataParallel still waits for their gradients, around step {step}", step=event.step
        ),
        phrase(
            "Set requires_grad before wrapping the model, or wrap it again after freezing; "
            "find_unused_parameters=True also works, but costs a traversal of the graph in each step."
        ),
    )


def _weights_unchanged(event: events.Anomaly) -> _Report:
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


def _eval_while_training(event: events.Anomaly) -> _Report:
    # Step 0: the model was never in training mode.
    before = _number(event, "was_training")
    return (
        phrase(
            "The model trains in evaluation mode from step {step} on: {layers} behave as in evaluation.",
            step=event.step,
            layers=_names(event),
        ),
        phrase("model.training was True until step {step} and has been False since then", step=before)
        if before
        else phrase("model.training has been False from the first step on"),
        phrase("Call model.train() after each evaluation.")
        if before
        else phrase(
            "Call model.train() before training; a model from from_pretrained is in evaluation mode."
        ),
    )


def _train_while_evaluating(event: events.Anomaly) -> _Report:
    return (
        phrase(
            "The model is evaluated in training mode: {layers} are active as in training.",
            layers=_names(event),
        ),
        phrase(
            "model.training is True at all {num} batches loaded without gradients after step {step}",
            num=_number(event, "batches"),
            step=event.step,
        ),
        phrase("Call model.eval() before the evaluation, and model.train() after it."),
    )


def _nothing_loaded(event: events.Anomaly) -> _Report:
    file_key, model_key = [*event.names, "", "", ""][1:3]
    return (
        phrase(
            "load_state_dict(strict=False) loaded {matched} of {wanted} tensors into the model.",
            matched=_number(event, "matched"),
            wanted=_number(event, "wanted"),
        ),
        phrase("the file has {file_key}, the model {model_key}", file_key=file_key, model_key=model_key),
        _prefix_advice(event),
    )


def _prefix_advice(event: events.Anomaly) -> str:
    prefix = event.names[0] if event.names else ""
    if event.code.endswith("-with"):
        return phrase(
            'Remove the prefix "{prefix}" from the keys, or save model.module.state_dict() to begin with.',
            prefix=prefix,
        )
    if event.code.endswith("-without"):
        return phrase(
            'Add the prefix "{prefix}" to the keys, or load them into that submodule.', prefix=prefix
        )
    return phrase("Compare the keys of both; load with strict=True, or check what load_state_dict returns.")


def _scheduler_steps_rarely(event: events.Anomaly) -> _Report:
    return (
        phrase(
            "{name} has stepped {done} times in {steps} steps, although its schedule has {scheduled} steps: "
            "the learning rate has hardly changed.",
            name=event.names[0] if event.names else phrase("The scheduler"),
            done=_number(event, "done"),
            steps=_number(event, "steps"),
            scheduled=_number(event, "scheduled"),
        ),
        phrase("counters of the scheduler and of the optimizer at the end of the script"),
        phrase("Call scheduler.step() after each optimizer.step(), or give the schedule one step per epoch."),
    )


_REPORTS: tuple[tuple[str, tuple[str, ...], Callable[[events.Anomaly], _Report]], ...] = (
    ("optimizer-without-gradients", ("optimizer-without-gradients",), _optimizer_without_gradients),
    ("zeroed-before-step", ("zeroed-before-step",), _zeroed_before_step),
    ("nothing-loaded", ("nothing-loaded-with", "nothing-loaded-without", "nothing-loaded"), _nothing_loaded),
    ("no-parameter-gradient", ("no-gradient-checkpoint", "no-gradient-graph"), _no_parameter_gradient),
    ("gradient-without-optimizer", ("gradient-without-optimizer",), _gradient_without_optimizer),
    ("frozen-after-wrapping", ("frozen-after-wrapping",), _frozen_after_wrapping),
    ("stepped-twice", ("stepped-twice",), _stepped_twice),
    ("clip-before-unscale", ("clip-before-unscale",), _clip_before_unscale),
    ("gradients-not-cleared", ("gradients-not-cleared",), _gradients_not_cleared),
    ("weights-unchanged", ("weights-unchanged",), _weights_unchanged),
    ("eval-while-training", ("eval-while-training",), _eval_while_training),
    ("train-while-evaluating", ("train-while-evaluating",), _train_while_evaluating),
    ("scheduler-steps-rarely", ("scheduler-steps-rarely",), _scheduler_steps_rarely),
)
"""(code of the finding, codes of the anomalies, function that words the first anomaly)"""


def _rule(code: str, kinds: tuple[str, ...], word: Callable[[events.Anomaly], _Report]) -> FindingRule:
    def check(context: RuleContext) -> Problem | None:
        by_kind = context.state.script.anomalies
        found = [event for kind in kinds for reported in by_kind.get(kind, {}).values() for event in reported]
        if not found:
            return None
        # Ranks report independently, and the earliest step is nearest to the cause.
        first = min(found, key=lambda event: (event.step, event.rank))
        message, evidence, advice = word(first)
        path, _, line = first.line.rpartition(":")
        location = (path, int(line)) if path and line.isdecimal() else (None, None)
        # If all ranks do the same, no rank is to blame.
        ranks = {event.rank for event in found}
        return make_finding(
            code,
            message,
            Evidence(evidence, *location),
            advice=advice,
            rank=first.rank if len(ranks) < len(context.state.script.observations) else None,
        )

    return FindingRule(code, check)


RULES = tuple(_rule(*row) for row in _REPORTS)
