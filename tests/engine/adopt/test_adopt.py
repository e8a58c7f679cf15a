"""From what was seen of a script and what its text says to a configuration; the rest is named as missing."""

from __future__ import annotations

import fcntl
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from rankdeck.adopt.adopt import adopt, default_file
from rankdeck.adopt.seen import NotAdoptableError
from rankdeck.base.errors import ConfigError
from rankdeck.config import from_text
from tests.helpers.adopting import SCRIPT, SGD, adopted, missing, run_of, tables
from tests.helpers.cli import rankdeck_here
from tests.helpers.observed_run import observed_run
from tests.helpers.written_run import WrittenRun, device_infos


def changed(old: str, new: str) -> str:
    assert old in SCRIPT
    return SCRIPT.replace(old, new)


def test_what_is_seen_and_named_makes_a_whole_configuration(project: Path) -> None:
    one = adopted(project)
    assert one.problems == []
    config = from_text(one.text, folder=project)
    assert (config.name, config.model.use) == ("train", f"{project / 'train.py'}:Net")
    assert config.model.args == {"width": 2} and config.data.use == f"{project / 'train.py'}:Rows"
    assert (config.loss.use, config.strategy.use, config.devices.use) == ("cross_entropy", "single", "cpu:1")
    train = config.train
    assert (train.steps, train.global_batch, train.seed, train.precision) == (12, 8, 4, "fp32")
    assert (train.optimizer.use, train.optimizer.options["lr"]) == ("sgd", 0.1)
    assert "The script shuffles too" in one.text


def test_a_script_that_trains_when_it_is_imported_has_nothing_that_can_be_named(project: Path) -> None:
    one = adopted(project, changed('if __name__ == "__main__":\n        main()', "main()"))
    assert missing(one) == ["model.use", "data.use"]
    assert 'if __name__ == "__main__":' in one.text and "train.py, line 23" in one.text
    assert tables(one)["train"]["global_batch"] == 8


def test_what_a_file_beside_it_defines_can_be_named_even_then(project: Path) -> None:
    (project / "nets.py").write_text("class Net:\n    def __init__(self, width): ...\n")
    text = changed('if __name__ == "__main__":\n        main()', "main()")
    text = text.replace("    def main():", "    from nets import Net\n\n    def main():")
    text = text.replace("class Net(nn.Module)", "class Other(nn.Module)")
    one = adopted(project, text)
    assert tables(one)["model"] == {"use": "nets.py:Net", "args": {"width": 2}}
    assert missing(one) == ["data.use"]


@pytest.mark.parametrize(
    ("made", "args", "left"),
    [
        ("Net(args.width)", {"width": 5}, []),
        ("Net(2 * HALF)", {"width": 6}, []),
        ("Net(width=open('w').read())", {"width": "?"}, ["model.args.width"]),
    ],
)
def test_arguments_of_the_model_are_what_the_run_had(
    project: Path, made: str, args: dict[str, Any], left: list[str]
) -> None:
    parser = """
        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, default=2)
        parser.add_argument("--name", type=lambda text: text)
        args = parser.parse_args()
        """
    text = changed("model = Net(width=2)", f"{parser}model = Net(width=0)".replace("Net(width=0)", made))
    text = text.replace("    def main", "    import argparse\n    HALF = 3\n\n    def main", 1)
    one = adopted(project, text, settings={"args": ["--width", "5", "--name=x"]})
    assert tables(one)["model"]["args"] == args and missing(one) == left


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model = Net(width=2)", "model = nn.Sequential(nn.Linear(4, 2), nn.Tanh()).to('cpu')"),
        ("model = Net(width=2)", "model = make_all()[0]"),
    ],
)
def test_a_model_that_no_name_makes_is_left_with_the_function_to_write(
    project: Path, old: str, new: str
) -> None:
    one = adopted(project, changed(old, new))
    assert missing(one) == ["model.use"]
    assert "def build_model():" in one.text and "train.py, line 1" in one.text


def test_a_lightning_module_that_only_trains_is_no_model_to_name(project: Path) -> None:
    module = "def training_step(self, batch, index): ..."
    text = changed("model = Net(width=2)", "model = Lit(width=2)")
    for methods, left in ((module, ["model.use"]), (f"{module}\n        def forward(self, x): ...", [])):
        lit = f"    class Lit(nn.Module):\n        def __init__(self, width): ...\n        {methods}\n\n"
        one = adopted(project, text.replace("    def main", lit + "    def main", 1))
        assert missing(one) == left
        assert ("a training_step and no forward" in one.text) == bool(left)


