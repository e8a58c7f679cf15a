"""Pictures in one folder per class, decoded when they are asked for.

    path/cat/1.jpg, path/dog/2.jpg              a tenth is held out, chosen by a hash of the file's name
    path/train/cat/1.jpg, path/val/cat/2.jpg    or the folders say it (val, valid, validation or test)

Training cuts a random part of each picture and mirrors half of them; chance follows from (seed, epoch,
sample) alone, so a run that is resumed, or that reads with another number of workers, sees the same pictures.
Held-out pictures are cut from the centre.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from rankdeck.base.errors import DataError
from rankdeck.base.phrases import phrase
from rankdeck.config.catalog import ImagesArgs
from rankdeck.data.base import DataSpec, SampleKey

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
HELDOUT_FOLDERS = ("val", "valid", "validation", "test")
HELDOUT_DIVISOR = 10
RESIZE_MARGIN = 256 / 224
MIN_AREA = 0.25
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

ImageSample = tuple[Path, int]


class Images:
    """Inputs (3, size, size) float32, normalised as is usual for ImageNet; targets () int64, classes in the
    order of their names.
    """

    def __init__(self, args: Mapping[str, Any]) -> None:
        self.args = ImagesArgs.model_validate(dict(args))
        self.root = Path(self.args.path)

    def describe(self) -> DataSpec:
        """Lists the class folders, reads no picture.

        Raises: DataError for a path that cannot be read or has no class folders.
        """
        return DataSpec(
            input_shape=(3, self.args.size, self.args.size),
            input_dtype=torch.float32,
            target_shape=(),
            target_dtype=torch.int64,
            classes=len(self._class_names()),
        )

    def prepare(self) -> None:
        """Nothing to make: pictures are decoded as they are asked for."""

    def load(self) -> tuple[ImageSamples, ImageSamples | None]:
        """Raises: DataError for a path that cannot be read, or without pictures."""
        classes = self._class_names()
        training, heldout = self._split(classes)
        if not training:
            raise DataError(
                phrase("data.args.path = {path} has class folders, but no pictures in them.", path=self.root),
                path="data.args.path",
                advice=phrase("Pictures end in {endings}.", endings=", ".join(sorted(SUFFIXES))),
            )
        size = self.args.size
        return TrainImageSamples(training, size), ImageSamples(heldout, size) if heldout else None

    def _split(self, classes: Sequence[str]) -> tuple[list[ImageSample], list[ImageSample]]:
        train_folder = self.root / "train"
        if not train_folder.is_dir():
            samples = _samples(self.root, classes)
            heldout = [sample for sample in samples if _is_heldout(sample[0])]
            if not heldout and len(samples) > 1:
                heldout = [min(samples, key=lambda sample: _name_hash(sample[0]))]
            kept = set(heldout)
            return [sample for sample in samples if sample not in kept], heldout
        for name in HELDOUT_FOLDERS:
            if (self.root / name).is_dir():
                return _samples(train_folder, classes), _samples(self.root / name, classes)
        return _samples(train_folder, classes), []

    def _class_names(self) -> list[str]:
        train_folder = self.root / "train"
        folder = train_folder if train_folder.is_dir() else self.root
        try:
            names = sorted(
                entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."
            )
        except OSError as error:
            raise DataError(
                phrase(
                    "data.args.path = {folder} cannot be read: {why}.",
                    folder=folder,
                    why=error.strerror or error,
                ),
                path="data.args.path",
                advice=phrase("Name a folder that has one folder of pictures per class."),
            ) from error
        if not names:
            raise DataError(
                phrase("data.args.path = {folder} has no folders in it.", folder=folder),
                path="data.args.path",
                advice=phrase(
                    "Put the pictures of each class into a folder of its own, named after the class."
                ),
            )
        return names


class ImageSamples:
    """Held-out pictures: the shorter side is scaled a little above `size`, then the centre is cut out."""

    is_random = False

    def __init__(self, samples: Sequence[ImageSample], size: int) -> None:
        self.samples = list(samples)
        self.size = size

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Raises: DataError that names a picture which cannot be read."""
        file, target = self.samples[index]
        picture = _open_image(file)
        scale = self.size * RESIZE_MARGIN / min(picture.size)
        width, height = (max(self.size, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        return _as_tensor(picture.crop((left, top, left + self.size, top + self.size))), torch.tensor(target)


class TrainImageSamples(ImageSamples):
    """Training pictures: a random part of each, half of them mirrored, by a generator of its own. Indexed by
    a Draw; a plain index is one of epoch 0.
    """

    needs_epoch = True

    def __getitem__(self, index: int | SampleKey) -> tuple[Tensor, Tensor]:
        """Raises: DataError that names a picture which cannot be read."""
        seed, epoch, number = index if isinstance(index, tuple) else (0, 0, index)
        chance = random.Random(f"{seed}:{epoch}:{number}")
        file, target = self.samples[number]
        picture = _open_image(file)
        box = random_box(*picture.size, chance)
        picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if chance.random() < 0.5:
            picture = ImageOps.mirror(picture)
        return _as_tensor(picture), torch.tensor(target)


def random_box(width: int, height: int, chance: random.Random) -> tuple[float, float, float, float]:
    """A part of a picture: MIN_AREA to all of its area, its sides at 3:4 to 4:3, as far as that fits."""
    area = width * height * chance.uniform(MIN_AREA, 1.0)
    ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
    box_width = min(width, math.sqrt(area * ratio))
    box_height = min(height, math.sqrt(area / ratio))
    left = chance.uniform(0, width - box_width)
    top = chance.uniform(0, height - box_height)
    return left, top, min(width, left + box_width), min(height, top + box_height)


def _open_image(file: Path) -> Image.Image:
    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            phrase("The picture {file} cannot be read: {error}.", file=file, error=error),
            code="data.picture",
            path=str(file),
            advice=phrase("Remove the file, or replace it by a whole picture."),
        ) from error


def _as_tensor(picture: Image.Image) -> Tensor:
    """(3, H, W) float32, normalised."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div_(255)
    return pixels.sub_(MEAN).div_(STD).contiguous()


def _samples(folder: Path, classes: Sequence[str]) -> list[ImageSample]:
    """Every picture below the class folders, sorted; a class without a folder here has none."""
    samples: list[ImageSample] = []
    for target, name in enumerate(classes):
        files = sorted(file for file in (folder / name).rglob("*") if file.suffix.lower() in SUFFIXES)
        samples += [(file, target) for file in files]
    return samples


def _name_hash(file: Path) -> int:
    return int.from_bytes(hashlib.blake2b(f"{file.parent.name}/{file.name}".encode(), digest_size=8).digest())


def _is_heldout(file: Path) -> bool:
    return _name_hash(file) % HELDOUT_DIVISOR == 0
