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
from rankdeck.parallel.pipelining.equality import ChainComparison
from rankdeck.parallel.pipelining.observed import ObservedChain
from rankdeck.parallel.pipelining.stages import prepare_output
from rankdeck.torch_compat.fake_tensors import FakeTensorMode
from tests.helpers import past_cuts

TOLERANCE = 1e-10
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


def build_fp64(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double().train()


def batches(num: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 1, 8, 8, generator=generator, dtype=torch.float64) for _ in range(num)]


def loss_of(outputs: Any) -> Tensor:
    return F.cross_entropy(outputs, torch.arange(4))


def train_weights(model: nn.Module, step: Callable[[Tensor], None]) -> dict[str, Tensor]:
    """Weights after steps of AdamW, which changes every weight that has a gradient, if it is zero."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    for batch in batches():
        optimizer.zero_grad()
        step(batch)
        optimizer.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def cut_for_stages(
    model: nn.Module, num_stages: int, cuts: list[str | int] | None = None
) -> cutting.CutModel:
    pipeline = cutting.cut_model(
        model,
        num_stages,
        CutOptions(cuts=cuts),
        batches()[0],
        4,
        device=torch.device("cpu"),
        read_outputs=lambda outputs: [loss_of(outputs)],
    )
    pipeline.copy_shared_buffers(range(num_stages))
    return pipeline


def make_stage_step(cut_model: cutting.CutModel) -> Callable[[Tensor], None]:
    def step(batch: Tensor) -> None:
        cut_model.refresh_copies()
        entered: list[Any] = [None]
        stage_outputs = []
        for stage, leaves in zip(cut_model.stages, cut_model.boundaries[1:], strict=True):
            output = stage.train()(entered[-1], batch)
            stage_outputs.append(output)
            if leaves:
                stage_outputs[-1] = [prepare_output(*pair) for pair in zip(output, leaves, strict=True)]
                pairs = zip(stage_outputs[-1], leaves, strict=True)
                entered.append(tuple(t.detach().clone().requires_grad_(s.returns_gradient) for t, s in pairs))
        loss_of(stage_outputs[-1]).backward()
        for outputs, received in zip(stage_outputs[-2::-1], entered[:0:-1], strict=True):
            pairs = [
                (out, leaf.grad) for out, leaf in zip(outputs, received, strict=True) if out.requires_grad
            ]
            zeros = [torch.zeros_like(out) if grad is None else grad for out, grad in pairs]
            torch.autograd.backward([out for out, _ in pairs], zeros)

    return step


def max_difference(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    return max(float((some[name].double() - others[name].double()).abs().max()) for name in others)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_trained_stages_match_the_model(make: Callable[[], nn.Module]) -> None:
    plain, model = build_fp64(make), build_fp64(make)
    expected = train_weights(plain, lambda batch: loss_of(plain(batch)).backward())
    pipeline = cut_for_stages(model, 2)
    assert max_difference(train_weights(model, make_stage_step(pipeline)), expected) <= TOLERANCE


@pytest.mark.parametrize(
    "make", [past_cuts.LateTemperature, past_cuts.GatedSkip, past_cuts.SkipInTraining, past_cuts.Counting]
)
def test_an_unchecked_chain_differs(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would where weights above the layers stayed with the first stage."""
    monkeypatch.setattr(ChainComparison, "difference", lambda self, chain: None)
    monkeypatch.setattr(ObservedChain, "_find_used", lambda self: [set() for _ in self.names])
    monkeypatch.setattr(observed, "_refuse_gradient", lambda name, gradient: None)
    plain, model = build_fp64(make), build_fp64(make)
    expected = train_weights(plain, lambda batch: loss_of(plain(batch)).backward())
    pipeline = cut_for_stages(model, 3)
    assert max_difference(train_weights(model, make_stage_step(pipeline)), expected) > 1e-3


