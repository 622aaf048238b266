"""The syntax tree of a chat template with the counting written into it; see `lumen.io.chat_sandbox`.

for x in xs [if test]: body   ->   for x in xs [if charge and test]: charge, body
macro, block, call: body      ->   charge, body
a ~ b                         ->   join([a, b])            which measures both
a in b, a == b, d[key]        ->   measure(a) in measure(b), ...
text[1:]                      ->   slice(text)[1:]
"""

from __future__ import annotations

from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

# Filters by names that no template can spell.
CHARGE, MEASURE, SLICE, JOIN = " charge", " measure", " slice", " join"
LEAST = 4  # steps of a turn of a loop in which nothing happens

_LOOKS_INSIDE = frozenset(
    (
        *("in", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<="),
        *("gt", "greaterthan", ">", "ge", ">=", "lower", "upper"),
    )
)


class Counting(NodeTransformer):
    """`visit` a template's tree; nodes are changed in place."""

    def __init__(self, environment: jinja2.Environment):
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.For:
        """A loop pays for its test and for its body, each time that they run."""
        node = self._paying(node)
        if node.test is not None:
            node.test = self._set(nodes.And(self._charge([node.test]), node.test), node)
        return node

    def _paying(self, node: Any) -> Any:
        """A body that may run more than once pays at its beginning."""
        node = self.generic_visit(node)
        node.body.insert(0, self._set(nodes.ExprStmt(self._charge(node.body)), node))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _paying

    def visit_Concat(self, node: Any) -> nodes.Expr:
        """`a ~ b`"""
        node = self.generic_visit(node)
        return self._filter(self._set(nodes.List(node.nodes), node), JOIN)

    def visit_Compare(self, node: Any) -> nodes.Compare:
        """Comparison with a constant costs no more than the constant; others cost what they hold."""
        node = self.generic_visit(node)
        exprs = [node.expr, *(operand.expr for operand in node.ops)]
        searched = any(operand.op in ("in", "notin") for operand in node.ops)
        if searched or not any(isinstance(expr, nodes.Const) for expr in exprs):
            node.expr = self._measured(node.expr)
            for operand in node.ops:
                operand.expr = self._measured(operand.expr)
        return node

    def visit_Test(self, node: Any) -> nodes.Test:
        """`a is eq b`"""
        node = self.generic_visit(node)
        if node.name in _LOOKS_INSIDE:
            node.node = self._measured(node.node)
            node.args = [self._measured(arg) for arg in node.args]
        return node

    def visit_Getitem(self, node: Any) -> nodes.Getitem:
        """A slice copies; another key is hashed."""
        node = self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = self._filter(node.node, SLICE)
        else:
            node.arg = self._measured(node.arg)
        return node

    def visit_Pair(self, node: Any) -> nodes.Pair:
        """A key of a dict is hashed."""
        node = self.generic_visit(node)
        node.key = self._measured(node.key)
        return node

    def _measured(self, expr: nodes.Expr) -> nodes.Expr:
        return expr if isinstance(expr, nodes.Const) else self._filter(expr, MEASURE)

    def _charge(self, body: list[Any]) -> nodes.Expr:
        steps, characters = _cost(body)
        return self._filter(
            self._set(nodes.Const((LEAST + steps, characters)), body[0] if body else None), CHARGE
        )

    def _filter(self, expr: nodes.Expr, name: str) -> nodes.Expr:
        return self._set(nodes.Filter(expr, name, [], [], None, None), expr)

    def _set(self, node: Any, like: Any) -> Any:
        return node.set_lineno(like.lineno if like is not None else 1).set_environment(self._environment)


def _cost(body: list[Any]) -> tuple[int, int]:
    """Nodes and literal characters in `body`."""
    steps = characters = 0
    stack = list(body)
    while stack:
        node = stack.pop()
        steps += 1
        if isinstance(node, nodes.TemplateData):
            characters += len(node.data)
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            characters += len(node.value)
        stack.extend(node.iter_child_nodes())
    return steps, characters
