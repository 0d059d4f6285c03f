"""Small parallel files."""

from __future__ import annotations

from pathlib import Path

NUMBERS = "one two three four five six seven eight nine ten".split()
ZAHLEN = "eins zwei drei vier fünf sechs sieben acht neun zehn".split()


def pair(number: int) -> tuple[str, str]:
    """A sentence of two to six words and its translation."""
    digits = [(number * 7 + i * (1 + number // 10 % 4)) % 10 for i in range(2 + number % 5)]
    words = [" ".join(names[d] for d in digits) for names in (NUMBERS, ZAHLEN)]
    return f"I count {words[0]}.", f"Ich zähle {words[1]}."


def write(folder: Path, stem: str, lines: list[tuple[str, str]], ends: str = "en de") -> None:
    """Two files with these pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, end in enumerate(ends.split()):
        text = "".join(f"{line[side]}\n" for line in lines)
        (folder / f"{stem}.{end}").write_text(text, encoding="utf-8")


def corpus(folder: Path, count: int = 300) -> Path:
    """A data set with all parts."""
    write(folder, "train", [pair(i) for i in range(count)])
    write(folder, "val", [pair(i) for i in range(count, count + 20)])
    write(folder, "test", [pair(i) for i in range(count + 20, count + 40)])
    return folder
