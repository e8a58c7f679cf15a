"""Rules about how DistributedDataParallel's ranks divide the samples among themselves.

Ranks with equal first batches train on the same samples. The settings of their samplers reveal the cause;
they also reveal the fault if random augmentations make the batches differ. Ranks in separate process groups
may share samples on purpose, so they are not compared. Read rule_context.py first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, make_finding
from rankdeck.diagnose.findings.samples import DDP_WRAPPER, GROUP_OPTIONS

WAITING_CODES = {"rank-left", "hang", "hang-suspected", "collectives-differ"}
"""Codes of problems whose cause may be that a rank has fewer batches than the others."""
TORCH_SAMPLER = "torch.utils.data.distributed:DistributedSampler"


def _ddp_observations(context: RuleContext) -> dict[int, events.Observed]:
    """Return the ranks' observations if DistributedDataParallel averages gradients over all ranks; otherwise,
    return an empty dict."""
    script = context.state.script
    observations = {
        rank: script.observations[rank]
        for rank in sorted(script.observations)
        if rank not in script.standalone_ranks
    }
    is_ddp = all(observation.wrapper == DDP_WRAPPER for observation in observations.values())
    in_groups = any(
        GROUP_OPTIONS & observation.wrapper_options.keys() for observation in observations.values()
    )
    return observations if len(observations) > 1 and is_ddp and not in_groups else {}


def find_same_data_on_all_ranks(context: RuleContext) -> Problem | None:
    """Find ranks that all train on the same samples."""
    observations = _ddp_observations(context)
    alike = _ranks_with_same_samples(observations)
    return _same_data_finding(context, observations, alike) if len(alike) == len(observations) > 1 else None


def find_same_data_on_some_ranks(context: RuleContext) -> Problem | None:
    """Find ranks that train on the same samples, while other ranks train on different ones."""
    observations = _ddp_observations(context)
    alike = _ranks_with_same_samples(observations)
    return _same_data_finding(context, observations, alike) if 1 < len(alike) < len(observations) else None


def _ranks_with_same_samples(observations: Mapping[int, events.Observed]) -> list[int]:
    """Return the largest group of ranks that train on the same samples; an empty list if there is none."""
    by_digest, by_share = defaultdict(list), defaultdict(list)
    for rank, observation in observations.items():
        by_digest[observation.first_batches].append(rank)
        share = _share(observation)
        # A rank takes one share in as many as there are ranks, so no two ranks may take the same.
        if share is not None and share[0] == len(observations):
            by_share[(*share, observation.sampler.get("seed"), observation.num_samples)].append(rank)
    # Ranks that could not read their batches are not alike.
    by_digest.pop(None, None)
    return max([*by_digest.values(), *by_share.values()], key=len, default=[])


def _share(observation: events.Observed) -> tuple[int, int] | None:
    """Return (number of shares, index of this rank's share); None if the rank's sampler does not divide the
    samples."""
    num, index = observation.sampler.get("num_replicas"), observation.sampler.get("rank")
    return (num, index) if isinstance(num, int) and isinstance(index, int) else None


def _same_data_finding(
    context: RuleContext, observations: Mapping[int, events.Observed], alike: list[int]
) -> Problem:
    is_all = len(alike) == len(observations)
    cause, advice = _cause({rank: observations[rank] for rank in alike}, len(observations))
    message = (
        phrase(
            "All {ranks} ranks train on the same samples: together they do the work of a single rank.",
            ranks=len(alike),
        )
        if is_all
        else phrase(
            "Ranks {first} and {second} train on the same samples.",
            first=", ".join(map(str, alike[:-1])),
            second=alike[-1],
        )
    )
    return make_finding(
        "same-data-on-all-ranks" if is_all else "same-data-on-some-ranks",
        phrase("{message} {cause}", message=message, cause=cause) if cause else message,
        *(context.rank_evidence(rank, _evidence(rank, observations[rank])) for rank in alike[:2]),
        advice=advice,
    )


def _evidence(rank: int, observation: events.Observed) -> str:
    digest = observation.first_batches
    sampler = _sampler_text(observation.sampler)
    if not sampler:
        return phrase(
            "rank {rank}: its first training batches have the digest {digest}", rank=rank, digest=digest
        )
    if digest is None:
        return phrase("rank {rank}: {sampler}", rank=rank, sampler=sampler)
    return phrase(
        "rank {rank}: {sampler}; its first training batches have the digest {digest}",
        rank=rank,
        sampler=sampler,
        digest=digest,
    )


def _sampler_text(sampler: Mapping[str, Any]) -> str:
    name = str(sampler.get("class", "")).rpartition(":")[2]
    if sampler.get("iterable"):
        return phrase("an IterableDataset without a sampler")
    options = ", ".join(
        f"{key}={sampler[key]}" for key in ("num_replicas", "rank", "shuffle", "seed") if key in sampler
    )
    return f"{name}({options})" if name else ""


def _cause(observations: Mapping[int, events.Observed], num_ranks: int) -> tuple[str, str]:
    """Return (why these ranks have the same samples, the fix)."""
    samplers = [observation.sampler for observation in observations.values()]
    shares = [_share(observation) for observation in observations.values()]
    # Runs of older versions have no facts about samplers.
    if not all(samplers):
        return "", _SAMPLER_ADVICE
    # DataLoader(shuffle=True) alone: equal seeds, so equal orders.
    if all(share is None for share in shares):
        return _cause_without_shares(samplers[0])
    first = shares[0]
    if first is None or any(share is None for share in shares):
        return (
            phrase("Only some of their samplers divide the samples among the ranks."),
            phrase(
                "Create the DataLoader with a DistributedSampler on every rank, with the same settings "
                "except for its rank."
            ),
        )
    num_shares, index = first
    if all(share == first for share in shares):
        # A script that was written for one process, or reads the number of processes too early.
        if num_shares == 1:
            return (
                phrase("Each sampler has num_replicas=1, so each rank takes all samples."),
                phrase(
                    "Create the sampler after init_process_group without num_replicas and rank, or pass "
                    "num_replicas=dist.get_world_size() and rank=dist.get_rank()."
                ),
            )
        return (
            phrase(
                "Their samplers all have rank={index} of {num}, so the other shares are never used.",
                index=index,
                num=num_shares,
            ),
            phrase(
                "Pass rank=dist.get_rank() to the sampler, or leave num_replicas and rank out. "
                'torchrun passes no --local_rank argument: read int(os.environ["LOCAL_RANK"]) for the device.'
            )
            if num_shares == num_ranks
            else phrase(
                "Pass num_replicas=dist.get_world_size() and rank=dist.get_rank(): local ranks and "
                "the number of devices of one host repeat on each host."
            ),
        )
    return (
        phrase(
            "Their samplers take different shares, so the dataset returns the same samples for different "
            "indices."
        ),
        phrase(
            "Make each sample depend on its index: a dataset that draws random samples needs a different "
            "seed on each rank."
        ),
    )


_SAMPLER_ADVICE = phrase(
    "Pass sampler=DistributedSampler(dataset) to the DataLoader, and call the sampler's set_epoch "
    "in each epoch."
)


def _cause_without_shares(sampler: Mapping[str, Any]) -> tuple[str, str]:
    # Without a loader, the batches come from the global generator, which has the same seed everywhere.
    if sampler.get("drawn"):
        return (
            phrase("The script draws its batches itself, and in the same way on each rank."),
            phrase(
                "Add the rank to the seed once the model is built: torch.manual_seed(seed + "
                "dist.get_rank()). Or let each rank draw from its own part of the data."
            ),
        )
    if sampler.get("iterable"):
        return (
            phrase("The IterableDataset yields all samples on each rank."),
            phrase(
                "Yield every world_size-th sample in the dataset's __iter__: "
                "itertools.islice(samples, dist.get_rank(), None, dist.get_world_size()); "
                "with loader workers, divide by worker too."
            ),
        )
    return (
        phrase(
            "Each rank's {sampler} goes through the whole dataset.",
            sampler=str(sampler.get("class", "")).rpartition(":")[2],
        ),
        _SAMPLER_ADVICE,
    )


def find_different_seeds(context: RuleContext) -> Problem | None:
    """Find samplers that shuffle in a different order on each rank, so that their shares overlap."""
    observations = _ddp_observations(context)
    samplers = {rank: observation.sampler for rank, observation in observations.items()}
    shares = {_share(observation) for observation in observations.values()}
    is_divided = None not in shares and len(shares) == len(observations)
    is_standard = all(s.get("class") == TORCH_SAMPLER and s.get("shuffle") is True for s in samplers.values())
    if not observations or not is_divided or not is_standard:
        return None
    # Each sampler shuffles all samples and then takes its share, so the orders must be the same.
    seeds = {rank: sampler.get("seed") for rank, sampler in samplers.items()}
    first = min(seeds)
    other = next((rank for rank in seeds if seeds[rank] != seeds[first]), None)
    if other is None:
        return None
    return make_finding(
        "sampler-seeds-differ",
        phrase(
            "The ranks' samplers shuffle with different seeds: some samples are used by several ranks in an "
            "epoch, and others by none."
        ),
        *(
            context.rank_evidence(
                rank, phrase("rank {rank}: {sampler}", rank=rank, sampler=_sampler_text(samplers[rank]))
            )
            for rank in (first, other)
        ),
        advice=phrase(
            "Pass the same seed to the DistributedSampler on every rank; it divides one common order."
        ),
    )


def find_unused_shares(context: RuleContext) -> Problem | None:
    """Find samplers that divide the samples into more shares than there are ranks."""
    observations = _ddp_observations(context)
    shares = {rank: _share(observation) for rank, observation in observations.items()}
    num_shares = {share[0] for share in shares.values() if share is not None}
    world_size = (
        None
        if context.attempt is None or context.attempt.started is None
        else (context.attempt.started.world_size)
    )
    if not observations or None in shares.values() or len(num_shares) != 1 or world_size != len(observations):
        return None
    # With fewer shares than ranks, some ranks have the same samples, which the rules above find.
    num = num_shares.pop()
    if num <= len(observations):
        return None
    rank = min(observations)
    return make_finding(
        "samples-left-out",
        phrase(
            "The samplers divide the samples into {num} shares for {ranks} ranks: {percent} % of the samples "
            "are never used.",
            num=num,
            ranks=len(observations),
            percent=round(100 * (1 - len(set(shares.values())) / num)),
        ),
        context.rank_evidence(
            rank,
            phrase("rank {rank}: {sampler}", rank=rank, sampler=_sampler_text(observations[rank].sampler)),
        ),
        advice=phrase("Pass num_replicas=dist.get_world_size(), or leave num_replicas and rank out."),
    )


def find_different_epoch_lengths(context: RuleContext) -> Problem | None:
    """Find epochs that have fewer batches on some ranks; at the end of such an epoch, the other ranks wait
    for these ranks."""
    observations = _ddp_observations(context)
    lengths = {rank: observation.epoch_batches for rank, observation in observations.items()}
    numbers = [number for number in lengths.values() if number is not None]
    if len(numbers) < len(lengths) or len(set(numbers)) < 2:
        return None
    shortest = [rank for rank, number in lengths.items() if number == min(numbers)]
    # With Join, or if each rank starts its loader again, epochs of any length do no harm.
    if not any(
        problem.code in WAITING_CODES and problem.rank in (None, *shortest)
        for problem in context.state.problems
    ):
        return None
    longest = next(rank for rank, number in lengths.items() if number == max(numbers))
    return make_finding(
        "epoch-lengths-differ",
        phrase(
            "An epoch has {fewer} batches on rank {short} and {more} on rank {long}: at the end, rank {long} "
            "waits for gradients that never come.",
            fewer=min(numbers),
            short=shortest[0],
            more=max(numbers),
            long=longest,
        ),
        *(
            context.rank_evidence(
                rank,
                phrase(
                    "rank {rank}: {num} batches in the first pass over the training loader",
                    rank=rank,
                    num=lengths[rank] or 0,
                ),
            )
            for rank in (shortest[0], longest)
        ),
        advice=phrase(
            "Give each rank the same number of batches: use a DistributedSampler, stop all ranks at the "
            "smallest number, or train inside model.join()."
        ),
        rank=shortest[0],
    )


RULES = (
    FindingRule("epoch-lengths-differ", find_different_epoch_lengths),
    FindingRule("same-data-on-all-ranks", find_same_data_on_all_ranks),
    FindingRule("same-data-on-some-ranks", find_same_data_on_some_ranks),
    FindingRule("sampler-seeds-differ", find_different_seeds),
    FindingRule("samples-left-out", find_unused_shares),
)