def test_a_wrapped_moved_and_passed_on_model_is_followed_to_what_made_it(project: Path) -> None:
    text = """
        from accelerate import Accelerator
        import torch
        from torch import nn
        from torch.utils.data import DataLoader

        def build(width, bias=True): ...

        def get_data():
            return make_train(), make_test()

        def fit(net, batches, opt, criterion):
            for x, y in batches:
                loss = criterion(net(x), y)
                accelerator.backward(loss / 2)
                opt.step()

        def main():
            accelerator = Accelerator()
            torch.manual_seed(1)
            model = build(64).to("cpu")
            train_data, test_data = get_data()
            test_loader = DataLoader(test_data, batch_size=100)
            train_loader = DataLoader(train_data, batch_size=8, shuffle=False, drop_last=True)
            opt = torch.optim.SGD([{"params": model.parameters()}], lr=0.1)
            model, opt, train_loader = accelerator.prepare(model, opt, train_loader)
            fit(model, train_loader, opt, nn.MSELoss())

        if __name__ == "__main__":
            main()
        """
    one = adopted(project, text, accumulate=2, num_samples=60)
    told = tables(one)
    assert one.problems == []
    assert told["model"] == {"use": "train.py:build", "args": {"width": 64}}
    assert told["data"] == {"use": "train.py:get_data", "order": "given"}
    assert told["loss"]["use"] == "mse"
    assert (told["train"]["global_batch"], told["train"]["accumulate"]) == (16, 2)
    assert "does not divide its loss" not in one.text
    assert "does not divide its loss" in adopted(project, text.replace("loss / 2", "loss"), accumulate=2).text


@pytest.mark.parametrize(
    ("wrapper", "options", "strategy", "use"),
    [
        ("DistributedDataParallel", {"bucket_cap_mb": 5}, {"use": "ddp", "bucket_mb": 5}, "cpu:2"),
        ("FullyShardedDataParallel", {}, {"use": "fsdp"}, "cpu:2"),
        ("fully_shard", {"reshard_after_forward": False}, {"use": "fsdp", "reshard": False}, "cpu:2"),
        (
            "FullyShardedDataParallel",
            {"sharding_strategy": "ShardingStrategy.NO_SHARD"},
            {"use": "ddp"},
            "cpu:2",
        ),
    ],
)
def test_the_wrapper_names_the_strategy_and_ranks_multiply_the_batch(
    project: Path, wrapper: str, options: dict[str, Any], strategy: dict[str, Any], use: str
) -> None:
    told = tables(adopted(project, ranks=2, wrapper=wrapper, wrapper_options=options))
    assert told["strategy"] == strategy and told["devices"]["use"] == use
    assert told["train"]["global_batch"] == 16


def test_gpus_are_named_by_what_they_are_and_a_typed_choice_stands(project: Path) -> None:
    gpus = device_infos(2, kind="gpu")
    told = tables(adopted(project, ranks=2, wrapper="DistributedDataParallel", devices=gpus))
    assert told["devices"]["use"] == "gpu:GPU-00000000,GPU-00000001"
    options = {"device_ids": [0, 1]}
    told = tables(adopted(project, wrapper="DataParallel", wrapper_options=options, devices=gpus))
    assert (told["strategy"]["use"], told["train"]["global_batch"]) == ("dp", 8)
    assert told["devices"]["use"] == "gpu:GPU-00000000,GPU-00000001"
    alone = tables(adopted(project, devices=gpus))
    assert (alone["strategy"]["use"], alone["devices"]["use"]) == ("single", "gpu:GPU-00000000")
    run = run_of(project, devices=gpus, selection="gpu:1")
    assert tables(adopt(run, project))["devices"]["use"] == "gpu:1"


