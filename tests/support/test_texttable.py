"""Foreign text on a terminal and in a spreadsheet."""

from __future__ import annotations

from quadric.support.texttable import csv_cell, printable


def test_no_text_commands_a_terminal() -> None:
    foreign = "a\x1b[31mb\x1b]0;title\x07\x9b2J\rc\x7f\u202e\x00"
    shown = printable(foreign)
    assert shown == r"a\x1b[31mb\x1b]0;title\x07\x9b2J\rc\x7f\u202e\x00"
    assert printable("plain\n\ttext: ü 数") == "plain\n\ttext: ü 数"


def test_no_cell_is_computed() -> None:
    for text in ("=1+1", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1", "\r=1"):
        assert csv_cell(text) == f"'{text}"
    for value in ("-", "eigen[9]", "a=b", "", -1.5, None, 3):
        assert csv_cell(value) == value
