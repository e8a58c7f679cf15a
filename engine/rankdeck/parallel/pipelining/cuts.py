"""Where to cut a row of units into stages: balanced by what they cost, or where a person says.

A cut is the index of the unit that it stands before. Balanced means that the most expensive stage is as cheap
as it can be, and then that the stages are as even as they can be. Read costs.py for what a unit costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rankdeck.base.errors import ConfigError, ModelError, did_you_mean, one_of
from rankdeck.base.phrases import phrase

_SHOWN_UNITS = 12


def balanced_cuts(costs: Sequence[float], num_stages: int, holds_weights: Sequence[bool]) -> list[int]:
    """`num_stages` - 1 cuts in rising order; every stage holds at least one unit with weights.

    Raises: ModelError when the units do not reach for that many stages.
    """
    num_units = len(costs)
    total = [0.0]
    weighted = [0]
    for cost, holds in zip(costs, holds_weights, strict=True):
        total.append(total[-1] + cost)
        weighted.append(weighted[-1] + holds)
    if weighted[-1] < num_stages:
        raise ModelError(
            phrase(
                "The model has {num_units} units with weights, too few for {num_stages} stages.",
                num_units=weighted[-1],
                num_stages=num_stages,
            ),
            path="strategy.use",
            advice=phrase("Use at most {num_units} stages, or a deeper model.", num_units=weighted[-1]),
        )

    @cache
    def best(start: int, stages: int) -> tuple[float, float, tuple[int, ...]] | None:
        """(largest stage, sum of squares, ends of the stages) for units from `start` on."""
        options = []
        for end in range(start + 1, num_units - stages + 2) if stages > 1 else [num_units]:
            cost = total[end] - total[start]
            rest = best(end, stages - 1) if stages > 1 else (cost, 0.0, ())
            if rest is not None and weighted[end] > weighted[start]:
                options.append((max(cost, rest[0]), cost**2 + rest[1], (end, *rest[2])))
        return min(options, default=None)

    stages = best(0, num_stages)
    assert stages is not None, "there are enough units with weights"
    return list(stages[2][:-1])


def given_cuts(
    wanted: Sequence[str | int], names: Sequence[str], num_stages: int, holds_weights: Sequence[bool]
) -> list[int]:
    """The cuts that a person gives: each the name or the index of the unit that a stage begins with. A name
    may be that of a module that holds several units: "layer3" cuts before "layer3.0".

    Raises: ConfigError.
    """
    if len(wanted) != num_stages - 1:
        raise _other_number(len(wanted), num_stages)
    cuts = [_place(cut, names) for cut in wanted]
    ends = [*cuts, len(names)]
    for start, end in zip([0, *cuts], ends, strict=True):
        if end <= start:
            raise ConfigError(
                phrase("strategy.cuts = {wanted} leaves a stage without a unit.", wanted=list(wanted)),
                path="strategy.cuts",
                advice=phrase("Name units in the model's order: {names}.", names=_some(names)),
            )
        if not any(holds_weights[start:end]):
            raise ConfigError(
                phrase(
                    "strategy.cuts = {wanted} leaves a stage without weights: {names}.",
                    wanted=list(wanted),
                    names=", ".join(names[start:end]),
                ),
                path="strategy.cuts",
                advice=phrase("Move a cut so that each stage holds weights."),
            )
    return cuts


def _other_number(num_cuts: int, num_stages: int) -> ConfigError:
    if num_cuts == 1:
        told = phrase(
            "strategy.cuts has 1 cut, which make 2 stages; there are {num_stages}.", num_stages=num_stages
        )
    else:
        told = phrase(
            "strategy.cuts has {num_cuts} cuts, which make {num_made} stages; there are {num_stages}.",
            num_cuts=num_cuts,
            num_made=num_cuts + 1,
            num_stages=num_stages,
        )
    if num_stages == 2:
        advice = phrase("Give 1 cut, or leave them out.")
    else:
        advice = phrase("Give {num_cuts} cuts, or leave them out.", num_cuts=num_stages - 1)
    return ConfigError(told, path="strategy.cuts", advice=advice)


def _place(cut: str | int, names: Sequence[str]) -> int:
    if isinstance(cut, str) and cut.lstrip("-").isdigit():
        cut = int(cut)
    if isinstance(cut, int):
        if 0 < cut < len(names):
            return cut
        raise ConfigError(
            phrase(
                "strategy.cuts: there is no cut before unit {cut} of {num_units}.",
                cut=cut,
                num_units=len(names),
            ),
            path="strategy.cuts",
            advice=phrase("Use 1 to {most}, or names: {names}.", most=len(names) - 1, names=_some(names)),
        )
    for index, name in enumerate(names):
        if index and (name == cut or name.startswith(cut + ".")):
            return index
    raise ConfigError(
        phrase('strategy.cuts: the model has no unit "{cut}" that a stage could begin with.', cut=cut),
        path="strategy.cuts",
        advice=did_you_mean(cut, names) or phrase("Its units: {names}.", names=_some(names)),
    )


def _some(names: Sequence[str]) -> str:
    if len(names) <= _SHOWN_UNITS:
        return one_of(names)
    return f"{', '.join(names[: _SHOWN_UNITS - 1])}, ... {names[-1]}"
