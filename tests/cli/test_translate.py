"""`quadric translate`, in this process and in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quadric.train
from tests.command_line import assert_mistake, output
from tests.command_line import quadric as command
from tests.data.text.small import pair, write
from tests.train.test_translation import trained

LINES = [pair(i)[0] for i in range(700, 720)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    tmp_path = tmp_path_factory.mktemp("translation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
        trained(tmp_path, epochs=5, average=1, lr=0.02)
        yield tmp_path / "run"


def test_a_file_line_by_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n".join([*LINES, "", LINES[0]]), encoding="utf-8")
    expected = quadric.train.translator(run).translate([*LINES, "", LINES[0]])
    assert output("translate", run, tmp_path / "in").split("\n") == [*expected, ""]
    output("translate", run, tmp_path / "in", "-o", tmp_path / "out", "--greedy")
    greedy = quadric.train.translator(run).translate(LINES, beams=1)
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:20] == greedy
    assert greedy != expected[:20]


def test_a_pipe_gets_each_line_at_once(run: Path) -> None:
    words = [sys.executable, "-m", "quadric.cli.app", "translate", str(run)]
    expected = quadric.train.translator(run).translate(LINES[:3])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=dict(os.environ), **pipes) as process:  # type: ignore[call-overload]
        for line, answer in zip(LINES, expected, strict=False):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{answer}\n"
        process.stdin.write(b"\xff\xfe\n")
        process.stdin.close()
        assert process.stdout.read() == b""
        said = process.stderr.read().decode()
        assert process.wait() == 2
    assert said.count("\n") == 1
    assert "standard input must be UTF-8 text, got the byte 0xff in line 4" in said


def test_lines_before_a_bad_one_stay(run: Path, tmp_path: Path) -> None:
    good = "\n".join(LINES * 26).encode()  # more than are translated at once
    (tmp_path / "in").write_bytes(good + b"\n\xff\n")
    result = command("translate", run, tmp_path / "in", "-o", tmp_path / "out", "--greedy")
    assert result.exit_code == 2
    assert "got the byte 0xff in line 521" in result.stderr
    assert len((tmp_path / "out").read_text(encoding="utf-8").splitlines()) == 512


def test_a_mistake_leaves_the_output_as_it_was(run: Path, tmp_path: Path) -> None:
    text, old = tmp_path / "in", tmp_path / "out"
    text.write_text(f"{LINES[0]}\n", encoding="utf-8")
    old.write_text("an earlier translation\n")
    for output_file in (text, tmp_path / "link"):
        if not output_file.exists():
            output_file.symlink_to(text)
        refused = command("translate", run, text, "-o", output_file)
        assert_mistake(refused, "--output must not be the text itself")
    assert text.read_text(encoding="utf-8") == f"{LINES[0]}\n"
    assert_mistake(command("translate", tmp_path / "none", text, "-o", old), "not a run directory")
    assert old.read_text() == "an earlier translation\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "must hold a sentence on each line, got an empty file"),
        (b"PK\x03\x04\x00\x00", "got a zero byte in line 1"),
        (b"\x89PNG\r\n\x1a\n", "got the byte 0x89 in line 1"),
    ],
)
def test_files_that_are_no_text(run: Path, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "in").write_bytes(content)
    assert_mistake(command("translate", run, tmp_path / "in"), said)


def test_long_lines_are_told_in_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(f"{LINES[0]}\n{'one ' * 10_000}\n", encoding="utf-8")
    result = command("translate", run, tmp_path / "in", "--greedy")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 2
    assert result.stderr.count("\n") == 1
    assert "warning: line 2 has" in result.stderr


def test_runs_that_cannot_translate(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("I count one.\n")
    assert_mistake(command("translate", tmp_path / "none", tmp_path / "in"), "not a run directory")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "recipe.yaml").write_bytes((run / "recipe.yaml").read_bytes())
    assert_mistake(command("translate", copy, tmp_path / "in"), "the run is not finished")
    weights = (run / "weights.safetensors").read_bytes()
    (copy / "weights.safetensors").write_bytes(weights)
    message = "tokenizer.model: a translation run needs it"
    assert_mistake(command("translate", copy, tmp_path / "in"), message)
    (copy / "tokenizer.model").write_bytes(b"nothing")
    assert_mistake(command("translate", copy, tmp_path / "in"), "must be a model file of sentence")


def test_evaluate_on_other_files(run: Path, tmp_path: Path) -> None:
    write(tmp_path, "news", [pair(i) for i in range(40)])
    files = [tmp_path / "news.en", tmp_path / "news.de"]
    said = output("evaluate", run, "--test", *files, "--json", tmp_path / "scores.json")
    assert "BLEU, international, not cased" in said
    assert "nrefs:1|case:lc|eff:no|tok:intl" in said
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert set(scores["bleu"]) == {"13a_cased", "13a_uncased", "intl_cased", "intl_uncased"}
    with files[1].open("a") as file:
        file.write("eine mehr\n")
    wrong = command("evaluate", run, "--test", *files)
    assert_mistake(wrong, "must have equally many lines, got 40 and 41")
