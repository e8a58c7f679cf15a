"""The user's own code: found where it is, called with its arguments, and told about in its own words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdeck.base.errors import ConfigError, DataError, ModelError, RankdeckError
from rankdeck.training.user_code import (
    build_data,
    build_loss,
    build_model,
    build_optimizer_class,
    is_user_code,
)

CODE = """
import torch
from torch import nn

from sibling_{tag} import WIDTH


def tiny(width=WIDTH):
    return nn.Linear(2, width)


def broken():
    return nn.Linear(2, -1).weight.view(7)


def helper():
    raise ValueError("no such column: price")


def calls_helper():
    helper()


def none():
    pass


def leaves():
    raise SystemExit("usage: mine.py FILE")


def ours():
    from rankdeck.models.resnet import build
    return build(classes=2, depth=19)


def pair(count=3):
    return [(torch.zeros(2), 0)] * count, None


def stream():
    return iter([1]), None


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])


def endless():
    return Endless()


def loader():
    return torch.utils.data.DataLoader(pair()[0])


def alone():
    return [1, 2]


def loss(outputs, targets):
    return (outputs - targets).square().sum(), targets.numel()


class Sign(torch.optim.SGD):
    pass


constant = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with user code; what it adds to sys.path and sys.modules is taken away again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    tag = f"{abs(hash(tmp_path)):x}"
    (tmp_path / f"mine_{tag}.py").write_text(CODE.format(tag=tag))
    (tmp_path / "mine.py").write_text(CODE.format(tag=tag))
    (tmp_path / f"sibling_{tag}.py").write_text("WIDTH = 5\n")
    (tmp_path / "queue.py").write_text("def make():\n    raise AssertionError\n")
    (tmp_path / "typo.py").write_text("x = 1\ndef make(:\n    pass\n")
    (tmp_path / "lacks.py").write_text("import no_such_package_at_all\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def error_of(error: type[RankdeckError], call: Any, *args: Any) -> RankdeckError:
    with pytest.raises(error) as caught:
        call(*args)
    return caught.value


def test_a_file_and_a_module_are_found_and_called_with_their_arguments(folder: Path) -> None:
    module = next(folder.glob("mine_*.py")).stem
    assert build_model("mine.py:tiny", {}, folder).weight.shape == (5, 2)
    assert build_model(f"{module}:tiny", {"width": 3}, folder).weight.shape == (3, 2)
    assert build_model(f"{folder}/mine.py:tiny", {}, folder).weight.shape == (5, 2)


def test_a_file_is_imported_once(folder: Path) -> None:
    first, second = (build_optimizer_class("mine.py:Sign", folder) for _ in range(2))
    assert first is second


def test_user_data_loss_and_optimizer_are_imported(folder: Path) -> None:
    train, heldout = build_data("mine.py:pair", {"count": 4}, folder)
    assert (len(train), heldout) == (4, None)
    assert build_loss("mine.py:loss", folder).__name__ == "loss"
    assert build_optimizer_class("mine.py:Sign", folder).__name__ == "Sign"
    assert error_of(ConfigError, build_optimizer_class, "mine.py:tiny", folder).message.endswith(
        "not a subclass of torch.optim.Optimizer."
    )
    assert is_user_code("mine.py:loss")
    assert not is_user_code("cross_entropy")


def test_the_folder_is_between_stdlib_and_packages_on_the_path(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rankdeck.training.user_code import build_model;"
        f"build_model('mine.py:tiny', {{}}, Path({str(folder)!r})); import queue;"
        f"place = sys.path.index({str(folder)!r});"
        "print(queue.__file__); print(all('site-packages' not in path for path in sys.path[:place]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    queue_file, before_packages = done.stdout.split()
    assert not queue_file.startswith(str(folder))
    assert before_packages == "True"


def test_a_file_that_shadows_a_stdlib_module_is_explained(folder: Path) -> None:
    error = error_of(ModelError, build_model, "queue:make", {}, folder)
    assert error.advice == (
        'queue is a module of Python\'s standard library. For your own file, write "queue.py:make".'
    )


@pytest.mark.parametrize(
    ("target", "message", "advice"),
    [
        ("mien.py:tiny", "there is no file", 'Did you mean "mine.py"?'),
        ("mien:tiny", "module 'mien' is neither", 'Did you mean "mine"?'),
        ("mine.py:tinny", "has no 'tinny'", 'Did you mean "tiny"?'),
        ("__main__:tiny", "with its own __main__", "path/to/file.py:tiny"),
        ("mine.py:constant", "is an int, which is not callable", "Specify a function or a class."),
        ("mine.py", "neither in the catalogue nor in the form", '"path/to/file.py:name"'),
        ("mine.py:none", "returned None, not an nn.Module", "Let the factory return the model itself."),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(
    folder: Path, target: str, message: str, advice: str
) -> None:
    error = error_of(ModelError, build_model, target, {}, folder)
    assert message in error.message
    assert advice in (error.advice or "")
    assert error.problem.path == "model.use"


@pytest.mark.parametrize(
    ("target", "type_and_text", "line"),
    [
        (
            "mine.py:calls_helper",
            "ValueError: no such column: price",
            'raise ValueError("no such column: price")',
        ),
        (
            "mine.py:broken",
            "RuntimeError: Trying to create tensor with negative dimension",
            "nn.Linear(2, -1)",
        ),
        ("mine.py:leaves", "SystemExit: usage: mine.py FILE", "raise SystemExit"),
        ("typo.py:make", "SyntaxError: invalid syntax", "def make(:"),
        ("lacks.py:make", "ModuleNotFoundError: No module named 'no_such_package_at_all'", "import no_such"),
        ("lacks:make", "ModuleNotFoundError: No module named 'no_such_package_at_all'", "import no_such"),
    ],
)
def test_errors_in_user_code_show_the_users_line(
    folder: Path, target: str, type_and_text: str, line: str
) -> None:
    error = error_of(ModelError, build_model, target, {}, folder)
    assert type_and_text in error.message
    assert "rankdeck/" not in error.message
    assert error.problem.headline() == error.message, "the place is told once"
    assert error.problem.path is not None
    assert error.problem.line is not None
    assert line in Path(error.problem.path).read_text().splitlines()[error.problem.line - 1]


def test_rankdeck_errors_pass_through_user_code_unchanged(folder: Path) -> None:
    assert error_of(ModelError, build_model, "mine.py:ours", {}, folder).problem.path == "model.args.depth"


def test_unknown_factory_arguments_are_refused_before_the_call(folder: Path) -> None:
    error = error_of(ModelError, build_model, "mine.py:tiny", {"widht": 3}, folder)
    assert "unexpected keyword argument 'widht'" in error.message
    assert error.advice == 'Did you mean "width"? It takes width=5.'
    assert error.problem.path == "model.args"


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("mine.py:alone", {}, "mine.py:alone': train is an int, which has neither __len__ nor __getitem__"),
        ("mine.py:stream", {}, "train is a list_iterator, which has neither __len__ nor __getitem__"),
        ("mine.py:tiny", {}, "returned a Linear, not a pair (train, heldout)"),
        ("mine.py:endless", {}, "returned an Endless, a stream"),
        ("mine.py:loader", {}, "returned a DataLoader, a stream"),
        ("mine.py:pair", {"count": 0}, "train is empty"),
    ],
)
def test_datasets_of_another_form_are_refused(
    folder: Path, target: str, args: dict[str, Any], message: str
) -> None:
    assert message in error_of(DataError, build_data, target, args, folder).message
