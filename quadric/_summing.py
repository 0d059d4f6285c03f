"""Residual sums that a compiled graph's operators compute.

Behind a joined BatchNorm often comes the sum of a residual block, and a ReLU. For a linear network
torch.compile puts both into the loop of the BatchNorm; into an operator it cannot look. So in a
finished graph, where nobody asks for gradients any more, such a sum is handed to the operator.
"""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten


def _is_same(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes give tensors that are known to lie in memory alike."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    a, b = one.meta.get("val"), other.meta.get("val")
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() != b.dim():
        return False
    pairs = zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=True)
    same = a.dtype == b.dtype and a.device == b.device
    return same and all(statically_known_true(m == n) for m, n in pairs)


def _storage(node: fx.Node) -> object:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


class _Call:
    """A call of one of our operators in a graph, by what it returns first.

    Attributes:
        node: the call itself.
        changed: the tensors that it changes.
    """

    def __init__(
        self, node: fx.Node, names: dict[str, Any], changed: Sequence[fx.Node] = ()
    ) -> None:
        self.node, self.changed, self._names = node, changed, names

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
                names: dict[str, Any] = dict(node.kwargs)
                return cls(node, names, names["_all_bases"])
        return None

    def is_open(self) -> bool:
        """Whether it may still add something: nothing is added yet, and no ReLU has come."""
        return self._names["added"] is None and self._names["relu"] is False

    def changes(self, other: fx.Node) -> bool:
        """Whether it changes that tensor, of which the compiler may have made one with another that
        is computed alike.
        """
        return _storage(other) in [_storage(node) for node in self.changed]

    def take(self, added: fx.Node, relu: bool) -> None:
        """Adds a tensor, and lets a ReLU follow."""
        names = {**self._names, "added": added, "relu": relu}
        if self.changed:
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
        if call.changes(other):
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
    with warnings.catch_warnings():
        # torch's compiler warns of torch's own old functions as it is imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch._inductor.fx_passes.post_grad import pass_patterns
        from torch._inductor.pattern_matcher import Arg, CallFunction, Match, register_graph_pattern

    def is_ours(match: Match) -> bool:
        return any(_Call.behind(term) is not None for term in match.output_node().args)

    @register_graph_pattern(
        CallFunction(aten.add.Tensor, Arg(), Arg()),
        extra_check=is_ours,
        pass_dict=pass_patterns[-1],
    )
    def _(match: Match, *terms: Any) -> None:
        _take_up(match.output_node())


_registered = False
_lock = threading.Lock()


def takes_sums() -> None:
    """Tells the compiler, once."""
    global _registered
    with _lock:
        if _registered:
            return
        try:
            _register()
        except (ImportError, AttributeError, TypeError):
            pass  # a compiler that is built otherwise: sums stay where they are
        _registered = True


# Called by what traces, as nothing in a graph could: see `_compiled.in_torch_func`.
takes_sums._dynamo_marked_constant = True  # type: ignore[attr-defined]
