"""Rules about the content of a script's training batches."""

from __future__ import annotations

from rankdeck import events
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings.anomaly_rules import AnomalyRow, Report, anomaly_rules, number_of
from rankdeck.diagnose.findings.rule_context import format_percent


def _name(event: events.Anomaly) -> str:
    return event.names[0] if event.names else phrase("the dataset")


def _labels_constant(event: events.Anomaly) -> Report:
    return (
        phrase(
            "All training labels are {label:g}: the model learns only this class.",
            label=event.numbers.get("label", 0.0),
        ),
        phrase(
            "{labels} labels in {batches} batches, from which a classification loss is computed",
            labels=number_of(event, "labels"),
            batches=number_of(event, "batches"),
        ),
        phrase("Check where the dataset reads its labels, and which samples it selects."),
    )


def _batches_of_one_class(event: events.Anomaly) -> Report:
    return (
        phrase(
            "The training data is sorted by class and not shuffled: {one} of {batches} batches contain one "
            "class only.",
            one=number_of(event, "one_class"),
            batches=number_of(event, "batches"),
        ),
        phrase(
            "in one pass over the data, each of {classes} classes appears as one unbroken block of samples",
            classes=number_of(event, "classes"),
        ),
        # A DataLoader refuses shuffle=True for an IterableDataset.
        phrase("Shuffle the samples before the dataset yields them, or with a shuffle buffer.")
        if event.numbers.get("iterable")
        else phrase("Pass shuffle=True to the DataLoader, or to its DistributedSampler."),
    )


def _repeated_by_workers(event: events.Anomaly) -> Report:
    workers, groups = number_of(event, "workers"), number_of(event, "groups")
    return (
        phrase(
            "Each of the {workers} loader workers yields the same samples of {dataset}, so every sample is "
            "used {workers} times per epoch.",
            workers=workers,
            dataset=_name(event),
        ),
        # Workers that shuffle for themselves yield the same samples in another order.
        phrase("the first {groups} batches of each worker are equal", groups=groups)
        if groups
        else phrase(
            "in one pass, each of {samples} samples was yielded once by each worker",
            samples=number_of(event, "samples"),
        ),
        phrase(
            "Divide the samples in __iter__: info = torch.utils.data.get_worker_info(); yield from "
            "itertools.islice(samples, info.id, None, info.num_workers)."
        ),
    )


def _workers_draw_the_same(event: events.Anomaly) -> Report:
    workers = number_of(event, "workers")
    advice = phrase(
        "Create the generator in each worker, on first use or in a worker_init_fn, with the seed "
        "torch.initial_seed(), which differs by worker and by epoch."
    )
    # The generator could not be named, as one in a closure.
    if event.code == "equal-batches-of-workers":
        return (
            phrase(
                "The {workers} loader workers return equal batches of {dataset}, although each of them "
                "reads different indices.",
                workers=workers,
                dataset=_name(event),
            ),
            phrase("the first {groups} batches of each worker are equal", groups=number_of(event, "groups")),
            advice,
        )
    generator, dataset = [*event.names, "", ""][:2]
    return (
        phrase(
            "Each of the {workers} loader workers has a copy of {generator} in the same state: all draw the "
            "same random numbers.",
            workers=workers,
            generator=generator,
        ),
        phrase("{dataset} uses this generator, which was created before the workers", dataset=dataset),
        advice,
    )


def _same_order(event: events.Anomaly) -> Report:
    return (
        phrase("Every pass over the data uses the same order, although the DataLoader shuffles."),
        phrase(
            "{passes} successive passes over {dataset} began with the same batches",
            passes=number_of(event, "passes"),
            dataset=_name(event),
        ),
        phrase(
            "Seed once, before the first epoch: torch.manual_seed in each epoch, or a new generator with a "
            "fixed seed, starts the same order again."
        ),
    )


def _evaluation_on_training_samples(event: events.Anomaly) -> Report:
    shared, evaluated = number_of(event, "shared"), number_of(event, "evaluated")
    return (
        phrase(
            "{shared} of the {evaluated} evaluated samples are also training samples ({percent}).",
            shared=shared,
            evaluated=evaluated,
            percent=format_percent(shared / max(1, evaluated)),
        ),
        phrase(
            "indices of two subsets of the same {dataset}; {trained} samples are used for training",
            dataset=_name(event),
            trained=number_of(event, "trained"),
        ),
        phrase(
            "Split once, with a generator that has a fixed seed, and use the same split after a resume: "
            "random_split(dataset, lengths, generator=torch.Generator().manual_seed(0))."
        ),
    )


def _evaluation_padded(event: events.Anomaly) -> Report:
    return (
        phrase(
            "An evaluation counts {repeated} of {evaluated} samples twice.",
            repeated=number_of(event, "repeated"),
            evaluated=number_of(event, "evaluated"),
        ),
        phrase(
            "DistributedSampler repeats samples until all {ranks} ranks have equally many, and this line "
            "adds up the ranks' results",
            ranks=number_of(event, "ranks"),
        ),
        # The ranks' numbers of samples then differ, so their means must not be averaged.
        phrase(
            "Evaluate each sample once: use Subset(dataset, range(rank, len(dataset), world_size)) without a "
            "DistributedSampler, and add up the sums and the numbers of samples of the ranks. Or gather the "
            "predictions, and drop those after the first len(dataset)."
        ),
    )


_ROWS: tuple[AnomalyRow, ...] = (
    ("labels-constant", ("labels-constant",), _labels_constant),
    ("repeated-by-workers", ("repeated-by-workers",), _repeated_by_workers),
    ("batches-of-one-class", ("batches-of-one-class",), _batches_of_one_class),
    ("evaluation-on-training-samples", ("evaluation-on-training-samples",), _evaluation_on_training_samples),
    ("evaluation-padded", ("evaluation-padded",), _evaluation_padded),
    (
        "workers-draw-the-same",
        ("generator-copied-to-workers", "equal-batches-of-workers"),
        _workers_draw_the_same,
    ),
    ("same-order-every-epoch", ("same-order-every-epoch",), _same_order),
)

RULES = anomaly_rules(_ROWS)