@pytest.mark.parametrize(
    ("optimizer", "group", "table"),
    [
        ("torch.optim.adam:Adam", {"lr": 1e-2, "betas": [0.9, 0.999]}, {"use": "adam", "lr": 1e-2}),
        (
            "torch.optim.adamw:AdamW",
            {"lr": 1e-2, "weight_decay": 0},
            {"use": "adamw", "lr": 0.01, "weight_decay": 0.0},
        ),
        (
            "torch.optim.sgd:SGD",
            {"lr": 1.0, "momentum": 0.9, "dampening": 0.5, "fused": True},
            {"use": "torch.optim:SGD", "lr": 1.0, "momentum": 0.9, "dampening": 0.5},
        ),
        (
            "torch.optim.adamw:AdamW",
            {"lr": 1e-2, "weight_decay": 0.1, "decoupled_weight_decay": True},
            {"use": "adamw", "lr": 0.01, "weight_decay": 0.1},
        ),
        (
            "torch.optim.nadam:NAdam",
            {"lr": 1e-2, "weight_decay": 0.1, "decoupled_weight_decay": True},
            {"use": "torch.optim:NAdam", "lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True},
        ),
        ("torch.optim.rprop:Rprop", {"lr": 0.1}, {"use": "torch.optim:Rprop", "lr": 0.1}),
        ("lion_pytorch:Lion", {"lr": 0.1}, {"use": "lion_pytorch:Lion", "lr": 0.1}),
    ],
)
def test_an_optimizer_is_the_catalogues_where_it_has_all_options_else_its_class(
    project: Path, optimizer: str, group: dict[str, Any], table: dict[str, Any]
) -> None:
    one = adopted(project, optimizer=optimizer, parameter_groups=[group])
    assert tables(one)["train"]["optimizer"] == table and one.problems == []


def test_an_optimizer_of_the_persons_own_is_named_where_its_file_can_be_imported(project: Path) -> None:
    text = changed("    def main", "    class Mine(torch.optim.Optimizer): ...\n\n    def main")
    mine: dict[str, Any] = {"optimizer": "__main__:Mine", "parameter_groups": [{"lr": 0.1}]}
    told = tables(adopted(project, text, **mine))
    assert told["train"]["optimizer"] == {"use": "train.py:Mine", "lr": 0.1}
    trains = text.replace('if __name__ == "__main__":\n        main()', "main()")
    assert "train.optimizer.use" in missing(adopted(project, trains, **mine))


def test_groups_that_differ_are_told_and_the_largest_stands_for_all(project: Path) -> None:
    groups = [
        {"lr": 0.1, "momentum": 0.9, "weight_decay": decay, "num_parameters": count}
        for decay, count in ((0.0, 8), (0.5, 900))
    ]
    one = adopted(project, parameter_groups=groups)
    assert tables(one)["train"]["optimizer"] == {
        "use": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.5,
    }
    assert "It has 2 groups of parameters that differ in weight_decay;" in one.text
    assert "groups of parameters" not in adopted(project, parameter_groups=groups[:1]).text


@pytest.mark.parametrize("name", ["pack", "pack.train"])
def test_a_module_is_read_where_python_m_finds_it(project: Path, name: str) -> None:
    (project / "pack").mkdir()
    file = project / "pack" / ("train.py" if "." in name else "__main__.py")
    file.write_text(textwrap.dedent(SCRIPT))
    run = observed_run(project.parent / "runs", project / name, settings={"kind": "module"}, **SGD)
    told = tables(adopt(run, project))
    assert told["model"] == {"use": f"pack/{file.name}:Net", "args": {"width": 2}}
    assert default_file(run, project) == project / f"{name.rpartition('.')[2]}.toml"


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("from pack.parts import Net", "pack/parts.py:Net"),
        ("from .parts import Net", "pack/parts.py:Net"),
        ("from . import parts; Net = parts.Net", "?"),
        ("from .parts import *", "pack/parts.py:Net"),
        ("from .around import Net", "pack.around:Net"),
    ],
)
def test_what_a_module_imports_of_its_package_is_found(project: Path, line: str, use: str) -> None:
    (project / "pack").mkdir()
    (project / "pack/parts.py").write_text("class Net:\n    def __init__(self, width): ...\n")
    (project / "pack/around.py").write_text("from . import parts\nclass Net(parts.Net): ...\n")
    text = SCRIPT.replace("class Net(", "class Other(").replace(
        "    import torch\n", f"    import torch\n    {line}\n", 1
    )
    (project / "pack/train.py").write_text(textwrap.dedent(text))
    run = observed_run(project.parent / "runs", project / "pack.train", settings={"kind": "module"}, **SGD)
    assert tables(adopt(run, project))["model"]["use"] == use


def test_a_rate_that_moves_is_a_schedule_of_the_catalogue_or_is_left(project: Path) -> None:
    line = [0.1 * (1 - step / 11) for step in range(12)]
    assert tables(adopted(project, rates=line))["train"]["schedule"]["use"] == "linear"
    stairs = [0.1, 0.1, 0.01, 0.01, 0.1, 0.1, 0.01, 0.01, 0.1, 0.1, 0.01, None]
    one = adopted(project, rates=stairs)
    assert missing(one) == ["train.schedule"]
    assert "The rate went from 0.1 in step 1 to 0.01 in step 11." in one.text


