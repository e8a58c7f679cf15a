"""Rules about the order of samples, and how many are processed at once. Read rule_context.py first."""

from __future__ import annotations

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, make_finding

MIN_BATCH_NORM_SAMPLES = 4
"""Largest number of samples with which a batch norm is reported; a variance over so few samples is off by
half or more."""
BATCH_NORM_DIFFERS = "batch-norm-differs"
"""Code of the batch-norm problem that a configured run itself reports (training/parity_notes.py)."""

DDP_WRAPPER = "DistributedDataParallel"
GROUP_OPTIONS = {"process_group", "device_mesh"}
"""Wrapper options that select a process group; ranks of different groups may share samples on purpose."""


def find_tiny_batch_norms(context: RuleContext) -> Problem | None:
    """Find batch norms that normalise over only a few samples."""
    return _observed_batch_norms(context) or _reported_batch_norms(context)


def _reported_batch_norms(context: RuleContext) -> Problem | None:
    problem = next(
        (candidate for candidate in context.state.problems if candidate.code == BATCH_NORM_DIFFERS), None
    )
    number = None if problem is None else problem.arguments.get("message", {}).get("num")
    if problem is None or not isinstance(number, int) or not 1 <= number <= MIN_BATCH_NORM_SAMPLES:
        return None
    can_sync = problem.path == "strategy.sync_batchnorm" and context.config is not None
    return _tiny_batch_norm_finding(
        number,
        context.rank_evidence(
            0, phrase("rank 0 reported this before the first step ({code})", code=BATCH_NORM_DIFFERS)
        ),
        advice=phrase("Set strategy.sync_batchnorm = true.")
        if can_sync
        else phrase(
            "Use group norms, use more samples per device, or set sync_batchnorm = true with ddp or fsdp."
        ),
        changes={"strategy.sync_batchnorm": True} if can_sync else {},
    )


def _observed_batch_norms(context: RuleContext) -> Problem | None:
    lead = context.state.script.lead_observation
    if lead is None or not lead.batch_norms or not lead.batch:
        return None
    # DataParallel splits a rank's batch over its devices, so each batch norm sees only a share of it.
    devices = lead.wrapper_options.get("device_ids") if lead.wrapper == "DataParallel" else None
    num_devices = max(1, len(devices)) if isinstance(devices, list) else 1
    number = -(-lead.batch // num_devices)
    if number > MIN_BATCH_NORM_SAMPLES:
        return None
    text = phrase(
        "{norms} batch norms in {model}, each over {number} samples at a time per device",
        norms=lead.batch_norms,
        model=lead.model or phrase("the model"),
        number=number,
    )
    return _tiny_batch_norm_finding(
        number,
        context.rank_evidence(lead.rank, text),
        advice=phrase(
            "Convert the model with torch.nn.SyncBatchNorm.convert_sync_batchnorm before "
            "wrapping it in DistributedDataParallel, or use group norms or a larger batch per "
            "device."
        ),
    )


def _tiny_batch_norm_finding(
    number: int, evidence: Evidence, *, advice: str, changes: dict[str, object] | None = None
) -> Problem:
    return make_finding(
        "batch-norm-tiny",
        phrase(
            "Batch norms normalise over {number} samples at a time: their statistics are too noisy.",
            number=number,
        ),
        evidence,
        advice=advice,
        changes=changes,
    )


def find_missing_set_epoch(context: RuleContext) -> Problem | None:
    """Find a DistributedSampler that shuffles in the same order in each epoch."""
    forgotten = {
        rank: observation.same_epochs
        for rank, observation in context.state.script.observations.items()
        if observation.same_epochs
    }
    if not forgotten:
        return None
    rank = min(forgotten)
    return make_finding(
        "set-epoch-forgotten",
        phrase(
            "Every pass over the data uses the same order: the script does not call the "
            "DistributedSampler's set_epoch."
        ),
        context.rank_evidence(
            rank,
            phrase("{n} passes had the same sampler epoch as the pass before", n=forgotten[rank]),
        ),
        advice=phrase("Call sampler.set_epoch(epoch) before each pass over the DataLoader."),
    )


RULES = (
    FindingRule("set-epoch-forgotten", find_missing_set_epoch),
    FindingRule("batch-norm-tiny", find_tiny_batch_norms),
)
