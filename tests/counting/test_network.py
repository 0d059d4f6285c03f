"""What functions that take a whole network share."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from quadric.counting.network import tensors_in, unwrapped


@dataclass
class Result:
    scores: Any
    more: Any = None


class Pair(tuple[Any, ...]):
    pass


def test_tensors_of_nested_results() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    nested = {"a": one, "b": (None, Result(two, more=["no tensor", Pair((three,))]))}
    assert [t.numel() for t in tensors_in(nested)] == [1, 2, 3]
    assert tensors_in(UserDict(x=two)) == [two]
    assert tensors_in((Result, "text", None)) == []


def test_a_network_comes_out_of_all_its_wrappers() -> None:
    network = nn.Linear(2, 2)
    wrapped: Any = torch.compile(nn.DataParallel(network), backend="eager")
    assert unwrapped(wrapped) is network
