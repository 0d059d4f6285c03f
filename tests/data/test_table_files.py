"""Reading a user's table: what is found out, and what is refused in one line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from quadric.data import table_files
from quadric.data.table_files import read_table

FRAME = pd.DataFrame({"name": ["a b", "c", "d"], "size": [1.5, 2.5, None], "n": [1, 2, 3]})


@pytest.mark.parametrize(
    ("delimiter", "suffix"),
    [(",", ".csv"), (";", ".txt"), ("\t", ".tsv"), ("|", ".dat"), ("::", ".csv")],
)
def test_any_delimiter(tmp_path: Path, delimiter: str, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    lines = ["name,size,n", "a b,1.5,1", "c,2.5,2", "d,,3"]
    path.write_text("\n".join(lines).replace(",", delimiter))
    given = delimiter if len(delimiter) > 1 else None
    pd.testing.assert_frame_equal(read_table(path, delimiter=given), FRAME)


def test_blanks_and_no_header(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("  1.0  2 3e-1\n  4.0 5   6\n")
    frame = read_table(path)
    assert list(frame.columns) == ["column 0", "column 1", "column 2"]
    assert frame.to_numpy().tolist() == [[1, 2, 0.3], [4, 5, 6]]


def test_quoted_cells_may_hold_the_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('place,price\n"Paris, France",1\n"Rome, Italy",2\n')
    assert read_table(path)["place"].tolist() == ["Paris, France", "Rome, Italy"]


def test_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1,5;2\n-2,25;3\n")
    assert read_table(path)["a"].tolist() == [1.5, -2.25]


def test_encodings(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig", "cp1252"):
        path = tmp_path / f"{encoding}.csv"
        path.write_bytes("größe,ort\n1,Köln\n2,Bonn\n".encode(encoding))
        frame = read_table(path)
        assert list(frame.columns) == ["größe", "ort"]
        assert frame["ort"].tolist() == ["Köln", "Bonn"]


def test_parquet_and_packed_files(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet"), FRAME)
    FRAME.to_parquet(tmp_path / "without_suffix")
    assert len(read_table(tmp_path / "without_suffix", rows=2)) == 2
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write("a,b\n1,2\n")
    assert read_table(tmp_path / "t.csv.gz").to_numpy().tolist() == [[1, 2]]


def test_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 100)
    assert len(read_table(path, rows=7)) == 7
    with pytest.raises(ValueError, match="rows must be >= 1"):
        read_table(path, rows=0)


def test_a_file_of_two_gigabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.write(b"a,b\n1,2\n3,4\n")
        file.truncate(2 * 2**30)  # sparse: takes no room
    with pytest.raises(ValueError, match=r"2\.0 GB .* --rows"):
        read_table(path)
    assert read_table(path, rows=2).to_numpy().tolist() == [[1, 2], [3, 4]]


def test_a_large_parquet_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FRAME.to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr(table_files, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="GB of data"):
        read_table(tmp_path / "t.parquet")
    assert len(read_table(tmp_path / "t.parquet", rows=1)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n \n", "is empty"),
        (b"a,b\n", "no rows"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "binary file"),
        (b"a,b\n1,2\n1,2,3,4\n" * 30, "not a table"),
        (b"word\nother\n", "not a table"),
        (b"PAR1 but nothing else", "not a Parquet file"),
        (b"Some prose.\n\nA second, longer line of it; and more.\nEnd\n", "not a table"),
    ],
)
def test_what_is_not_a_table(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_that_are_not_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a directory"):
        read_table(tmp_path)
    with pytest.raises(ValueError, match="no such file"):
        read_table(tmp_path / "t.csv")
    broken = tmp_path / "t.csv.gz"
    broken.write_bytes(b"not packed at all")
    with pytest.raises(ValueError, match="cannot read"):
        read_table(broken)


@pytest.mark.parametrize(
    ("content", "line", "delimiter"),
    [
        ("a,b\n" + "1,2,3\n" * 20, None, None),  # pandas alone would shift all columns
        ("a,b\n" + "1,2\n" * 30 + "3,4,5\n" + "1,2\n" * 30, 32, None),
        ('a,b\n"1,5",2\n1,2,3\n' + "1,2\n" * 30, 3, None),
        ("1,2\n3,4\n5,6,7\n" + "1,2\n" * 30, 3, None),
        ("a b\n\n1 2\n\n3 4 5\n" + "1 2\n" * 30, 5, None),
        ("a::b\n1::2::3\n4::5\n", None, "::"),
        ("a,b\n1,2,\n3,4,5\n", None, ","),
    ],
)
def test_rows_with_too_many_cells_are_refused_by_line(
    tmp_path: Path, content: str, line: int | None, delimiter: str | None
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    message = f"line {line} has 3 cells, but there are 2 columns"
    with pytest.raises(
        ValueError, match=message if line else "its first rows have more cells than"
    ):
        read_table(path, delimiter=delimiter)


def test_a_table_that_csv_cannot_split_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    # A cell that is never closed, longer than the module csv takes.
    path.write_text("a,b\n" + "1,2\n" * 20000 + '3,4,"5' + "x" * 200_000)
    with pytest.raises(ValueError, match="is not a table"):
        read_table(path)


def test_delimiters_at_the_end_of_all_lines_are_no_cells(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2,\n3,4,\n")
    assert read_table(path, delimiter=",").to_dict("list") == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize("header", ["a ,a", "a,b,a", '"a",b,a'])
def test_two_columns_of_one_name(tmp_path: Path, header: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n{'1,2,3' if header.count(',') == 2 else '1,2'}\n")
    with pytest.raises(ValueError, match="two columns named 'a'"):
        read_table(path)


def test_columns_without_a_name_and_equal_numbers_are_no_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(",,b\n1,2,3\n")
    assert read_table(path).shape == (1, 3)
    path.write_text("1,1,2\n3,4,5\n")
    assert read_table(path).shape == (2, 3)


@pytest.mark.parametrize("delimiter", ["", '"', "\n", "\r"])
def test_what_cannot_separate_cells(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="delimiter must be"):
        read_table(path, delimiter=delimiter)


def test_a_given_delimiter_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="at least 2 columns"):
        read_table(path, delimiter=";")


def test_pandas_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(module: str, purpose: str, extra: str) -> Any:
        raise ModuleNotFoundError(f"{purpose} needs pandas: quadric[{extra}]", name="pandas")

    monkeypatch.setattr(table_files, "load_extra", missing)
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ModuleNotFoundError, match=r"quadric\[tables\]"):
        read_table(path)
