"""What a script's text tells of a configuration: values, what makes what, losses, seeds; what is not taken
over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.adopted_configs import SCRIPT, SGD, adopt_script, config_tables, missing_keys

LOSS = "loss = nn.functional.cross_entropy(model(x), y)"


def change_script(old: str, new: str) -> str:
    assert old in SCRIPT
    return SCRIPT.replace(old, new)


@pytest.mark.parametrize(
    ("seeds", "seed"),
    [
        ("torch.manual_seed(int(os.environ['SEED']))", "?"),
        ("torch.manual_seed(-1)", "?"),
        ("torch.manual_seed(SEEDS['torch'])", 5),
        ("torch.manual_seed(make_seed())", 6),
        ("rows = torch.Generator(); rows.manual_seed(3)", None),
        ("torch.cuda.manual_seed(8); torch.manual_seed(9)", 9),
    ],
)
def test_a_seed_is_read_from_the_source_or_left_open(
    project: Path, seeds: str, seed: int | str | None
) -> None:
    text = change_script("torch.manual_seed(4)", seeds).replace(
        "    def main",
        "    import os\n    SEEDS = {'torch': 5}\n    def make_seed(): return int('6')\n\n    def main",
        1,
    )
    result = adopt_script(project, text)
    assert config_tables(result)["train"].get("seed") == seed
    assert missing_keys(result) == (["train.seed"] if seed == "?" else [])
    assert ("sets a seed whose value could not be read" in result.text) == (seed == "?")


@pytest.mark.parametrize(
    ("loss", "use", "returns"),
    [
        ("loss = (model(x) - y).pow(2).mean()", "mse", None),
        ("loss = ((model(x) - y) ** 2).mean()", "mse", None),
        ("loss = torch.mean(torch.square(model(x) - y))", "mse", None),
        ("loss = (model(x) - y).pow(3).mean()", "?", "mean * len(targets), len(targets)"),
        ("loss = torch.abs(y - model(x)).mean()", "?", "(outputs - targets).abs().sum(), targets.numel()"),
        ("loss = ((model(x) - y) ** 2).sum()", "?", "((outputs - targets) ** 2).sum(), len(targets)"),
        (
            "loss = nn.functional.nll_loss(model(x), y, ignore_index=3)",
            "?",
            "torch.nn.functional.nll_loss(outputs, targets, ignore_index=3) * len(targets), len(targets)",
        ),
        (
            "loss = nn.MSELoss(reduction='sum')(model(x), y)",
            "?",
            "torch.nn.MSELoss(reduction='sum')(outputs, targets), len(targets)",
        ),
        ("loss = mine(model(x), y)", "?", "mine(outputs, targets) * len(targets), len(targets)"),
        ("loss = mine(model, x, y)", "?", "mean * len(targets), len(targets)"),
        ("loss = mse(model(x), y) + 0.1 * penalty", "?", "mean * len(targets), len(targets)"),
    ],
)
def test_a_written_out_loss_is_named_or_explained(
    project: Path, loss: str, use: str, returns: str | None
) -> None:
    result = adopt_script(project, change_script(LOSS, loss))
    assert config_tables(result)["loss"]["use"] == use
    assert returns is None or f"#         return {returns}\n" in result.text
    assert ("is a sum over the batch." in result.text) == ("sum" in loss)
    assert ("mean absolute error (L1)" in result.text) == ("abs" in loss)


def test_a_loss_factor_is_noted_unless_accumulation_divides_by_it(project: Path) -> None:
    text = change_script(LOSS, "loss = 0.5 * nn.functional.mse_loss(model(x), y)")
    result = adopt_script(project, text)
    assert config_tables(result)["loss"]["use"] == "mse"
    assert "#     0.5 * nn.functional.mse_loss(model(x), y)\n" in result.text
    halves = change_script(LOSS, f"{LOSS} / 2")
    assert "scales the loss" in adopt_script(project, halves).text
    assert "scales the loss" not in adopt_script(project, halves, accumulate=2).text


def test_accelerate_with_accumulation_counts_as_divided(project: Path) -> None:
    text = change_script(
        "def main():", "def main():\n        it = Accelerator(gradient_accumulation_steps=2)"
    )
    text = text.replace("loss.backward()", "it.backward(loss)")
    assert "does not divide its loss" not in adopt_script(project, text, accumulate=2).text
    text = text.replace("gradient_accumulation_steps=2", "")
    assert "does not divide its loss" in adopt_script(project, text, accumulate=2).text


CLASSES = """
    from dataclasses import dataclass
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from parts import Net, load, train_one

    @dataclass
    class Config:
        width: int
        rows: int = 40
        clip: float = 0.25
        batch = 8
        lr: float = 0.1

    class Fitter:
        def __init__(self, net, rows, config):
            self.config = config
            self.net = nn.parallel.DistributedDataParallel(net)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=config.lr)
            self.criterion = nn.MSELoss()
            self.rows = rows

        def fit(self):
            for x, y in DataLoader(self.rows, batch_size=self.config.batch):
                loss = self.criterion(self.net(x), y)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
                self.optimizer.step()

    def main():
        config = Config(3)
        torch.manual_seed(1)
        net, rows, extra = load(config.width, rows=config.rows)
        Fitter(net, rows, config).fit()

    if __name__ == "__main__":
        main()
