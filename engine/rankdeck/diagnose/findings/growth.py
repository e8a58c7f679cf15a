"""Rules about what grows with every step of a script: graphs, hooks, optimizers, workers, stored tensors."""

from __future__ import annotations

from rankdeck import events
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.findings.anomaly_rules import AnomalyRow, Report, anomaly_rules, number_of

_MIN_BYTES_PER_STEP = 512
"""Minimum growth of memory per step for a finding to mention it; the allocator may cause a smaller growth."""


def _graphs_retained(event: events.Anomaly) -> Report:
    name, shape = [*event.names, "", ""][:2]
    first, num_elements = number_of(event, "first"), number_of(event, "elements")
    if event.code.endswith("-container"):
        message = phrase(
            "{name} stores {num} tensors with their computation graphs, and each step adds more.",
            name=name or phrase("A container"),
            num=num_elements,
        )
    elif event.code.endswith("-chain"):
        message = phrase(
            "The computation graph of {name} reaches back to step {first} and grows with each step.",
            name=name or phrase("a tensor"),
            first=first,
        )
    else:
        message = phrase(
            "The computation graphs of all losses since step {first} stay in memory.", first=first
        )
    num_bytes = max(number_of(event, "host_bytes"), number_of(event, "device_bytes"))
    # A smaller rise is within what the allocator adds by itself.
    if num_bytes >= _MIN_BYTES_PER_STEP:
        evidence = phrase(
            "no graph created since step {first} had been freed by step {step}; memory grows by "
            "{size} per step",
            step=event.step,
            first=first,
            size=format_bytes(num_bytes),
        )
    else:
        evidence = phrase(
            "no graph created since step {first} had been freed by step {step}",
            step=event.step,
            first=first,
        )
    return message, evidence, _detach_advice(event.code, name, is_scalar=not shape)


def _detach_advice(code: str, name: str, *, is_scalar: bool) -> str:
    if code.endswith("-container"):
        if is_scalar:
            return phrase("Store loss.item(), or loss.detach(), which does not wait for the GPU.")
        return phrase("Store tensor.detach(), or tensor.detach().cpu() to free the GPU's memory.")
    if code.endswith("-chain"):
        if is_scalar:
            return phrase(
                "Add loss.item() instead of loss, or loss.detach(), which does not wait for the GPU."
            )
        return phrase(
            "Detach the state between steps: {name} = {name}.detach(). Then retain_graph=True is not needed.",
            name=name or phrase("state"),
        )
    return phrase(
        "Find the variable that stores losses or outputs of earlier steps, and store tensor.detach() in it."
    )


def _hooks_growing(event: events.Anomaly) -> Report:
    return (
        phrase(
            "{num} hooks have been added in {steps} steps and none removed: every step runs all of them.",
            num=_growth(event),
            steps=number_of(event, "steps"),
        ),
        phrase(
            "{before} hooks after step {step}, {after} after step {last}; the newest is {name}",
            before=number_of(event, "before"),
            step=event.step,
            after=number_of(event, "after"),
            last=event.step + number_of(event, "steps"),
            name=event.names[0] if event.names else "?",
        ),
        phrase("Register the hook once before the loop, or call remove() on its handle after the step."),
    )


def _optimizer_growing(event: events.Anomaly) -> Report:
    is_state = event.code == "growing-states"
    return (
        phrase(
            "The optimizer has the state of {num} more parameters after {steps} steps.",
            num=_growth(event),
            steps=number_of(event, "steps"),
        )
        if is_state
        else phrase(
            "The optimizer has {num} more parameters after {steps} steps.",
            num=_growth(event),
            steps=number_of(event, "steps"),
        ),
        _count_evidence(event),
        phrase(
            "Copy new values into the parameter (parameter.data.copy_(values)); a new parameter needs a new "
            "optimizer."
        ),
    )


def _workers_growing(event: events.Anomaly) -> Report:
    message = (
        phrase(
            "{num} threads have been started in {steps} steps and are still running.",
            **_growth_numbers(event),
        )
        if event.code == "growing-threads"
        else phrase(
            "{num} processes have been started in {steps} steps and are still running.",
            **_growth_numbers(event),
        )
    )
    return (
        message,
        _count_evidence(event),
        phrase("Create the DataLoader, the writer or the pool once, before the loop."),
    )


def _memory_growing(event: events.Anomaly) -> Report:
    name, kind = [*event.names, "", ""][:2]
    on_gpu, slope = number_of(event, "gpu"), format_bytes(number_of(event, "slope"))
    text = (
        phrase("{name} ({kind})", name=name, kind=kind)
        if name
        else phrase("a {kind} of the script", kind=kind or "list")
    )
    return (
        phrase(
            "The GPU's memory in use grows by {slope} per step: {what} is never cleared.",
            slope=slope,
            what=text,
        )
        if on_gpu
        else phrase(
            "The process grows by {slope} per step: {what} is never cleared.", slope=slope, what=text
        ),
        phrase(
            "{num} elements after step {step}; each step adds {new:.2g} elements of {size} each",
            num=number_of(event, "elements"),
            step=event.step,
            new=event.numbers.get("new", 0.0),
            size=format_bytes(number_of(event, "element_bytes")),
        ),
        # The host has more memory, but fills up as well.
        phrase(
            "Store tensor.cpu() or numbers instead, clear the container once they are used, or use "
            "deque(maxlen=N)."
        )
        if on_gpu
        else phrase("Store numbers instead, clear the container once they are used, or use deque(maxlen=N)."),
    )


def _growth(event: events.Anomaly) -> int:
    return number_of(event, "after") - number_of(event, "before")


def _growth_numbers(event: events.Anomaly) -> dict[str, int]:
    return {"num": _growth(event), "steps": number_of(event, "steps")}


def _count_evidence(event: events.Anomaly) -> str:
    return phrase(
        "{before} after step {step}, {after} after step {last}",
        before=number_of(event, "before"),
        step=event.step,
        after=number_of(event, "after"),
        last=event.step + number_of(event, "steps"),
    )


_ROWS: tuple[AnomalyRow, ...] = (
    (
        "graphs-retained",
        ("graphs-retained-container", "graphs-retained-chain", "graphs-retained"),
        _graphs_retained,
    ),
    ("hooks-growing", ("growing-hooks",), _hooks_growing),
    ("optimizer-growing", ("growing-parameters", "growing-states"), _optimizer_growing),
    ("workers-growing", ("growing-threads", "growing-processes"), _workers_growing),
)

RULES = (
    *anomaly_rules(_ROWS),
    # The tensors with graphs are what the memory consists of.
    *(
        rule._replace(unless=("graphs-retained",))
        for rule in anomaly_rules([("memory-growing", ("growing-memory",), _memory_growing)])
    ),
)
