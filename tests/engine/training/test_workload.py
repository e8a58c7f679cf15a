"""What a catalogue model needs and a configuration leaves out follows from the data, a person's own too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.base.errors import DataError, ModelError
from rankdeck.config import from_text
from rankdeck.training import workload

LoadWorkload = Callable[..., workload.Workload]

_USER_DATA = """
import torch

def pictures():
    return [(torch.zeros(3, 4, 4), 1)] * 8, None

def names():
    return [({"name": torch.zeros(3)}, 1)] * 8, None
"""


@pytest.fixture
def load(tmp_path: Path) -> LoadWorkload:
    (tmp_path / "own.py").write_text(_USER_DATA)

    def loaded(model: str, args: str, factory: str = "pictures") -> workload.Workload:
        toml = f'model = {{ use = "{model}", args = {{ {args} }} }}\ndata = {{ use = "own.py:{factory}" }}\n'
        return workload.load(from_text(toml + "train = { global_batch = 4 }\n", folder=tmp_path))

    return loaded


def test_user_data_sets_the_inputs_of_a_catalog_model(load: LoadWorkload) -> None:
    shapes = {name: tuple(p.shape) for name, p in load("mlp", "classes = 5").build_model().named_parameters()}
    assert shapes["blocks.0.linear.weight"] == (256, 3 * 4 * 4)
    assert shapes["head.weight"] == (5, 256)
    resnet = load("resnet", 'classes = 5, stem = "small"').build_model()
    assert next(resnet.parameters()).shape[1] == 3


@pytest.mark.parametrize(
    ("model", "factory", "needs"),
    [
        ("mlp", "pictures", "classes"),
        ("resnet", "pictures", "classes"),
        ("gpt", "pictures", "vocabulary"),
        ("mlp", "names", "inputs, classes"),
    ],
)
def test_sizes_missing_from_user_data_are_required(
    load: LoadWorkload, model: str, factory: str, needs: str
) -> None:
    with pytest.raises(ModelError) as raised:
        load(model, "", factory).build_model()
    assert f"needs {needs}, which" in raised.value.message
    assert raised.value.advice is not None and needs in raised.value.advice


@pytest.mark.parametrize(
    ("model", "data", "args", "message"),
    [
        (
            "gpt",
            '"text"',
            "vocabulary = 64",
            "model.args.vocabulary is 64, but data text needs at least 256.",
        ),
        ("mlp", '"digits"', "classes = 5", "model.args.classes is 5, but data digits needs at least 10."),
        ("resnet", '"digits"', "classes = 5", "model.args.classes is 5, but data digits needs at least 10."),
    ],
)
def test_sizes_that_do_not_match_the_data_are_refused(model: str, data: str, args: str, message: str) -> None:
    toml = f'model = {{ use = "{model}", args = {{ {args} }} }}\ndata = {{ use = {data} }}\n'
    with pytest.raises(ModelError) as raised:
        workload.load(from_text(toml, folder=Path.cwd()))
    assert raised.value.message == message


def test_a_batch_larger_than_the_user_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_USER_DATA)
    toml = 'model.use = "mlp"\ndata.use = "own.py:pictures"\ntrain.global_batch = 9\n'
    with pytest.raises(DataError, match=r"exceeds the number of training samples \(8\)") as raised:
        workload.load(from_text(toml, folder=tmp_path))
    assert raised.value.problem.cure == {"train.global_batch": 8}


def test_more_classes_or_tokens_than_the_data_are_accepted() -> None:
    toml = 'model = { use = "mlp", args = { classes = 12 } }\ndata = { use = "digits" }\n'
    model = workload.load(from_text(toml, folder=Path.cwd())).build_model()
    assert dict(model.named_parameters())["head.weight"].shape[0] == 12
