from __future__ import annotations

import pytest

from quadric.data.text.tokenizer import Tokenizer, train_tokenizer
from tests.data.text.small import pair


def trained() -> Tokenizer:
    return train_tokenizer((line for i in range(200) for line in pair(i)), 400)


def test_nothing_is_unknown() -> None:
    tokenizer = trained()
    strange = ["ελληνικά 漢字 🙂 ½", "I count one.", ""]
    rows = tokenizer.encode(strange)
    assert 3 not in [piece for row in rows for piece in row]
    assert tokenizer.decode(rows) == strange


def test_pieces_that_are_no_text_stay_on_one_line() -> None:
    tokenizer = trained()
    # The bytes of a line feed, of half a character, and begin and end.
    newline, half = 4 + 10, 4 + 0xC3
    assert tokenizer.decode([[newline, newline], [half], [1, 2]]) == ["", "\ufffd", ""]


def test_the_same_text_gives_the_same_pieces() -> None:
    first = trained()
    assert trained().content == first.content
    again = Tokenizer(first.content)
    assert again.encode(["I count nine."]) == first.encode(["I count nine."])


def test_what_does_not_fit() -> None:
    for content in (b"", b"not a model"):
        with pytest.raises(ValueError, match="must be a model file of sentencepiece"):
            Tokenizer(content)
    with pytest.raises(ValueError, match="must have words, got empty lines alone"):
        train_tokenizer(["", ""], 400)
