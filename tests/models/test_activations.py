from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from quadric.models.activations import ACTIVATIONS, make_activation


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"none"}))
def test_each_is_torchs_function_and_leaves_its_input_alone(name: str) -> None:
    x = torch.linspace(-3, 3, 41)
    before = x.clone()
    function = getattr(F, name, None) or getattr(torch, name)
    torch.testing.assert_close(make_activation(name)(x), function(before))
    torch.testing.assert_close(x, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_no_activation_has_parameters(name: str) -> None:
    assert list(make_activation(name).parameters()) == []