def test_cutting_leaves_the_model_unchanged() -> None:
    model = build_fp64(past_cuts.Counting)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    cutting.find_chain(model, batches()[0], 4)
    assert max_difference(before, model.state_dict()) == 0.0
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
def test_values_that_bypass_a_cut_are_named(
    make: Callable[[], nn.Module], named: str, is_planned: bool
) -> None:
    """Also where a plan knows no values."""
    with FakeTensorMode() if is_planned else torch.enable_grad():
        model, inputs = make(), torch.ones(4, 1, 8, 8)
        row = ObservedChain(model, observed.observe_units(model, inputs), 4, inputs)
        difference = ChainComparison(model, inputs).difference(row)
    assert difference is not None
    assert f"{named} is used after a cut" in difference


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize(
    "make",
    [past_cuts.TiedByFunction, past_cuts.LateTemperature, past_cuts.Prompts, past_cuts.StraightThrough],
)
def test_plan_and_run_have_the_same_cuts(make: Callable[[], nn.Module], is_planned: bool) -> None:
    with FakeTensorMode() if is_planned else torch.enable_grad():
        chain = cutting.find_chain(make(), torch.ones(4, 1, 8, 8), 4)
    assert chain.names == ["enter", *(f"layers.{index}" for index in range(4)), "leave"]


def test_a_weight_used_by_a_function_is_shared_between_stages() -> None:
    model = build_fp64(past_cuts.TiedByFunction)
    pipeline = cut_for_stages(model, 2, ["layers.1"])
    assert [(id(weight), stages) for weight, stages in pipeline.shared_parameters()] == [
        (id(model.enter.weight), (0, 1))
    ]


def test_analysis_on_fake_tensors_is_reused_for_equal_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equality, "is_cheap", lambda model, inputs: False)
    cache: dict[Hashable, Phrase | None] = {}
    chain = cutting.find_chain(build_fp64(past_cuts.TiedByFunction), batches()[0], 4, cache)
    monkeypatch.setattr(ChainComparison, "_compare_histories", lambda *_: 1 / 0)
    again = cutting.find_chain(build_fp64(past_cuts.TiedByFunction), batches()[0], 4, cache)
    assert again.names == chain.names and len(chain) > 1
    with pytest.raises(ModelError, match="cannot be cut"):
        cutting.find_chain(build_fp64(past_cuts.TiedByFunction), batches()[0], 4, {})


def test_units_that_omit_a_weight_are_refused() -> None:
    class Wrong(past_cuts.Row):
        def pipeline_units(self) -> list[tuple[str, nn.Module]]:
            return [("flat", nn.Flatten()), ("enter", self.enter), ("leave", self.leave)]

    with pytest.raises(ModelError, match=r"pipeline_units\(\) do not compute the same results as .* forward"):
        cutting.find_chain(build_fp64(Wrong), batches()[0], 4)


def test_a_model_that_changes_branches_later_raises() -> None:
    model = build_fp64(past_cuts.Branching)
    pipeline = cut_for_stages(model, 2, ["layers.3"])
    with pytest.raises(ModelError, match="runs different modules for this batch"):
        train_weights(model, make_stage_step(pipeline))


def test_a_traced_stage_refuses_other_shapes() -> None:
    pipeline = cut_for_stages(build_fp64(past_cuts.DetachedSkip), 2, ["layers.1"])
    with pytest.raises(ModelError, match="Samples have different sizes"):
        pipeline.stages[0](None, torch.ones(4, 1, 4, 16, dtype=torch.float64))


@pytest.mark.parametrize(
    ("error", "sizes", "expected_error"),
    [
        (RuntimeError("own"), (4, 1, 8, 8), RuntimeError),
        (RuntimeError("own"), (3, 1, 8, 8), RuntimeError),
        (RuntimeError("own"), (4, 1, 4, 16), ModelError),
        (torch.OutOfMemoryError("own"), (4, 1, 4, 16), torch.OutOfMemoryError),
    ],
)
def test_a_stage_error_names_shapes_only_when_they_changed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sizes: tuple[int, ...], expected_error: type[Exception]
) -> None:
    pipeline = cut_for_stages(build_fp64(past_cuts.Row), 2, ["layers.1"])

    def fails(_self: nn.Module, hidden: Tensor, _index: int) -> Tensor:
        raise error

    monkeypatch.setattr(past_cuts.Row, "between", fails)
    with pytest.raises(expected_error, match="own") as caught:
        pipeline.stages[0](None, torch.ones(sizes, dtype=torch.float64))
    assert type(caught.value) is expected_error


def test_a_model_that_needs_several_samples_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert len(cutting.find_chain(model, torch.ones(2, 4), 2)) == 3
    with pytest.raises(ModelError, match=r"cannot run on a single sample.*more than 1 value"):
        cutting.find_chain(model, torch.ones(1, 4), 1)
    broken = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 2))  # with any number of samples
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        cutting.find_chain(broken, torch.ones(1, 4), 1)
