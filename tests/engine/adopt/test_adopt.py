"""From what was seen of a script and what its text says to a configuration; the rest is named as missing."""

from __future__ import annotations

import fcntl
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from rankdeck.adopt.adopt import adopt, default_file
from rankdeck.adopt.script_observation import NotAdoptableError
from rankdeck.base.errors import ConfigError
from rankdeck.config import from_text
from tests.helpers.adopted_configs import (
    SCRIPT,
    SGD,
    adopt_script,
    config_tables,
    missing_keys,
    observed_script_run,
)
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.observed_run import observed_run
from tests.helpers.written_run import WrittenRun, device_infos


def change_script(old: str, new: str) -> str:
    assert old in SCRIPT
    return SCRIPT.replace(old, new)


def test_an_observed_script_becomes_a_complete_configuration(project: Path) -> None:
    result = adopt_script(project)
    assert result.problems == []
    config = from_text(result.text, folder=project)
    assert (config.name, config.model.use) == ("train", f"{project / 'train.py'}:Net")
    assert config.model.args == {"width": 2} and config.data.use == f"{project / 'train.py'}:Rows"
    assert (config.loss.use, config.strategy.use, config.devices.use) == ("cross_entropy", "single", "cpu:1")
    train = config.train
    assert (train.steps, train.global_batch, train.seed, train.precision) == (12, 8, 4, "fp32")
    assert (train.optimizer.use, train.optimizer.options["lr"]) == ("sgd", 0.1)
    assert "The script also shuffles" in result.text


def test_a_script_that_trains_on_import_leaves_placeholders(project: Path) -> None:
    result = adopt_script(project, change_script('if __name__ == "__main__":\n        main()', "main()"))
    assert missing_keys(result) == ["model.use", "data.use"]
    assert 'if __name__ == "__main__":' in result.text and "train.py, line 23" in result.text
    assert config_tables(result)["train"]["global_batch"] == 8


def test_classes_of_an_imported_local_file_are_still_named(project: Path) -> None:
    (project / "nets.py").write_text("class Net:\n    def __init__(self, width): ...\n")
    text = change_script('if __name__ == "__main__":\n        main()', "main()")
    text = text.replace("    def main():", "    from nets import Net\n\n    def main():")
    text = text.replace("class Net(nn.Module)", "class Other(nn.Module)")
    result = adopt_script(project, text)
    assert config_tables(result)["model"] == {"use": "nets.py:Net", "args": {"width": 2}}
    assert missing_keys(result) == ["data.use"]


@pytest.mark.parametrize(
    ("expression", "args", "left"),
    [
        ("Net(args.width)", {"width": 5}, []),
        ("Net(2 * HALF)", {"width": 6}, []),
        ("Net(width=open('w').read())", {"width": "?"}, ["model.args.width"]),
    ],
)
def test_model_arguments_have_the_values_of_the_run(
    project: Path, expression: str, args: dict[str, Any], left: list[str]
) -> None:
    parser = """
        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, default=2)
        parser.add_argument("--name", type=lambda text: text)
        args = parser.parse_args()
        """
    text = change_script(
        "model = Net(width=2)", f"{parser}model = Net(width=0)".replace("Net(width=0)", expression)
    )
    text = text.replace("    def main", "    import argparse\n    HALF = 3\n\n    def main", 1)
    result = adopt_script(project, text, settings={"args": ["--width", "5", "--name=x"]})
    assert config_tables(result)["model"]["args"] == args and missing_keys(result) == left


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model = Net(width=2)", "model = nn.Sequential(nn.Linear(4, 2), nn.Tanh()).to('cpu')"),
        ("model = Net(width=2)", "model = make_all()[0]"),
    ],
)
def test_a_model_without_a_factory_gets_a_factory_to_write(project: Path, old: str, new: str) -> None:
    result = adopt_script(project, change_script(old, new))
    assert missing_keys(result) == ["model.use"]
    assert "def build_model():" in result.text and "train.py, line 1" in result.text


def test_a_lightning_module_without_forward_is_not_named(project: Path) -> None:
    module = "def training_step(self, batch, index): ..."
    text = change_script("model = Net(width=2)", "model = Lit(width=2)")
    for methods, left in ((module, ["model.use"]), (f"{module}\n        def forward(self, x): ...", [])):
        lit = f"    class Lit(nn.Module):\n        def __init__(self, width): ...\n        {methods}\n\n"
        result = adopt_script(project, text.replace("    def main", lit + "    def main", 1))
        assert missing_keys(result) == left
        assert ("a training_step but no" in result.text) == bool(left)