"""
PARTS = """
class Net:
    def __init__(self, width): ...
class Rows:
    def __init__(self, count): ...
def load(width, rows):
    net = Net(width)
    return net, Rows(count=rows), None
"""


@pytest.mark.parametrize("expression", ["Config(3)", "Config(width=3)", "Config(3, 40)"])
def test_attributes_fields_and_returned_values_are_traced(project: Path, expression: str) -> None:
    (project / "parts.py").write_text(PARTS)
    result = adopt_script(project, CLASSES.replace("Config(3)", expression))
    tables = config_tables(result)
    assert missing_keys(result) == []
    assert tables["model"] == {"use": "parts.py:Net", "args": {"width": 3}}
    assert tables["data"] == {"use": "parts.py:Rows", "args": {"count": 40}, "order": "given"}
    assert (tables["loss"]["use"], tables["train"]["clip_norm"]) == ("mse", 0.25)


def test_a_reassigned_field_is_unknown(project: Path) -> None:
    (project / "parts.py").write_text(PARTS)
    text = CLASSES.replace("config = Config(3)", "config = Config(3); config.clip = best()")
    assert missing_keys(adopt_script(project, text)) == ["train.clip_norm"]


def test_a_field_of_a_function_that_returns_a_call_of_itself_is_unknown(project: Path) -> None:
    (project / "parts.py").write_text(PARTS)
    text = CLASSES.replace("config = Config(3)", "config = read()").replace(
        "    @dataclass", "    def read():\n        return read()\n\n    @dataclass"
    )
    assert "train.clip_norm" in missing_keys(adopt_script(project, text))


def test_a_parameter_has_the_value_that_the_importing_file_passes(project: Path) -> None:
    (project / "parts.py").write_text(
        "import torch\nclass Net: ...\ndef fix(seed): torch.manual_seed(seed)\n"
        "def train_one(net, x, y, criterion):\n    criterion(net(x), y).backward()\n"
    )
    text = """
        from torch import nn
        from torch.utils.data import DataLoader
        import torch
        from parts import Net, fix, train_one

        def main():
            fix(17)
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in DataLoader(rows, batch_size=8):
                train_one(net, x, y, nn.CrossEntropyLoss())
        """
    tables = config_tables(adopt_script(project, text))
    assert (tables["loss"]["use"], tables["train"]["seed"]) == ("cross_entropy", 17)


def test_a_model_with_an_object_argument_gets_a_factory_to_write(project: Path) -> None:
    text = change_script("Net(width=2)", "Net(Sizes())").replace(
        "    def main", "    class Sizes: ...\n\n    def main", 1
    )
    result = adopt_script(project, text)
    assert missing_keys(result) == ["model.use"] and "#         return Net(Sizes())\n" in result.text


@pytest.mark.parametrize(
    ("expression", "order"),
    [
        ("DataLoader(Rows(), **options)", "?"),
        ("DataLoader(Rows(), batch_size=8, sampler=RandomSampler(Rows(), replacement=True))", "?"),
        ("DataLoader(Rows(), batch_size=8, sampler=RandomSampler(Rows()))", "shuffled"),
    ],
)
def test_an_unknown_sample_order_becomes_a_placeholder(project: Path, expression: str, order: str) -> None:
    result = adopt_script(
        project, change_script("DataLoader(Rows(), batch_size=8, shuffle=True)", expression), num_samples=60
    )
    assert config_tables(result)["data"]["order"] == order
    assert ("last" in config_tables(result)["data"]) == (order != "?")


@pytest.mark.parametrize(
    ("expression", "batch", "data"),
    [
        ("DataLoader(Rows(), 6, True, num_workers=2)", 6, {"order": "shuffled", "workers": 2}),
        ("DataLoader(Rows(), 6, False, num_workers=0)", 6, {"order": "given"}),
        ("DataLoader(dataset=Rows(), batch_size=2 * 3, drop_last=True)", 6, {"order": "given"}),
        ("DataLoader(Rows(), 7)", 7, {"order": "given", "last": "keep"}),
    ],
)
def test_loader_arguments_are_read_by_name_and_position(
    project: Path, expression: str, batch: int, data: dict[str, Any]
) -> None:
    text = change_script("DataLoader(Rows(), batch_size=8, shuffle=True)", expression)
    result = adopt_script(project, text, batch=None, num_samples=60)
    tables = config_tables(result)
    assert tables["train"]["global_batch"] == batch and missing_keys(result) == []
    assert {key: value for key, value in tables["data"].items() if key != "use"} == data


def test_the_training_loader_is_recognized_by_its_name(project: Path) -> None:
    loaders = (
        "test_loader = DataLoader(Rows(2), batch_size=4); train_loader = DataLoader(Rows(3), batch_size=6)"
    )
    text = change_script("torch.manual_seed(4)", f"torch.manual_seed(4); {loaders}")
    text = text.replace("in DataLoader(Rows(), batch_size=8, shuffle=True)", "in train_loader")
    tables = config_tables(adopt_script(project, text, batch=None))
    assert tables["data"]["args"] == {"count": 3} and tables["train"]["global_batch"] == 6


@pytest.mark.parametrize(
    ("more", "clip"),
    [
        ("nn.utils.clip_grad_norm_(model.parameters(), 2)", 2.0),
        ("model.clip_grad_norm_(3.0)", 3.0),
        ("nn.utils.clip_grad_norm_(model.parameters(), read())", "?"),
        ("nn.utils.clip_grad_norm_(**options)", "?"),
        ("Trainer(gradient_clip_val=0.5)", 0.5),
        ("Trainer(max_epochs=1)", None),
        ("TrainingArguments(max_grad_norm=0.0)", None),
        ("TrainingArguments('out')", 1.0),
    ],
)
def test_clip_norm_is_read_from_calls_and_trainer_options(
    project: Path, more: str, clip: float | str | None
) -> None:
    text = change_script("optimizer.step()", f"{more}; optimizer.step()")
    assert config_tables(adopt_script(project, text))["train"].get("clip_norm") == clip


def test_learning_rate_schedulers_are_listed(project: Path) -> None:
    scheduler = "torch.optim.lr_scheduler.StepLR(optimizer, 30)"
    text = change_script("loss.backward()", f"sched = {scheduler}; loss.backward(); sched.step()")
    still = adopt_script(project, text).text
    assert "The learning rate was constant in all observed steps, but a scheduler may change it:" in still
    assert still.count("lr_scheduler") == 1 and f"train.py, line 20: {scheduler}" in still
    moved = adopt_script(project, text, rates=[0.1] * 6 + [0.01] * 6)
    assert missing_keys(moved) == ["train.schedule"] and f"train.py, line 20: {scheduler}" in moved.text


def test_scheduler_entries_of_a_group_are_no_optimizer_options(project: Path) -> None:
    group = {"lr": 0.1, "betas": [0.9, 0.999], "initial_lr": 0.004, "max_lr": 0.1, "min_lr": 4e-7}
    group |= {"max_momentum": 0.95, "base_momentum": 0.85}
    result = adopt_script(project, optimizer="torch.optim.adamw:AdamW", parameter_groups=[group])
    assert config_tables(result)["train"]["optimizer"] == {"use": "adamw", "lr": 0.1, "weight_decay": 0.0}
    assert "Its scheduler also changes the momentum" in result.text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("optimizer.step()", "optimizer.step(); model.eval()", "line 21: evaluation."),
        ("optimizer.step()", "optimizer.step(); waits += patience", "line 21: possible early stopping."),
        ("optimizer.step()", "optimizer.step(); EarlyStopping()(loss)", "line 21: possible early stopping."),
        ("optimizer.step()", "optimizer.step(); ModelEmaV2(model)", "line 21: weight averaging."),
        (
            "optimizer.step()",
            "clip_grad_value_(model.parameters(), 1)",
            "line 21: gradient clipping by value.",
        ),
        ("Net(width=2)", "Net(width=2); model.load_state_dict(s)", "line 16: loading of a state dict."),
        ("Net(width=2)", "Net(width=2); model.layer.requires_grad_(False)", "line 16: frozen weights."),
        ("Net(width=2)", "Net(width=2); model.layer.bias.requires_grad = False", "line 16: frozen weights."),
        ("model(x)", "model(x.view(-1, 4))", "model input computed from the batch, x.view(-1, 4)."),
        ("            loss =", "            x = x / 255; loss =", "computed from the batch, x / 255."),
        ("model(x)", "model(x.to('cpu'))", ""),
        ("Net(width=2)", "Net(width=2).requires_grad_(True)", ""),
        ("torch.manual_seed(4)", "schema = [Rows.values()]; torch.manual_seed(4)", ""),
    ],
)
def test_features_without_a_configuration_option_are_listed(
    project: Path, old: str, new: str, message: str
) -> None:
    text = " ".join(adopt_script(project, change_script(old, new)).text.replace("\n#", "").split())
    assert message in text
    assert ("this configuration does not reproduce" in text) == bool(message)


def test_reassigned_argparse_options_are_unknown(project: Path) -> None:
    parser = "parser = argparse.ArgumentParser(); parser.add_argument('--width', type=int, default=2)"
    text = change_script(
        "model = Net(width=2)", f"{parser}; args = parser.parse_args(); model = Net(args.width)"
    )
    assert config_tables(adopt_script(project, text))["model"]["args"] == {"width": 2}
    again = text.replace("; model = Net", "; args.width = 3; model = Net")
    settings: dict[str, Any] = {"model": SGD["model"]}
    assert missing_keys(adopt_script(project, again, **settings)) == ["model.args.width"]


@pytest.mark.parametrize("wraps", ["fully_shard(net)", "net = DDP(net)", "net.share_memory()"])
def test_a_factory_that_also_wraps_the_model_is_not_named(project: Path, wraps: str) -> None:
    build = f"def build():\n        net = Net(2)\n        {wraps}\n        return net\n"
    text = change_script("Net(width=2)", "build()").replace("    def main", f"    {build}\n    def main", 1)
    result = adopt_script(project, text, ranks=2, wrapper="fully_shard")
    is_wrapped = wraps != "net.share_memory()"
    assert missing_keys(result) == (["model.use"] if is_wrapped else [])
    assert ("Here, the strategy wraps the model" in result.text) == is_wrapped


HUGGING_FACE = """
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
    from texts import Texts

    def main():
        set_seed(3)
        model = GPT2LMHeadModel(GPT2Config(n_layer=1))
        args = TrainingArguments("out", per_device_train_batch_size=8, max_grad_norm=0.5)
        Trainer(model=model, args=args, train_dataset=Texts(rows=64)).train()

    main()
"""


def test_data_clip_norm_and_loss_are_read_from_a_trainer(project: Path) -> None:
    (project / "texts.py").write_text("class Texts:\n    def __init__(self, rows): ...\n")
    result = adopt_script(project, HUGGING_FACE)
    tables = config_tables(result)
    assert missing_keys(result) == ["model.use"]
    assert "#         return GPT2LMHeadModel(GPT2Config(n_layer=1))\n" in result.text
    assert tables["data"] == {"use": "texts.py:Texts", "args": {"rows": 64}, "order": "shuffled"}
    assert (tables["loss"]["use"], tables["train"]["clip_norm"], tables["train"]["seed"]) == ("model", 0.5, 3)
    assert "does not divide its loss" not in adopt_script(project, HUGGING_FACE, accumulate=2).text
    source = HUGGING_FACE.replace(
        "    main()\n", "    class Mine(Trainer):\n        def compute_loss(self): ...\n"
    )
    assert config_tables(adopt_script(project, source))["loss"]["use"] == "?"
