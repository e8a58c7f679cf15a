"""Collects what a run's events report about a script; checks that a configuration can express its training.

The lowest rank that took optimizer steps represents all ranks; the newest attempt with such steps represents
all attempts.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field

from rankdeck import events
from rankdeck.base.errors import RankdeckError
from rankdeck.base.phrases import join_phrases, phrase, tr_noop
from rankdeck.config.script import ScriptConfig
from rankdeck.run_dir import EventReader, RunDir, parse_attempt


class NotAdoptableError(RankdeckError):
    """Error for a run that no configuration can reproduce, or for which there are too few observations."""

    code = "not-adoptable"
    exit_code = 2


@dataclass
class ScriptObservation:
    """One attempt of a run, as its ranks reported it. `rates` maps each rank to (step, learning rate)
    pairs."""

    script: ScriptConfig
    started: events.RunStarted | None = None
    observed: dict[int, events.Observed] = field(default_factory=dict)
    ranks: dict[int, events.RankStarted] = field(default_factory=dict)
    num_steps: dict[int, int] = field(default_factory=dict)
    rates: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    samples: Counter[int] = field(default_factory=Counter)
    backwards: Counter[int] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)

    @property
    def lead(self) -> events.Observed:
        """Last report of the lowest rank that took optimizer steps."""
        return self.observed[min(self.observed)]

    @property
    def steps(self) -> int:
        return self.num_steps.get(self.lead.rank, 0)

    @property
    def world_size(self) -> int:
        """Number of ranks that train together."""
        world_sizes = [rank.world_size for rank in self.ranks.values() if rank.world_size]
        return max([*world_sizes, len(self.observed), 1])

    @property
    def accumulate(self) -> int:
        """Most common number of backward passes per step."""
        # The most common number, because the last step of an epoch may have fewer.
        counted = self.backwards.most_common(1)
        return self.lead.accumulate or (counted[0][0] if counted else 0) or 1

    @property
    def batch_size(self) -> int | None:
        """Number of samples per batch on one rank; None if no loader was observed."""
        if self.lead.batch:
            return self.lead.batch
        most_common = self.samples.most_common(1)
        return most_common[0][0] // self.accumulate or None if most_common else None

    def devices(self) -> list[events.DeviceInfo]:
        """Return the devices that the ranks used, ordered by their index in the run."""
        by_index = {info.index: info for info in (self.started.devices if self.started else [])}
        driven = {index for rank in self.ranks.values() for index in rank.devices}
        if self.lead.wrapper == "DataParallel":  # one rank drives several devices
            driven |= set(self.lead.wrapper_options.get("device_ids") or ())
        return [info for index, info in sorted(by_index.items()) if index in driven] or list(
            by_index.values()
        )

    def _add_event(self, event: events.AnyEvent) -> None:
        match event:
            case events.RunStarted():
                self.started = event
            case events.RankStarted():
                self.ranks[event.rank] = event
            case events.Observed():
                self.observed[event.rank] = event
            case events.Collectives():
                self.collectives.update(event.calls)
            case events.Steps():
                last = event.first + len(event.ended) - 1
                self.num_steps[event.rank] = max(last, self.num_steps.get(event.rank, 0))
                rates = self.rates.setdefault(event.rank, [])
                rates += [(event.first + at, rate) for at, rate in enumerate(event.lr) if rate is not None]
                self.samples.update(count for count in event.samples if count)
                self.backwards.update(count for count in event.backwards or [] if count)


def read_script(run: RunDir) -> ScriptConfig:
    """Read the script configuration from the run's config.toml.

    Raises:
        NotAdoptableError: the run was started from a training configuration.
        ConfigError: the file cannot be read.
    """
    script = run.script()
    if script is None:
        raise NotAdoptableError(
            phrase("{run} already has a configuration.", run=run.name),
            advice=phrase("Copy {file} and edit the copy.", file=run.config_file),
        )
    return script


def read_observation(run: RunDir) -> ScriptObservation:
    """Return the observations of the newest attempt in which optimizer steps were observed.

    Raises:
        NotAdoptableError: the run is not a run of a script, has no observed optimizer step, or cannot be
            reproduced by a configuration.
        ConfigError: the run's own files cannot be read.
    """
    script = read_script(run)
    attempts: dict[int, ScriptObservation] = {}
    for name, chunk in EventReader(run).batches(sys.maxsize):
        observation = attempts.setdefault(parse_attempt(name), ScriptObservation(script))
        for event in chunk:
            observation._add_event(event)
    stepped = [
        observation
        for _, observation in sorted(attempts.items())
        if observation.observed and any(observation.num_steps.values())
    ]
    if not stepped:
        raise _nothing_observed(run, script)
    observation = stepped[-1]
    _check_adoptable(run, observation)
    return observation


def _nothing_observed(run: RunDir, script: ScriptConfig) -> NotAdoptableError:
    if script.script.observe == "none":
        return NotAdoptableError(
            phrase(
                "{run} was started with --observe=none, so its training was not observed.",
                run=run.name,
            ),
            advice=phrase(
                "Run the script again without --observe=none: rankdeck run {script}", script=script.script.run
            ),
        )
    return NotAdoptableError(
        phrase("No optimizer step was observed in {run}, so there is nothing to adopt.", run=run.name),
        advice=phrase(
            "Let the script run until its first optimizer step. Only instances of "
            "torch.optim.Optimizer are observed."
        ),
    )


_CUSTOM_COLLECTIVES = tr_noop(
    "{run} has {world_size} ranks without a parallel wrapper. They communicate through the "
    "script's own collectives ({collectives})."
)
_UNOBSERVED_COMMUNICATION = tr_noop(
    "{run} has {world_size} ranks without a parallel wrapper, and no communication between them was observed."
)


def _check_adoptable(run: RunDir, observation: ScriptObservation) -> None:
    """Raise NotAdoptableError unless a configuration can reproduce the script's optimizer steps."""
    lead = observation.lead
    leading = (lead.optimizer or "").rpartition(":")[2]
    others = {name.rpartition(":")[2]: steps for name, steps in lead.other_optimizers.items() if steps}
    if others:
        turns = [
            phrase("{optimizer} (steps: {steps})", optimizer=name, steps=steps)
            for name, steps in [(leading, observation.steps), *others.items()]
        ]
        raise NotAdoptableError(
            phrase("{run} trains with several optimizers: {turns}.", run=run.name, turns=join_phrases(turns)),
            advice=phrase(
                "A configuration trains one model with one optimizer. Keep running the script "
                "itself: rankdeck run {script}",
                script=observation.script.script.run,
            ),
        )
    if leading == "LBFGS":
        raise NotAdoptableError(
            phrase("{run} uses LBFGS, which runs the model several times per step.", run=run.name),
            advice=phrase(
                "Use an optimizer that needs one backward pass per step, such as sgd, adam or adamw."
            ),
        )
    if observation.world_size > 1 and lead.wrapper is None:
        # A barrier sends no gradients, so it does not show how the ranks stay equal.
        names = [name for name in observation.collectives if name != "barrier"]
        template = _CUSTOM_COLLECTIVES if names else _UNOBSERVED_COMMUNICATION
        raise NotAdoptableError(
            phrase(
                template,
                run=run.name,
                world_size=observation.world_size,
                collectives=", ".join(sorted(names)),
            ),
            advice=phrase(
                "Wrap the model in DistributedDataParallel, FullyShardedDataParallel or "
                "fully_shard, run the script again and adopt the new run."
            ),
        )