def test_a_wrapped_and_moved_model_is_traced_to_its_factory(project: Path) -> None:
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
    result = adopt_script(project, text, accumulate=2, num_samples=60)
    tables = config_tables(result)
    assert result.problems == []
    assert tables["model"] == {"use": "train.py:build", "args": {"width": 64}}
    assert tables["data"] == {"use": "train.py:get_data", "order": "given"}
    assert tables["loss"]["use"] == "mse"
    assert (tables["train"]["global_batch"], tables["train"]["accumulate"]) == (16, 2)
    assert "does not divide its loss" not in result.text
    assert (
        "does not divide its loss"
        in adopt_script(project, text.replace("loss / 2", "loss"), accumulate=2).text
    )


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
def test_the_wrapper_sets_the_strategy_and_ranks_the_global_batch(
    project: Path, wrapper: str, options: dict[str, Any], strategy: dict[str, Any], use: str
) -> None:
    tables = config_tables(adopt_script(project, ranks=2, wrapper=wrapper, wrapper_options=options))
    assert tables["strategy"] == strategy and tables["devices"]["use"] == use
    assert tables["train"]["global_batch"] == 16


def test_gpus_are_named_by_uuid_unless_devices_were_typed(project: Path) -> None:
    gpus = device_infos(2, kind="gpu")
    tables = config_tables(adopt_script(project, ranks=2, wrapper="DistributedDataParallel", devices=gpus))
    assert tables["devices"]["use"] == "gpu:GPU-00000000,GPU-00000001"
    options = {"device_ids": [0, 1]}
    tables = config_tables(
        adopt_script(project, wrapper="DataParallel", wrapper_options=options, devices=gpus)
    )
    assert (tables["strategy"]["use"], tables["train"]["global_batch"]) == ("dp", 8)
    assert tables["devices"]["use"] == "gpu:GPU-00000000,GPU-00000001"
    alone = config_tables(adopt_script(project, devices=gpus))
    assert (alone["strategy"]["use"], alone["devices"]["use"]) == ("single", "gpu:GPU-00000000")
    run = observed_script_run(project, devices=gpus, selection="gpu:1")
    assert config_tables(adopt(run, project))["devices"]["use"] == "gpu:1"


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
def test_an_optimizer_is_named_by_catalog_or_by_class(
    project: Path, optimizer: str, group: dict[str, Any], table: dict[str, Any]
) -> None:
    result = adopt_script(project, optimizer=optimizer, parameter_groups=[group])
    assert config_tables(result)["train"]["optimizer"] == table and result.problems == []


def test_a_user_optimizer_is_named_if_its_file_can_be_imported(project: Path) -> None:
    text = change_script("    def main", "    class Mine(torch.optim.Optimizer): ...\n\n    def main")
    mine: dict[str, Any] = {"optimizer": "__main__:Mine", "parameter_groups": [{"lr": 0.1}]}
    tables = config_tables(adopt_script(project, text, **mine))
    assert tables["train"]["optimizer"] == {"use": "train.py:Mine", "lr": 0.1}
    trains = text.replace('if __name__ == "__main__":\n        main()', "main()")
    assert "train.optimizer.use" in missing_keys(adopt_script(project, trains, **mine))


def test_the_largest_parameter_group_gives_the_options(project: Path) -> None:
    groups = [
        {"lr": 0.1, "momentum": 0.9, "weight_decay": decay, "num_parameters": count}
        for decay, count in ((0.0, 8), (0.5, 900))
    ]
    result = adopt_script(project, parameter_groups=groups)
    assert config_tables(result)["train"]["optimizer"] == {
        "use": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.5,
    }
    assert "It has 2 parameter groups that differ in weight_decay." in result.text
    assert "parameter groups" not in adopt_script(project, parameter_groups=groups[:1]).text


@pytest.mark.parametrize("name", ["pack", "pack.train"])
def test_a_module_is_read_where_python_m_finds_it(project: Path, name: str) -> None:
    (project / "pack").mkdir()
    file = project / "pack" / ("train.py" if "." in name else "__main__.py")
    file.write_text(textwrap.dedent(SCRIPT))
    run = observed_run(project.parent / "runs", project / name, settings={"kind": "module"}, **SGD)
    tables = config_tables(adopt(run, project))
    assert tables["model"] == {"use": f"pack/{file.name}:Net", "args": {"width": 2}}
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
def test_imports_from_the_package_of_a_module_are_resolved(project: Path, line: str, use: str) -> None:
    (project / "pack").mkdir()
    (project / "pack/parts.py").write_text("class Net:\n    def __init__(self, width): ...\n")
    (project / "pack/around.py").write_text("from . import parts\nclass Net(parts.Net): ...\n")
    text = SCRIPT.replace("class Net(", "class Other(").replace(
        "    import torch\n", f"    import torch\n    {line}\n", 1
    )
    (project / "pack/train.py").write_text(textwrap.dedent(text))
    run = observed_run(project.parent / "runs", project / "pack.train", settings={"kind": "module"}, **SGD)
    assert config_tables(adopt(run, project))["model"]["use"] == use


