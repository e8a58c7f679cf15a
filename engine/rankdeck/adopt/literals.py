"""What a script sets beside model, data and loss: its seed, clipping, what moves the rate, compiling."""

from __future__ import annotations

import ast
import re

from rankdeck.adopt.findings import Script, argument, whole
from rankdeck.adopt.naming import Finding
from rankdeck.adopt.tracing import Origin

_SEEDS = ("manual_seed", "seed_everything", "set_seed")
_SEEDS_OF_TORCH = ("torch.manual_seed", "torch.random.manual_seed")
_CLIPPING_TRAINERS = {"Trainer": "gradient_clip_val", "TrainingArguments": "max_grad_norm"}


def find_seed(script: Script) -> Finding | None:
    """The first seed of torch's that the text tells; FILL_IN where it only tells that there is one."""
    unread = None
    for source, call in script.calls(*_SEEDS):
        node = argument(call, "seed", 0)
        dotted = source.dotted(call.func) or ""
        if dotted.endswith("manual_seed") and dotted not in _SEEDS_OF_TORCH:
            continue  # of a generator of its own
        value = whole(script.value(source, node))
        if value is not None and value >= 0:
            return Finding(value, notes=[f"{source.place(call)}."])
        if unread is None:
            unread = Finding(
                notes=[
                    f"{source.place(call)} seeds with what its text does not tell:",
                    f"    {ast.unparse(call)}",
                ]
            )
    return unread


def find_clip_norm(script: Script) -> Finding | None:
    """The largest norm that gradients are clipped to."""
    for source, call in script.calls("clip_grad_norm_", "clip_grad_norm", *_CLIPPING_TRAINERS):
        name = (source.dotted(call.func) or "").rpartition(".")[2]
        option = _CLIPPING_TRAINERS.get(name)
        node = (
            argument(call, "max_norm", min(1, len(call.args) - 1))
            if option is None
            else argument(call, option)
        )
        if node is None or script.value(source, node) is None:
            continue
        value = script.value(source, node)
        if isinstance(value, int | float):
            return Finding(float(value), notes=[f"{source.place(call)}."]) if value > 0 else None
        return Finding(notes=[f"{source.place(call)} clips to {ast.unparse(node)}."])
    for source, call in script.calls("TrainingArguments"):
        return Finding(
            1.0, notes=[f"{source.place(call)}: TrainingArguments clips to 1 where it is not told."]
        )
    return None


def schedulers(script: Script) -> list[str]:
    """Where the script makes what moves its learning rate."""
    found = []
    for source, call in script.calls():
        module, _, name = (source.dotted(call.func) or "").rpartition(".")
        if module == "torch.optim.lr_scheduler" or re.fullmatch(r"get_\w*schedule\w*", name):
            origin = Origin(source, call)
            found.append(f"{origin.place}: {origin.text}")
    return found


def find_compile(script: Script) -> Finding | None:
    """Where the script compiles its model."""
    for source, call in script.calls("compile"):
        if source.dotted(call.func) == "torch.compile":
            return Finding(notes=[f"{source.place(call)} compiles: add compile = true for the same."])
    return None
