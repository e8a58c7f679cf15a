"""Pictures: classes from folders, chance from (seed, epoch, sample) alone, and errors that name the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from rankdeck.base.errors import DataError
from rankdeck.data.base import SampleKey
from rankdeck.data.images import Images
from rankdeck.data.loader import build_loader
from rankdeck.data.samplers import TrainBatchSampler

COLORS = {"blue": (0, 0, 255), "red": (255, 0, 0)}


def write_images(folder: Path, num_pictures: int, suffix: str = ".png") -> None:
    """A gradient from the class's colour to black, so that every part and mirror image differs."""
    for name, colour in COLORS.items():
        (folder / name).mkdir(parents=True)
        for number in range(num_pictures):
            picture = Image.linear_gradient("L").resize((40 + number, 30))
            Image.composite(Image.new("RGB", picture.size, colour), picture.convert("RGB"), picture).save(
                folder / name / f"{number}{suffix}"
            )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_images(tmp_path / "pictures", 20)
    return tmp_path / "pictures"


def test_the_spec_matches_the_loaded_data(folder: Path) -> None:
    source = Images({"path": str(folder), "size": 16})
    card = source.describe()
    train, heldout = source.load()
    assert heldout is not None
    assert card.classes == 2
    for inputs, target in (train[0], heldout[0]):
        assert (inputs.shape, inputs.dtype) == (card.input_shape, card.input_dtype)
        assert (target.shape, target.dtype) == (card.target_shape, card.target_dtype)


def test_the_split_is_disjoint_and_stable(folder: Path) -> None:
    train, heldout = Images({"path": str(folder), "size": 16}).load()
    assert heldout is not None
    before = {file for file, _ in heldout.samples}
    assert len(train) + len(heldout) == 40
    assert before.isdisjoint({file for file, _ in train.samples})
    Image.new("RGB", (9, 9)).save(folder / "red" / "another.png")
    _, heldout = Images({"path": str(folder), "size": 16}).load()
    assert heldout is not None
    assert before <= {file for file, _ in heldout.samples}


def test_folders_can_define_the_split(tmp_path: Path) -> None:
    write_images(tmp_path / "train", 3, ".jpg")
    write_images(tmp_path / "val", 2)
    train, heldout = Images({"path": str(tmp_path), "size": 8}).load()
    assert heldout is not None
    assert (len(train), len(heldout)) == (6, 4)
    assert [target for _, target in heldout.samples] == [0, 0, 1, 1]


def test_augmentation_depends_on_seed_epoch_and_sample_only(folder: Path) -> None:
    train, heldout = Images({"path": str(folder), "size": 16}).load()
    first = train[SampleKey(0, 1, 5)][0]
    torch.manual_seed(7)
    assert torch.equal(first, train[SampleKey(0, 1, 5)][0])
    for other in (SampleKey(0, 2, 5), SampleKey(1, 1, 5)):
        assert not torch.equal(first, train[other][0])
    assert heldout is not None
    assert torch.equal(heldout[0][0], heldout[0][0])


def test_the_number_of_workers_changes_no_image(folder: Path) -> None:
    train, _ = Images({"path": str(folder), "size": 8}).load()

    def pictures(workers: int) -> torch.Tensor:
        batches = TrainBatchSampler(len(train), 8, steps=6)
        loader = build_loader(train, batches, workers=workers)
        try:
            return torch.cat([inputs for inputs, _ in loader])
        finally:
            loader.close()

    assert torch.equal(pictures(0), pictures(2))


def test_classes_are_learned_by_color(folder: Path) -> None:
    train, _ = Images({"path": str(folder), "size": 8}).load()
    for index in range(len(train)):
        inputs, target = train[SampleKey(0, 0, index)]
        red, blue = inputs[0].mean(), inputs[2].mean()
        assert (red > blue) == (target == 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_named_even_from_a_worker(folder: Path, workers: int) -> None:
    for file in folder.glob("*/*.png"):
        file.write_bytes(file.read_bytes()[:60])
    train, _ = Images({"path": str(folder), "size": 8}).load()
    loader = build_loader(train, TrainBatchSampler(len(train), 4, steps=1), workers=workers)
    with pytest.raises(DataError, match=r"The image .*\.png cannot be read") as caught:
        list(loader)
    loader.close()
    assert caught.value.problem.code == "data.picture"
    assert caught.value.problem.path is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "cannot be read"),
        ("flat", "contains no class folders"),
        ("hollow", "they contain no images"),
    ],
)
def test_a_path_without_images_is_refused_with_advice(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "hollow" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=message) as caught:
        Images({"path": str(tmp_path / name), "size": 8}).load()
    assert name in caught.value.message
    assert caught.value.advice
