from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quadric import data
from quadric.data.text import corpus
from quadric.data.text.corpus import load
from tests.data.text.small import corpus as make
from tests.data.text.small import pair, write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def texts(found: corpus.TextData, part: str) -> list[tuple[str, str]]:
    pairs = getattr(found, part)
    (source, inputs), _ = pairs.batch(torch.arange(len(pairs)))
    sides = [[row[row > 3].tolist() for row in side] for side in (source, inputs)]
    return list(zip(*(found.tokenizer.decode(side) for side in sides), strict=True))


def test_every_part_is_encoded_as_it_was(tmp_path: Path) -> None:
    found = load(make(tmp_path / "data"))
    assert texts(found, "train") == [pair(i) for i in range(300)]
    assert texts(found, "val") == [pair(i) for i in range(300, 320)]
    assert texts(found, "test") == [pair(i) for i in range(320, 340)]
    assert found.test_files == (tmp_path / "data" / "test.en", tmp_path / "data" / "test.de")
    assert "train: 300 pairs" in found.notes


def test_a_small_text_gets_a_smaller_vocabulary_and_says_so(tmp_path: Path) -> None:
    found = load(make(tmp_path / "data"), vocabulary=8000)
    assert 260 < found.tokenizer.size < 1000
    assert f"the training text has {found.tokenizer.size:,} pieces, fewer than" in found.notes[-1]
    again = load(tmp_path / "data", vocabulary=300)
    assert again.tokenizer.size == 300
    assert not any("fewer" in note for note in again.notes)


def test_it_is_encoded_once(tmp_path: Path, cache: Path) -> None:
    folder = make(tmp_path / "data")
    load(folder)
    (kept,) = (cache / "text").iterdir()
    before = kept.stat().st_mtime_ns
    load(folder)
    assert kept.stat().st_mtime_ns == before
    write(folder, "train", [pair(i) for i in range(301)])
    load(folder)
    load(folder, longest=5)
    assert len(list((cache / "text").iterdir())) == 3


def _cut(kept: Path) -> None:
    kept.write_bytes(kept.read_bytes()[:-100])


def _other(kept: Path) -> None:
    torch.save({"train": []}, kept)


@pytest.mark.parametrize("damage", [_cut, _other, lambda kept: kept.write_bytes(b"")])
def test_a_damaged_cache_is_told_with_its_remedy(tmp_path: Path, cache: Path, damage) -> None:
    folder = make(tmp_path / "data")
    load(folder, vocabulary=300)
    (kept,) = (cache / "text").iterdir()
    damage(kept)
    with pytest.raises(ValueError, match=rf"{kept} of the cache must hold .*: remove it, and"):
        load(folder, vocabulary=300)


def test_pieces_are_learned_from_the_training_text_alone(tmp_path: Path) -> None:
    folder = make(tmp_path / "data")
    first = load(folder).tokenizer.content
    write(folder, "val", [("Unrelated words abound.", "Ganz andere Wörter gibt es.")] * 50)
    assert load(folder).tokenizer.content == first


def test_empty_and_long_pairs_are_counted_and_left_out(tmp_path: Path) -> None:
    folder = make(tmp_path / "data")
    lines = [pair(0), ("", "leer"), ("empty", "  "), ("one " * 40, "eins " * 40), pair(1)]
    write(folder, "train", lines * 20)
    found = load(folder, longest=30)
    assert texts(found, "train") == [pair(0), pair(1)] * 20
    said = "train: 100 pairs, left out 40 with an empty line and 20 over 30 pieces"
    assert said in found.notes


def test_without_validation_files_pairs_are_held_out(tmp_path: Path) -> None:
    write(tmp_path / "data", "train", [pair(i) for i in range(200)])
    found = load(tmp_path / "data")
    assert (len(found.train), len(found.val), found.test) == (190, 10, None)
    assert sorted(texts(found, "train") + texts(found, "val")) == sorted(map(pair, range(200)))
    assert "10 training pairs were held out for validation" in found.notes[-1]
    assert found.test_files is None


def test_other_languages_and_names(tmp_path: Path) -> None:
    folder = make(tmp_path / "data")
    back = load(folder, source="de", target="en")
    assert texts(back, "val")[0] == pair(300)[::-1]
    write(folder, "test_2016_flickr", [pair(400)])
    assert texts(data.load("multi30k", folder), "test") == [pair(400)]
    assert len(data.load("text", folder).test) == 20
    assert len(data.load("wmt14", folder, vocabulary=300).test) == 20


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train.de", None, r"missing file .*train\.de: it must hold train\.en and"),
        ("train.en", b"", r"train\.en must hold a sentence on each line, got an empty file"),
        ("train.en", b"one\ntwo\n", r"equally many lines, got 2 and 300"),
        ("val.de", None, r"missing file .*val\.de: it must hold"),
        ("train.de", b"a\n" * 149 + b"\xff\n" + b"b\n" * 150, "got the byte 0xff in line 150"),
        ("train.en", b"a\0b\n" * 300, "got a zero byte in line 1"),
        ("test.de", b"\n" * 20, r"test\.de must hold sentence pairs of at most 256 pieces"),
    ],
)
def test_files_that_do_not_fit(
    tmp_path: Path, cache: Path, name: str, content: bytes | None, said: str
) -> None:
    folder = make(tmp_path / "data")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        load(folder)
    # Nothing half-made is left behind.
    kept = list((cache / "text").iterdir()) if (cache / "text").is_dir() else []
    assert all(file.suffix == ".pt" for file in kept)


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    folder = make(tmp_path / "data")
    with pytest.raises(ValueError, match="must be two languages, got 'en' twice"):
        load(folder, target="en")
    with pytest.raises(ValueError, match=r"vocabulary must be in 300 \.\.\. 65536, got 70000"):
        load(folder, vocabulary=70_000)
    with pytest.raises(ValueError, match="needs a data directory"):
        data.load("multi30k")
