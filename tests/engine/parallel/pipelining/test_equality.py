"""Stages of any cut end with the weights of the model that was cut, or it is not cut.

Stages run here as in a pipeline: what crosses a cut is a leaf on the other side. Plain torch is the oracle.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import Phrase
from rankdeck.config.catalog import CutOptions
from rankdeck.parallel.pipelining import cutting, equality, observed
from rankdeck.parallel.pipelining.equality import Equality
from rankdeck.parallel.pipelining.observed import ObservedChain
from rankdeck.parallel.pipelining.stages import leaving
from rankdeck.torch_compat.fake_tensors import FakeTensorMode
from tests.helpers import past_cuts

BAR = 1e-10
MODELS: list[Callable[[], nn.Module]] = [
    past_cuts.TiedByFunction,
    past_cuts.LateTemperature,
    past_cuts.Prompts,
    past_cuts.GatedSkip,
    past_cuts.GatedByBuffer,
    past_cuts.SkipInTraining,
    past_cuts.DetachedSkip,
    past_cuts.DetachedInTraining,
    past_cuts.StraightThrough,
    past_cuts.Balanced,
    past_cuts.Counting,
    past_cuts.Norms,
    past_cuts.Unused,
    past_cuts.Frozen,
    past_cuts.shared_activation,
    past_cuts.in_place,
    past_cuts.old_spectral_norm,
]


def built(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double().train()


def batches(num: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 1, 8, 8, generator=generator, dtype=torch.float64) for _ in range(num)]


def loss_of(outputs: Any) -> Tensor:
    return F.cross_entropy(outputs, torch.arange(4))


def trained(model: nn.Module, step: Callable[[Tensor], None]) -> dict[str, Tensor]:
    """Weights after steps of AdamW, which changes every weight that has a gradient, if it is zero."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    for batch in batches():
        optimizer.zero_grad()
        step(batch)
        optimizer.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def cut(model: nn.Module, num_stages: int, cuts: list[str | int] | None = None) -> cutting.CutModel:
    made = cutting.cut_model(
        model,
        num_stages,
        CutOptions(cuts=cuts),
        batches()[0],
        4,
        device=torch.device("cpu"),
        read=lambda outputs: [loss_of(outputs)],
    )
    made.separate_buffers(range(num_stages))
    return made


def step_of_stages(made: cutting.CutModel) -> Callable[[Tensor], None]:
    def step(batch: Tensor) -> None:
        made.renew_copies()
        entered: list[Any] = [None]
        given = []
        for stage, leaves in zip(made.stages, made.boundaries[1:], strict=True):
            output = stage.train()(entered[-1], batch)
            given.append(output)
            if leaves:
                given[-1] = [leaving(*pair) for pair in zip(output, leaves, strict=True)]
                pairs = zip(given[-1], leaves, strict=True)
                entered.append(tuple(t.detach().clone().requires_grad_(s.goes_back) for t, s in pairs))
        loss_of(given[-1]).backward()
        for outputs, received in zip(given[-2::-1], entered[:0:-1], strict=True):
            pairs = [
                (out, leaf.grad) for out, leaf in zip(outputs, received, strict=True) if out.requires_grad
            ]
            zeros = [torch.zeros_like(out) if grad is None else grad for out, grad in pairs]
            torch.autograd.backward([out for out, _ in pairs], zeros)

    return step


