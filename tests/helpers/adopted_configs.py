"""Scripts whose runs were seen, and the configurations that are adopted from them."""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path
from typing import Any

from rankdeck.adopt.adopt import AdoptedConfig, adopt
from rankdeck.run_dir import RunDir
from tests.helpers.observed_run import observed_run

SGD: dict[str, Any] = {
    "model": "__main__:Net",
    "optimizer": "torch.optim.sgd:SGD",
    "parameter_groups": [{"lr": 0.1, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False}],
    "batch": 8,
    "num_samples": 64,
    "precision": "float32",
}
SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(4, width)

    class Rows(Dataset):
        def __init__(self, count=64): ...

    def main():
        torch.manual_seed(4)
        model = Net(width=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(Rows(), batch_size=8, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    if __name__ == "__main__":
        main()
"""


def observed_script_run(project: Path, text: str = SCRIPT, **observed: Any) -> RunDir:
    script = project / "train.py"
    script.write_text(textwrap.dedent(text))
    return observed_run(project.parent / "runs", script, **{**SGD, **observed})


def adopt_script(project: Path, text: str = SCRIPT, **observed: Any) -> AdoptedConfig:
    return adopt(observed_script_run(project, text, **observed), project)


def config_tables(config: AdoptedConfig) -> dict[str, Any]:
    return tomllib.loads(config.text)


def missing_keys(config: AdoptedConfig) -> list[str | None]:
    assert {problem.code for problem in config.problems} <= {"fill-in"}
    return [problem.path for problem in config.problems]