def test_a_changing_learning_rate_becomes_a_schedule_or_placeholder(project: Path) -> None:
    line = [0.1 * (1 - step / 11) for step in range(12)]
    assert config_tables(adopt_script(project, rates=line))["train"]["schedule"]["use"] == "linear"
    stairs = [0.1, 0.1, 0.01, 0.01, 0.1, 0.1, 0.01, 0.01, 0.1, 0.1, 0.01, None]
    result = adopt_script(project, rates=stairs)
    assert missing_keys(result) == ["train.schedule"]
    assert "The learning rate went from 0.1 in step 1 to 0.01 in step 11." in result.text


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
def test_a_loss_is_named_if_the_catalog_has_it(project: Path, loss: str, use: str) -> None:
    result = adopt_script(project, change_script("loss = nn.functional.cross_entropy(model(x), y)", loss))
    assert config_tables(result)["loss"]["use"] == use
    assert ("def loss(outputs, targets):" in result.text) == (use == "?")


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"num_steps": 0}, "No optimizer step was observed"),
        (
            {"other_optimizers": {"torch.optim.adam:Adam": 12}},
            "trains with several optimizers: SGD (steps: 12), Adam (steps: 12).",
        ),
        ({"optimizer": "torch.optim.lbfgs:LBFGS"}, "LBFGS"),
        ({"ranks": 2}, "2 ranks without a parallel wrapper"),
        ({"settings": {"observe": "none"}, "num_steps": 0}, "was not observed"),
        ({"settings": {"kind": "program"}, "script_name": "bash"}, "whose Python file is unknown"),
        (
            {
                "ranks": 2,
                "more": [
                    events.Collectives(rank=0, step=1, calls={"all_reduce": 3}, num_bytes={}, seconds={})
                ],
            },
            "through the script's own collectives (all_reduce)",
        ),
    ],
)
def test_a_script_that_no_configuration_can_match_is_refused(
    project: Path, observation: dict[str, Any], message: str
) -> None:
    if observation.pop("script_name", None):
        run = observed_run(project, project / "bash", **{**SGD, **observation})
    else:
        run = observed_script_run(project, **observation)
    with pytest.raises(NotAdoptableError) as raised:
        adopt(run, project)
    assert message in raised.value.message and raised.value.advice and raised.value.exit_code == 2


def test_adopting_a_configuration_or_a_deleted_script_fails(project: Path) -> None:
    written = WrittenRun(project / "runs")
    written.end()
    with pytest.raises(NotAdoptableError, match="already has a configuration"):
        default_file(written.dir, project)
    run = observed_script_run(project)
    (project / "train.py").unlink()
    with pytest.raises(ConfigError, match="can no longer be read"):
        adopt(run, project)


def test_the_command_writes_a_new_file_and_lists_placeholders(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    run = observed_script_run(project, batch=None)
    done = rankdeck_in_process("adopt", run.path, exit_code=0)
    assert done.out == "train.toml\n"
    assert "Nothing is left" in done.err
    assert "global_batch = 8" in (project / "train.toml").read_text().splitlines()
    refused = rankdeck_in_process("adopt", run.path, exit_code=2)
    assert "train.toml already exists" in refused.err and "--force" in refused.err
    again = observed_script_run(
        project, change_script("DataLoader(Rows(), batch_size=8", "batches(Rows()"), batch=None
    )
    result = rankdeck_in_process(
        "adopt", again.path, "-o", "train.toml", "--force", "--json", exit_code=0
    ).json
    assert [problem["path"] for problem in result["problems"]] == [
        "data.use",
        "train.global_batch",
    ]
    checked = rankdeck_in_process("validate", "train.toml", exit_code=2)
    assert "data.use has no value yet (train.toml, line" in checked.err


def test_adopting_a_running_run_prints_a_warning(project: Path) -> None:
    run = observed_script_run(project)
    with (run.path / "guard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = rankdeck_in_process("adopt", run.path, "-o", project / "early.toml", exit_code=0)
    assert f"{run.name} is still running: the file covers only what it has done so far." in done.err
    done = rankdeck_in_process("adopt", run.path, "-o", project / "late.toml", exit_code=0)
    assert "is running" not in done.err


def test_reading_a_script_with_circular_names_terminates(project: Path) -> None:
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
    assert "model.use" in missing_keys(adopt_script(project, circles + "        # " + "x" * 9 + "\n"))