def farthest(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    return max(float((some[name].double() - others[name].double()).abs().max()) for name in others)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_stages_end_with_the_weights_of_the_model(make: Callable[[], nn.Module]) -> None:
    plain, model = built(make), built(make)
    wanted = trained(plain, lambda batch: loss_of(plain(batch)).backward())
    made = cut(model, 2)
    assert farthest(trained(model, step_of_stages(made)), wanted) <= BAR


@pytest.mark.parametrize(
    "make", [past_cuts.LateTemperature, past_cuts.GatedSkip, past_cuts.SkipInTraining, past_cuts.Counting]
)
def test_a_row_that_is_not_compared_ends_far_off(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would where weights above the layers stayed with the first stage."""
    monkeypatch.setattr(Equality, "difference", lambda self, chain: None)
    monkeypatch.setattr(ObservedChain, "_find_used", lambda self: [set() for _ in self.names])
    monkeypatch.setattr(observed, "_refuse_gradient", lambda name, gradient: None)
    plain, model = built(make), built(make)
    wanted = trained(plain, lambda batch: loss_of(plain(batch)).backward())
    made = cut(model, 3)
    assert farthest(trained(model, step_of_stages(made)), wanted) > 1e-3


def test_the_model_itself_is_as_it_was() -> None:
    model = built(past_cuts.Counting)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    cutting.find_chain(model, batches()[0], 4)
    assert farthest(before, model.state_dict()) == 0.0
    assert model.calls == 0
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (past_cuts.GatedSkip, "enter"),
        (past_cuts.GatedByBuffer, "enter"),
        (past_cuts.SkipInTraining, "enter"),
        (past_cuts.DetachedSkip, "enter"),
    ],
)
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_row_that_carries_something_past_its_cuts_is_named(
    make: Callable[[], nn.Module], named: str, is_planned: bool
) -> None:
    """Also where a plan knows no values."""
    with FakeTensorMode() if is_planned else torch.enable_grad():
        model, inputs = make(), torch.ones(4, 1, 8, 8)
        row = ObservedChain(model, observed.observe(model, inputs), 4, inputs)
        difference = Equality(model, inputs).difference(row)
    assert difference is not None
    assert f"{named} is used behind a cut" in difference


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize(
    "make",
    [past_cuts.TiedByFunction, past_cuts.LateTemperature, past_cuts.Prompts, past_cuts.StraightThrough],
)
def test_a_plan_cuts_where_the_run_does(make: Callable[[], nn.Module], is_planned: bool) -> None:
    with FakeTensorMode() if is_planned else torch.enable_grad():
        chain = cutting.find_chain(make(), torch.ones(4, 1, 8, 8), 4)
    assert chain.names == ["enter", *(f"layers.{index}" for index in range(4)), "leave"]


def test_a_weight_that_a_function_uses_is_one_weight_on_both_stages() -> None:
    model = built(past_cuts.TiedByFunction)
    made = cut(model, 2, ["layers.1"])
    assert [(id(weight), stages) for weight, stages in made.shared_parameters()] == [
        (id(model.enter.weight), (0, 1))
    ]


def test_what_was_found_on_shapes_holds_for_the_next_model_of_the_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equality, "is_cheap", lambda model, inputs: False)
    known: dict[Hashable, Phrase | None] = {}
    found = cutting.find_chain(built(past_cuts.TiedByFunction), batches()[0], 4, known)
    monkeypatch.setattr(Equality, "_compare_histories", lambda *_: 1 / 0)
    again = cutting.find_chain(built(past_cuts.TiedByFunction), batches()[0], 4, known)
    assert again.names == found.names and len(found) > 1
    with pytest.raises(ModelError, match="cannot be cut"):
        cutting.find_chain(built(past_cuts.TiedByFunction), batches()[0], 4, {})


def test_units_that_leave_something_out_are_refused() -> None:
    class Wrong(past_cuts.Row):
        def pipeline_units(self) -> list[tuple[str, nn.Module]]:
            return [("flat", nn.Flatten()), ("enter", self.enter), ("leave", self.leave)]

    with pytest.raises(ModelError, match=r"pipeline_units\(\) does not compute what .* forward does"):
        cutting.find_chain(built(Wrong), batches()[0], 4)


def test_a_model_that_takes_another_branch_later_is_stopped() -> None:
    model = built(past_cuts.Branching)
    made = cut(model, 2, ["layers.3"])
    with pytest.raises(ModelError, match="runs other modules in this batch"):
        trained(model, step_of_stages(made))


def test_a_traced_stage_takes_no_other_sizes() -> None:
    made = cut(built(past_cuts.DetachedSkip), 2, ["layers.1"])
    with pytest.raises(ModelError, match="Samples differ in their sizes"):
        made.stages[0](None, torch.ones(4, 1, 4, 16, dtype=torch.float64))


@pytest.mark.parametrize(
    ("error", "sizes", "told"),
    [
        (RuntimeError("own"), (4, 1, 8, 8), RuntimeError),
        (RuntimeError("own"), (3, 1, 8, 8), RuntimeError),
        (RuntimeError("own"), (4, 1, 4, 16), ModelError),
        (torch.OutOfMemoryError("own"), (4, 1, 4, 16), torch.OutOfMemoryError),
    ],
)
def test_shapes_are_blamed_for_an_error_in_a_stage_only_where_a_batch_has_others(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sizes: tuple[int, ...], told: type[Exception]
) -> None:
    made = cut(built(past_cuts.Row), 2, ["layers.1"])

    def fails(_self: nn.Module, hidden: Tensor, _index: int) -> Tensor:
        raise error

    monkeypatch.setattr(past_cuts.Row, "between", fails)
    with pytest.raises(told, match="own") as caught:
        made.stages[0](None, torch.ones(sizes, dtype=torch.float64))
    assert type(caught.value) is told


def test_a_model_that_needs_more_than_one_sample_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert len(cutting.find_chain(model, torch.ones(2, 4), 2)) == 3
    with pytest.raises(ModelError, match=r"does not run on a single sample.*more than 1 value"):
        cutting.find_chain(model, torch.ones(1, 4), 1)
    broken = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 2))  # with any number of samples
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        cutting.find_chain(broken, torch.ones(1, 4), 1)
