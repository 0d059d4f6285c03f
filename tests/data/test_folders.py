from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from quadric.data import folders
from quadric.data.folders import FolderDataset, center_crop, random_resized_crop


def save(path: Path, color: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


COLORS = {"blue": (0, 0, 250), "green": (0, 250, 0), "red": (250, 0, 0)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes, each of one color, so that a picture tells its label."""
    for name, color in COLORS.items():
        for i in range(5):
            save(tmp_path / "train" / name / f"{i}.jpg", color)
        save(tmp_path / "val" / name / "images" / "0.JPEG", color)
        save(tmp_path / "val" / name / "images" / "1.png", color)
        (tmp_path / "train" / name / "notes.txt").write_text("not a picture")
    return tmp_path


def ramp(width: int, height: int) -> Image.Image:
    """A picture whose red is its column and whose green is its row."""
    image = Image.new("RGB", (width, height))
    image.putdata([(x, y, 0) for y in range(height) for x in range(width)])
    return image


def pixels(image: Image.Image) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3).double()


def test_scan(root: Path) -> None:
    data = folders.load(root, size=8, workers=0)
    assert data.class_names == ("blue", "green", "red")
    assert data.train_size == 15
    assert len(data.test_files) == 6
    assert data.input_shape == (3, 8, 8)
    assert data.resize == 9
    for path, label in zip(data.train_files.paths, data.train_files.labels, strict=True):
        assert Path(path).parent.name == data.class_names[label]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_pictures_normalized(root: Path, workers: int) -> None:
    data = folders.load(root, size=8, workers=workers)
    for batches, count in ((data.train_batches(4), 15), (data.test_batches(4), 6)):
        labels_seen = []
        for images, labels in batches:
            assert images.dtype == torch.float32
            assert images.shape[1:] == (3, 8, 8)
            for image, label in zip(images, labels.tolist(), strict=True):
                color = torch.tensor(COLORS[data.class_names[label]]) / 255
                mean, std = torch.tensor(data.mean), torch.tensor(data.std)
                expected = ((color - mean) / std)[:, None, None].expand(3, 8, 8)
                # JPEG changes even plain colors a little.
                torch.testing.assert_close(image, expected, rtol=0, atol=0.05)
            labels_seen += labels.tolist()
        assert sorted(labels_seen) == sorted([0, 1, 2] * (count // 3))
        assert len(batches) == -(-count // 4)


def test_epochs_and_workers(root: Path) -> None:
    ramp(64, 64).save(root / "train" / "red" / "ramp.png")

    def epoch(workers: int, number: int, seed: int = 0) -> torch.Tensor:
        batches = folders.load(root, size=8, workers=workers).train_batches(4, seed=seed)
        batches.set_epoch(number)
        return torch.cat([images for images, _ in batches])

    first = epoch(0, 1)
    torch.testing.assert_close(epoch(2, 1), first, rtol=0, atol=0)
    assert not torch.equal(epoch(0, 2), first)
    assert not torch.equal(epoch(0, 1, seed=1), first)


def test_workers_learn_the_epoch(root: Path) -> None:
    ramp(64, 64).save(root / "train" / "red" / "ramp.png")
    data = folders.load(root, size=8, workers=1)
    batches = data.train_batches(16, shuffle=False)
    seen = []
    for number in (0, 1, 0):
        batches.set_epoch(number)
        seen.append(next(iter(batches))[0])
    assert not torch.equal(seen[0], seen[1])
    torch.testing.assert_close(seen[2], seen[0], rtol=0, atol=0)


def test_random_crop_takes_a_part_of_the_allowed_area_and_ratio() -> None:
    areas, flips = [], 0
    draw = random.Random(0)
    for _ in range(200):
        out = pixels(random_resized_crop(ramp(120, 90), 32, draw))
        assert out.shape == (32, 32, 3)
        # Red is the column, green the row: their spans are the sides of the crop.
        width = (out[:, -1, 0] - out[:, 0, 0]).mean().item() * 32 / 31
        height = (out[-1, :, 1] - out[0, :, 1]).mean().item() * 32 / 31
        areas.append(width * height / (120 * 90))
        assert 0.7 < width / height < 1.45
        flips += width < 0
    assert flips == 0
    assert 0.06 < min(areas) < 0.2
    assert 0.75 < max(areas) < 1.05


def test_random_crop_of_a_very_long_picture() -> None:
    out = pixels(random_resized_crop(ramp(200, 10), 8, random.Random(0)))
    width = (out[:, -1, 0] - out[:, 0, 0]).mean().item() * 8 / 7
    assert width == pytest.approx(10 * 4 / 3, rel=0.2)


def test_a_large_jpeg_is_decoded_small_to_the_same_crop(tmp_path: Path) -> None:
    big = ramp(250, 200).resize((1000, 800), Image.Resampling.BILINEAR)
    big.save(tmp_path / "big.jpg", quality=95)
    with Image.open(tmp_path / "big.jpg") as image:
        small = pixels(random_resized_crop(image, 32, random.Random(1)))
        assert image.size[0] < 1000
    exact = pixels(random_resized_crop(big, 32, random.Random(1)))
    torch.testing.assert_close(small[..., :2], exact[..., :2], rtol=0, atol=6)


@pytest.mark.parametrize("size", [(120, 90), (90, 120), (100, 100)])
def test_center_crop(size: tuple[int, int]) -> None:
    out = pixels(center_crop(ramp(*size), 30, 45))
    assert out.shape == (30, 30, 3)
    middle = out[14:16, 14:16].mean((0, 1))
    assert middle[0].item() == pytest.approx((size[0] - 1) / 2, abs=1)
    assert middle[1].item() == pytest.approx((size[1] - 1) / 2, abs=1)
    span = (out[:, -1, 0] - out[:, 0, 0]).mean().item()
    assert span == pytest.approx(29 * min(size) / 45, rel=0.05)


def test_half_of_the_training_pictures_are_mirrored(tmp_path: Path) -> None:
    ramp(64, 64).save(tmp_path / "ramp.png")
    files = folders.Files((str(tmp_path / "ramp.png"),), (0,))
    dataset = FolderDataset(files, 16, 18, random_crop=True)
    pictures = []
    for dataset.epoch in range(100):
        pictures.append(dataset[0][0].double())
    mirrored = sum((p[0, :, 0] > p[0, :, -1]).all().item() for p in pictures)
    assert 30 < mirrored < 70


def test_modes_of_pictures_become_rgb(root: Path) -> None:
    Image.new("L", (20, 20), 250).save(root / "val" / "red" / "gray.png")
    Image.new("RGBA", (20, 20), (250, 0, 0, 9)).save(root / "val" / "red" / "alpha.png")
    Image.new("CMYK", (20, 20), (0, 255, 255, 0)).save(root / "val" / "red" / "cmyk.jpg")
    batches = folders.load(root, size=8, workers=0).test_batches(16)
    ((images, _),) = batches
    assert images.shape == (9, 3, 8, 8)
    assert batches.broken == {}


@pytest.fixture
def truncated(root: Path) -> Path:
    path = root / "train" / "green" / "truncated.jpg"
    noise = torch.randint(0, 256, (80, 80, 3), dtype=torch.uint8)
    Image.frombytes("RGB", (80, 80), bytes(noise.flatten().tolist())).save(path)
    path.write_bytes(path.read_bytes()[:1500])
    return path


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_skipped_and_counted(root: Path, truncated: Path, workers: int) -> None:
    batches = folders.load(root, size=8, workers=workers).train_batches(4)
    with pytest.warns(UserWarning, match=rf"skipped broken picture {truncated} \(.*\); 1 so far"):
        count = sum(len(labels) for _, labels in batches)
    assert count == 15
    assert list(batches.broken) == [str(truncated)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the same file is not reported twice
        assert sum(len(labels) for _, labels in batches) == 15


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_refused_on_request(root: Path, truncated: Path, workers: int) -> None:
    batches = folders.load(root, size=8, workers=workers, on_broken="refuse").train_batches(4)
    with pytest.raises(ValueError, match=rf"^broken picture {truncated} \(.*\): replace it"):
        list(batches)


@pytest.mark.filterwarnings("ignore:skipped broken picture")
def test_a_batch_of_broken_pictures_only(root: Path) -> None:
    for i in range(5):
        (root / "train" / "blue" / f"{i}.jpg").write_bytes(b"x")
    data = folders.load(root, size=8, workers=0)
    batches = data.train_batches(5, shuffle=False)
    assert [len(labels) for _, labels in batches] == [5, 5]
    assert len(batches.broken) == 5
    # Other processes would wait forever for the batch that this one leaves out.
    apart = data.train_batches(2, shuffle=False, world_size=2)
    with pytest.raises(ValueError, match=r"all 2 pictures of a batch are broken.*blue/0\.jpg"):
        list(apart)


@pytest.mark.filterwarnings("ignore:skipped broken picture")
def test_nothing_but_broken_pictures(root: Path) -> None:
    for path in (root / "train").rglob("*.jpg"):
        path.write_bytes(b"x")
    batches = folders.load(root, size=8, workers=0).train_batches(4)
    with pytest.raises(ValueError, match=r"all 15 pictures are broken, the first is .*jpg \("):
        list(batches)


def test_without_augmentation_training_sees_the_middle(root: Path) -> None:
    ramp(64, 64).save(root / "train" / "red" / "ramp.png")
    data = folders.load(root, size=8, workers=0, augment=False)
    batches = data.train_batches(16, shuffle=False)
    first = next(iter(batches))[0]
    batches.set_epoch(1)
    torch.testing.assert_close(next(iter(batches))[0], first)
    same = replace(data, test_files=data.train_files)
    torch.testing.assert_close(next(iter(same.test_batches(16)))[0], first)


def test_missing_folders(root: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"empty/train must be a directory, .* expected <direct"):
        folders.load(empty)
    (empty / "train").mkdir()
    with pytest.raises(ValueError, match=r"empty/val must be a directory"):
        folders.load(empty)
    (empty / "val").mkdir()
    with pytest.raises(ValueError, match=r"no class folders in .*empty/train"):
        folders.load(empty)
    (root / "train" / "gray").mkdir()
    with pytest.raises(ValueError, match=r"no pictures in .*train/gray: expected files ending in"):
        folders.load(root)
    (root / "train" / "gray").rmdir()
    save(root / "val" / "yellow" / "0.jpg", (1, 1, 1))
    with pytest.raises(ValueError, match=r"val/yellow has no counterpart in"):
        folders.load(root)
    with pytest.raises(ValueError, match="must be a directory, but there is none"):
        folders.load(root / "nowhere")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"on_broken": "ignore"}, "on_broken must be 'skip' or 'refuse', got 'ignore'"),
        ({"size": 0}, "size must be >= 1, got 0"),
        ({"size": 64, "resize": 60}, "resize must be >= size 64, got 60"),
        ({"workers": -1}, "workers must be >= 0, got -1"),
    ],
)
def test_bad_options(root: Path, options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        folders.load(root, **options)
