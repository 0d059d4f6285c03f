"""The time that is left."""

from __future__ import annotations

from quadric.tables.comparison.estimate import Estimate, say_time


def test_the_rest_takes_as_long_as_its_cost() -> None:
    estimate = Estimate({"quick": 1.0, "slow": 9.0}, {"quick": 2, "slow": 2})
    assert estimate.words() == ""
    estimate.fitted("quick")
    estimate.start -= 20  # a fit of cost 1 took 20 s; a cost of 19 is left
    assert estimate.words() == "about 6 min left"
    estimate.going_on("slow", 2, 0.5)  # so a cost of 10 took 20 s, and 10 is left
    assert estimate.words() == "about 20 s left"
    estimate.fitted("slow")
    estimate.fitted("slow")
    estimate.fitted("quick")
    assert estimate.words() == ""


def test_words() -> None:
    found = [say_time(seconds) for seconds in (7, 48, 130, 9000)]
    assert found == [
        "a few seconds left", "about 50 s left", "about 2 min left", "about 2.5 hours left",
    ]  # fmt: skip
