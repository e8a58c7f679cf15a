"""Reads images from one folder per class and decodes each image when it is accessed.

    path/cat/1.jpg, path/dog/2.jpg              a tenth is held out, chosen by a hash of the file name
    path/train/cat/1.jpg, path/val/cat/2.jpg    val (or valid, validation, test) is held out

Training takes a random crop of each image and mirrors half of the crops. The randomness depends on (seed,
epoch, sample) only, so a resumed run, or a run with a different number of workers, uses the same images.
Held-out images are cropped at the centre.
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
# The usual evaluation on ImageNet: resize to 256, crop 224.
RESIZE_MARGIN = 256 / 224
MIN_AREA = 0.25
# ImageNet's channel statistics.
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

ImageSample = tuple[Path, int]


class Images:
    """Image data set: inputs (3, size, size) float32, normalised as for ImageNet; targets () int64, the index
    of the class in the sorted class names."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self.args = ImagesArgs.model_validate(dict(args))
        self.root = Path(self.args.path)

    def describe(self) -> DataSpec:
        """Return the DataSpec, from the class folders alone.

        Raises:
            DataError: the path cannot be read or has no class folders.
        """
        return DataSpec(
            input_shape=(3, self.args.size, self.args.size),
            input_dtype=torch.float32,
            target_shape=(),
            target_dtype=torch.int64,
            classes=len(self._class_names()),
        )

    def prepare(self) -> None:
        """Do nothing: images are decoded on access."""

    def load(self) -> tuple[ImageSamples, ImageSamples | None]:
        """Return the training samples and the held-out samples (None if there are none).

        Raises:
            DataError: the path cannot be read or contains no images.
        """
        classes = self._class_names()
        training, heldout = self._split(classes)
        if not training:
            raise DataError(
                phrase(
                    "data.args.path = {path} has class folders, but they contain no images.", path=self.root
                ),
                path="data.args.path",
                advice=phrase("Supported image files: {endings}.", endings=", ".join(sorted(SUFFIXES))),
            )
        size = self.args.size
        return TrainImageSamples(training, size), ImageSamples(heldout, size) if heldout else None

    def _split(self, classes: Sequence[str]) -> tuple[list[ImageSample], list[ImageSample]]:
        train_folder = self.root / "train"
        if not train_folder.is_dir():
            samples = _samples(self.root, classes)
            heldout = [sample for sample in samples if _is_heldout(sample[0])]
            if not heldout and len(samples) > 1:
                # A small set may have no file in the held-out tenth; hold out one.
                heldout = [min(samples, key=lambda sample: _name_hash(sample[0]))]
            heldout_set = set(heldout)
            return [sample for sample in samples if sample not in heldout_set], heldout
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
                advice=phrase("Specify a folder that contains one folder of images per class."),
            ) from error
        if not names:
            raise DataError(
                phrase("data.args.path = {folder} contains no class folders.", folder=folder),
                path="data.args.path",
                advice=phrase("Put the images of each class in a separate folder named after the class."),
            )
        return names


class ImageSamples:
    """Held-out images, scaled so that the shorter side slightly exceeds `size`, then centre-cropped."""

    is_random = False

    def __init__(self, samples: Sequence[ImageSample], size: int) -> None:
        self.samples = list(samples)
        self.size = size

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the image and its class.

        Raises:
            DataError: the image cannot be read; the error names the file.
        """
        file, target = self.samples[index]
        picture = _open_image(file)
        scale = self.size * RESIZE_MARGIN / min(picture.size)
        width, height = (max(self.size, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        return _as_tensor(picture.crop((left, top, left + self.size, top + self.size))), torch.tensor(target)


class TrainImageSamples(ImageSamples):
    """Training images, cropped at random; half of the crops are mirrored. The generator is seeded per sample.

    Indexed by a SampleKey; a plain index means seed 0 and epoch 0.
    """

    needs_epoch = True

    def __getitem__(self, index: int | SampleKey) -> tuple[Tensor, Tensor]:
        """Return the augmented image and its class.

        Raises:
            DataError: the image cannot be read; the error names the file.
        """
        seed, epoch, number = index if isinstance(index, tuple) else (0, 0, index)
        # A string seed is hashed by content, so it does not depend on PYTHONHASHSEED.
        chance = random.Random(f"{seed}:{epoch}:{number}")
        file, target = self.samples[number]
        picture = _open_image(file)
        box = random_box(*picture.size, chance)
        picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if chance.random() < 0.5:
            picture = ImageOps.mirror(picture)
        return _as_tensor(picture), torch.tensor(target)


def random_box(width: int, height: int, chance: random.Random) -> tuple[float, float, float, float]:
    """Return a random crop box inside the image.

    It covers at least the fraction MIN_AREA of the image; its aspect ratio is between 3:4 and 4:3.
    """
    area = width * height * chance.uniform(MIN_AREA, 1.0)
    ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
    box_width = min(width, math.sqrt(area * ratio))
    box_height = min(height, math.sqrt(area / ratio))
    left = chance.uniform(0, width - box_width)
    top = chance.uniform(0, height - box_height)
    # Rounding may exceed the image by a fraction of a pixel.
    return left, top, min(width, left + box_width), min(height, top + box_height)


def _open_image(file: Path) -> Image.Image:
    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    # Pillow raises all of these for damaged files.
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            phrase("The image {file} cannot be read: {error}.", file=file, error=error),
            code="data.picture",
            path=str(file),
            advice=phrase("Remove the file, or replace it with an intact image."),
        ) from error


def _as_tensor(picture: Image.Image) -> Tensor:
    """Convert an image to a normalised float32 tensor (3, H, W)."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div_(255)
    return pixels.sub_(MEAN).div_(STD).contiguous()


def _samples(folder: Path, classes: Sequence[str]) -> list[ImageSample]:
    """Return every image below the class folders, sorted; a class folder may be missing."""
    samples: list[ImageSample] = []
    for target, name in enumerate(classes):
        files = sorted(file for file in (folder / name).rglob("*") if file.suffix.lower() in SUFFIXES)
        samples += [(file, target) for file in files]
    return samples


def _name_hash(file: Path) -> int:
    # Without the rest of the path, so that the split survives moving the data set.
    return int.from_bytes(hashlib.blake2b(f"{file.parent.name}/{file.name}".encode(), digest_size=8).digest())


def _is_heldout(file: Path) -> bool:
    return _name_hash(file) % HELDOUT_DIVISOR == 0
