"""What the report of a conversion says."""

from __future__ import annotations

import pytest

from quadric.conversion.report import ConversionReport, Converted


@pytest.mark.parametrize("kept", [(True, True), (True, False), (False, False)])
def test_a_conversion_is_lossless_if_every_layer_is(kept: tuple[bool, bool]) -> None:
    layers = [Converted(str(i), "Linear", "eigen", 3, 8, 9, kept[i]) for i in range(2)]
    report = ConversionReport("eigen", tuple(layers), (), 16, 18)
    assert report.lossless == report.to_dict()["lossless"] == all(kept)
