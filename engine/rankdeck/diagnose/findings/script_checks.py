"""Rules about a script's order of calls, modes, schedulers and loaded weights."""

from __future__ import annotations

from rankdeck import events
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings.anomaly_rules import AnomalyRow, Report, anomaly_rules, list_names, number_of


def _clip_before_unscale(event: events.Anomaly) -> Report:
    return (
        phrase(
            "Gradients are clipped to {limit:g} while they are still multiplied by the scaler's {scale:g}: "
            "after unscaling, their norm is at most {norm:.2g}.",
            limit=event.numbers.get("limit", 0.0),
            scale=event.numbers.get("scale", 1.0),
            norm=event.numbers.get("limit", 0.0) / max(1.0, event.numbers.get("scale", 1.0)),
        ),
        phrase(
            "no scaler.unscale_(optimizer) between the backward pass and the clipping in step {step}",
            step=event.step,
        ),
        phrase("Call scaler.unscale_(optimizer) before clipping."),
    )


def _gradients_not_cleared(event: events.Anomaly) -> Report:
    return (
        phrase("Gradients are never cleared: each step adds to the gradients of all earlier steps."),
        phrase("no zero_grad between the steps from step {step} on", step=event.step),
        phrase("Call optimizer.zero_grad() once per step, before the backward pass or after the step."),
    )


def _zeroed_before_step(event: events.Anomaly) -> Report:
    return (
        phrase("Gradients are cleared between the backward pass and optimizer.step, so nothing is trained."),
        phrase(
            "optimizer.zero_grad() after the last backward pass in each step from step {step} on",
            step=event.step,
        ),
        phrase("Move optimizer.zero_grad() before the backward pass, or after optimizer.step()."),
    )


def _eval_while_training(event: events.Anomaly) -> Report:
    # Step 0: the model was never in training mode.
    before = number_of(event, "was_training")
    return (
        phrase(
            "The model trains in evaluation mode from step {step} on. Layers that behave as in evaluation: "
            "{layers}.",
            step=event.step,
            layers=list_names(event),
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


def _layers_eval_while_training(event: events.Anomaly) -> Report:
    # The first name lists the submodules, the others count their layers.
    paths, layers = event.names[0] if event.names else "", ", ".join(event.names[1:])
    more, before = number_of(event, "more"), number_of(event, "was_training")
    return (
        phrase(
            "{modules} trains in evaluation mode from step {step} on, while the rest of the model is in "
            "training mode. Layers that behave as in evaluation: {layers}.",
            modules=phrase("{names} and {n} more", names=paths, n=more) if more > 0 else paths,
            step=event.step,
            layers=layers,
        ),
        phrase("put into evaluation mode after step {step}, evaluated, and not restored", step=before)
        if before
        else phrase("in evaluation mode from the first step on; its weights have gradients"),
        phrase("Call model.train() after each evaluation: it restores all submodules.")
        if before
        else phrase(
            "Call model.train() on the whole model before training: a module from from_pretrained is in "
            "evaluation mode, and stays so when it becomes part of another."
        ),
    )


def _train_while_evaluating(event: events.Anomaly) -> Report:
    return (
        phrase(
            "The model is evaluated in training mode. Layers that behave as in training: {layers}.",
            layers=list_names(event),
        ),
        phrase(
            "model.training was True for all {num} batches loaded with gradients disabled after step {step}",
            num=number_of(event, "batches"),
            step=event.step,
        ),
        phrase("Call model.eval() before the evaluation, and model.train() after it."),
    )


def _nothing_loaded(event: events.Anomaly) -> Report:
    file_key, model_key = [*event.names, "", "", ""][1:3]
    return (
        phrase(
            "load_state_dict(strict=False) loaded {matched} of {wanted} tensors into the model.",
            matched=number_of(event, "matched"),
            wanted=number_of(event, "wanted"),
        ),
        phrase(
            "the file has {file_key}, but the model has {model_key}", file_key=file_key, model_key=model_key
        ),
        _prefix_advice(event),
    )


def _prefix_advice(event: events.Anomaly) -> str:
    prefix = event.names[0] if event.names else ""
    if event.code.endswith("-with"):
        return phrase(
            'Remove the prefix "{prefix}" from the keys, or save model.module.state_dict() instead.',
            prefix=prefix,
        )
    if event.code.endswith("-without"):
        return phrase(
            'Add the prefix "{prefix}" to the keys, or load them into that submodule.', prefix=prefix
        )
    return phrase("Compare the keys of both; load with strict=True, or check what load_state_dict returns.")


def _scheduler_steps_rarely(event: events.Anomaly) -> Report:
    return (
        phrase(
            "{name} has stepped {done} times in {steps} steps, although its schedule has {scheduled} steps: "
            "the learning rate has hardly changed.",
            name=event.names[0] if event.names else phrase("The scheduler"),
            done=number_of(event, "done"),
            steps=number_of(event, "steps"),
            scheduled=number_of(event, "scheduled"),
        ),
        phrase("counters of the scheduler and of the optimizer at the end of the script"),
        phrase("Call scheduler.step() after each optimizer.step(), or give the schedule one step per epoch."),
    )


_ROWS: tuple[AnomalyRow, ...] = (
    ("zeroed-before-step", ("zeroed-before-step",), _zeroed_before_step),
    ("nothing-loaded", ("nothing-loaded-with", "nothing-loaded-without", "nothing-loaded"), _nothing_loaded),
    ("clip-before-unscale", ("clip-before-unscale",), _clip_before_unscale),
    ("gradients-not-cleared", ("gradients-not-cleared",), _gradients_not_cleared),
    ("eval-while-training", ("eval-while-training",), _eval_while_training),
    ("layers-eval-while-training", ("layers-eval-while-training",), _layers_eval_while_training),
    ("train-while-evaluating", ("train-while-evaluating",), _train_while_evaluating),
    ("scheduler-steps-rarely", ("scheduler-steps-rarely",), _scheduler_steps_rarely),
)

RULES = anomaly_rules(_ROWS)