@pytest.mark.parametrize(
    ("loss", "use"),
    [
        ("loss = nn.CrossEntropyLoss()(model(x), y)", "cross_entropy"),
        ("loss = model(x, labels=y).loss.mean()", "model"),
        ("loss = model(x, labels=y)['loss']", "model"),
        ("loss = model(x, labels=y)['penalty']", "?"),
        ("loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)", "?"),
        ("loss = my_loss(model(x), y)", "?"),
        ("loss = (model(x) - y).abs().sum()", "?"),
    ],
)
def test_a_loss_is_named_where_a_configuration_has_the_same(project: Path, loss: str, use: str) -> None:
    one = adopted(project, changed("loss = nn.functional.cross_entropy(model(x), y)", loss))
    assert tables(one)["loss"]["use"] == use
    assert ("def loss(outputs, targets):" in one.text) == (use == "?")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"num_steps": 0}, "No optimizer step was seen"),
        ({"other_optimizers": {"torch.optim.adam:Adam": 12}}, "steps several optimizers in turn"),
        ({"optimizer": "torch.optim.lbfgs:LBFGS"}, "LBFGS"),
        ({"ranks": 2}, "2 ranks without a parallel wrapper"),
        ({"settings": {"observe": "none"}, "num_steps": 0}, "was not observed"),
        ({"settings": {"kind": "program"}, "script_name": "bash"}, "whose Python file is not known"),
        (
            {
                "ranks": 2,
                "more": [
                    events.Collectives(rank=0, step=1, calls={"all_reduce": 3}, num_bytes={}, seconds={})
                ],
            },
            "by collectives of its own (all_reduce)",
        ),
    ],
)
def test_what_no_configuration_can_do_is_said_in_words(
    project: Path, seen: dict[str, Any], words: str
) -> None:
    if seen.pop("script_name", None):
        run = observed_run(project, project / "bash", **{**SGD, **seen})
    else:
        run = run_of(project, **seen)
    with pytest.raises(NotAdoptableError) as raised:
        adopt(run, project)
    assert words in raised.value.message and raised.value.advice and raised.value.exit_code == 2


def test_a_run_of_a_configuration_is_one_already_and_a_script_that_is_gone_is_missed(project: Path) -> None:
    written = WrittenRun(project / "runs")
    written.end()
    with pytest.raises(NotAdoptableError, match="a run of a configuration already"):
        default_file(written.dir, project)
    run = run_of(project)
    (project / "train.py").unlink()
    with pytest.raises(ConfigError, match="cannot be read any more"):
        adopt(run, project)


def test_the_command_writes_a_file_once_and_says_what_is_left(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    run = run_of(project, batch=None)
    done = rankdeck_here("adopt", run.path, code=0)
    assert done.out == "train.toml\n"
    assert "Nothing is left" in done.err
    assert "global_batch = 8" in (project / "train.toml").read_text().splitlines()
    refused = rankdeck_here("adopt", run.path, code=2)
    assert "train.toml is there already" in refused.err and "--force" in refused.err
    again = run_of(project, changed("DataLoader(Rows(), batch_size=8", "batches(Rows()"), batch=None)
    told = rankdeck_here("adopt", again.path, "-o", "train.toml", "--force", "--json", code=0).json
    assert [problem["path"] for problem in told["problems"]] == [
        "data.use",
        "train.global_batch",
    ]
    checked = rankdeck_here("validate", "train.toml", code=2)
    assert "data.use is still to be filled in (train.toml, line" in checked.err


def test_what_a_run_has_not_done_yet_is_not_adopted_unsaid(project: Path) -> None:
    run = run_of(project)
    with (run.path / "guard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = rankdeck_here("adopt", run.path, "-o", project / "early.toml", code=0)
    assert f"{run.name} is running: this is what it has done so far." in done.err
    done = rankdeck_here("adopt", run.path, "-o", project / "late.toml", code=0)
    assert "is running" not in done.err


def test_a_script_that_goes_in_circles_is_read_to_an_end(project: Path) -> None:
    circles = """
        import torch
        from torch.utils.data import DataLoader

        def step(loss, data, width):
            loss = loss / 2
            loss.backward()
            step(loss / 2, data, width + width)
            for x in DataLoader(data):
                torch.optim.SGD(make(make, width).parameters(), lr=step(loss, data, width))

        if __name__ == "__main__":
            torch.manual_seed(seed := seed)
        """
    assert "model.use" in missing(adopted(project, circles + "        # " + "x" * 9 + "\n"))
