"""Residual sums that a compiled graph's operators compute.

Behind a joined BatchNorm often comes the sum of a residual block, and a ReLU. For a linear network
torch.compile puts both into the loop of the BatchNorm; into an operator it cannot look. So in a
finished graph, where nobody asks for gradients any more, such a sum is handed to the operator.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def _is_same(one: Any, other: Any) -> bool:
    """Whether two nodes give tensors that lie in memory alike."""
    a, b = one.meta.get("val"), other.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    same = a.dtype == b.dtype and a.device == b.device
    return same and a.shape == b.shape and a.stride() == b.stride()


class _Call:
    """A call of one of our operators in a graph, by what it returns first.

    Attributes:
        node: the call itself.
    """

    def __init__(self, node: fx.Node, names: dict[str, Any]) -> None:
        self.node, self._names = node, names

    @classmethod
    def behind(cls, result: object) -> _Call | None:
        """The call whose output this node is, if it is one."""
        if not isinstance(result, fx.Node) or result.target is not operator.getitem:
            return None
        node, index = result.args
        assert isinstance(node, fx.Node)
        ours = torch.ops.quadric
        if node.target is ours.norm_squares.default and index == 0:
            schema = [argument.name for argument in ours.norm_squares.default._schema.arguments]
            return cls(node, dict(zip(schema, node.args, strict=True)))
        if node.target is torch.ops.higher_order.auto_functionalized_v2:
            # What changes a tensor stands in the graph as a call that returns the changed one.
            if node.args[0] is ours.norm_squares_.default and index == 1:
                return cls(node, dict(node.kwargs))
        return None

    def is_open(self) -> bool:
        """Whether it may still add something: nothing is added yet, and no ReLU has come."""
        return self._names["added"] is None and self._names["relu"] is False

    def take(self, added: fx.Node, relu: bool) -> None:
        """Adds a tensor, and lets a ReLU follow."""
        names = {**self._names, "added": added, "relu": relu}
        if self.node.kwargs:
            self.node.kwargs = names
        else:
            self.node.args = tuple(names.values())


def _order(graph: fx.Graph) -> dict[fx.Node, int]:
    return {node: place for place, node in enumerate(graph.nodes)}


def _take_up(add: fx.Node) -> None:
    """Hands a sum, and the ReLU behind it, to the call that computes one of its terms."""
    if len(add.args) != 2 or add.kwargs:
        return
    for result, other in (add.args, add.args[::-1]):
        call = _Call.behind(result)
        if call is None or not isinstance(result, fx.Node) or not isinstance(other, fx.Node):
            continue
        if len(result.users) > 1 or not call.is_open() or not _is_same(result, other):
            continue
        order = _order(add.graph)
        if order[other] > order[call.node]:
            continue
        last, relu = add, False
        activations = [user for user in add.users if user.target is aten.relu.default]
        if activations:
            if len(add.users) > 1:
                continue  # the sum itself is asked for, too: the compiler writes both at once
            last, relu = activations[0], True
        call.take(other, relu)
        last.replace_all_uses_with(result)
        for node in (last, add) if relu else (add,):
            add.graph.erase_node(node)
        return


def _register() -> None:
    from torch._inductor.fx_passes.post_grad import pass_patterns
    from torch._inductor.pattern_matcher import Arg, CallFunction, Match, register_graph_pattern

    @register_graph_pattern(
        CallFunction(aten.add.Tensor, Arg(), Arg()), pass_dict=pass_patterns[-1]
    )
    def _(match: Match, *terms: Any) -> None:
        _take_up(match.output_node())


_registered = False


def takes_sums() -> None:
    """Tells the compiler, once."""
    global _registered
    if _registered:
        return
    _registered = True
    try:
        _register()
    except (ImportError, AttributeError, TypeError):
        pass  # a compiler that is built otherwise: sums stay where they are


# Called by what traces, as nothing in a graph could: see `_compiled.in_torch_func`.
takes_sums._dynamo_marked_constant = True  # type: ignore[attr-defined]
