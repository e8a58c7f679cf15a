"""A folder's training scripts are found by reading them, the likeliest first."""

from __future__ import annotations

from pathlib import Path

from rankdeck.config.script import find_scripts

TRAIN = "import torch\nopt = torch.optim.SGD([])\nloss.backward()\nif __name__ == '__main__':\n    main()\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_training_scripts_come_first_and_torch_free_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "model.py", "from torch import nn\nclass Model(nn.Module): ...\n")
    write(tmp_path / "train.py", TRAIN)
    write(tmp_path / "examples" / "big" / "pretrain.py", TRAIN)
    write(tmp_path / "tests" / "test_train.py", TRAIN)
    write(tmp_path / "tidy.py", "import json\n# import torch\ntext = 'import torch'\n")
    write(tmp_path / "torchlike.py", "import torchlike\n")
    write(tmp_path / "later.py", "def f():\n    import os, torch as t\n")
    write(tmp_path / "lightning_main.py", "import pytorch_lightning as pl\npl.Trainer().fit(m)\n")
    names = [script.name for script in find_scripts(tmp_path)]
    assert names[:2] == ["train.py", "examples/big/pretrain.py"]
    assert set(names) == {
        *names[:2],
        "model.py",
        "later.py",
        "lightning_main.py",
        "tests/test_train.py",
    }
    assert names[-1] != "train.py" and names.index("lightning_main.py") < names.index("model.py")


def test_environments_hidden_linked_and_deep_folders_are_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a" / "train.py", TRAIN)
    for folder in (".hidden", "env", "node_modules", "x/site-packages", "1/2/3/4/5"):
        write(tmp_path / folder / "train.py", TRAIN)
    write(tmp_path / "env" / "pyvenv.cfg", "")
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    (tmp_path / "linked.py").symlink_to(tmp_path / "a" / "train.py")
    write(tmp_path / "broken.py", "import torch\n\0\x80")
    (tmp_path / "folder.py").mkdir()
    assert [script.name for script in find_scripts(tmp_path)] == ["a/train.py", "broken.py"]


def test_a_missing_folder_has_no_scripts(tmp_path: Path) -> None:
    assert find_scripts(tmp_path / "gone") == []
