"""The jinja2 environment of chat templates: programs by strangers, without a way out and without a way to go on
forever.

jinja2's immutable sandbox keeps a template from Python's objects and from changing what it reads. It does not keep
`{% for a in range(99999) %}{% for b in range(99999) %}` or `'a' * 10**10` from taking all the time and memory there
is. Here every loop and macro body first counts its nodes, and every operation that makes or reads something large
first counts its size (`lumen.io.chat_budget`). The counting is written into the template's syntax tree, as filters
whose names no template can spell, and around jinja2's own filters, operators and calls.

Names and settings are those that Hugging Face templates rely on (`trim_blocks`, `lstrip_blocks`, loop controls,
`tojson`, `raise_exception`, `strftime_now`, `{% generation %}`). Filters that no chat template needs and that are
hard to bound are left out: batch, pprint, slice, striptags, urlize, wordwrap, xmlattr, and the function lipsum.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

from . import chat_growth
from .chat_budget import Budget, whole_number
from .chat_counted import CHARGE, JOIN, MEASURE, SLICE, Counting

BUDGET = " budget"  # its name in a context: with a space, so that no template can say it
CALL = 10  # steps of a call or a filter, beside what it looks at
_LEFT_OUT = ("batch", "pprint", "slice", "striptags", "urlize", "wordwrap", "xmlattr")
_METHODS_LEFT_OUT = ("expandtabs", "maketrans", "to_bytes", "translate")


class Sandbox(ImmutableSandboxedEnvironment):
    """One for all templates; each rendering brings its own budget as the variable BUDGET."""

    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            finalize=_finalize,
        )
        self.filters["tojson"] = _tojson
        for name in _LEFT_OUT:
            del self.filters[name]
        self.filters = {name: _guarded(name, filter) for name, filter in self.filters.items()}
        self.filters |= {CHARGE: _charge, MEASURE: _measure, SLICE: _slice, JOIN: _join}
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(Counting(self).visit(source), *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Counted, then computed."""
        if operator == "+" and type(left) is type(right) is str:  # by far the most frequent
            context.parent[BUDGET].text(len(left) + len(right))
            return left + right
        chat_growth.of_operator(_budget(context), operator, left, right)
        return whole_number(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Counted, then called."""
        budget = _budget(__context)
        budget.work(CALL)
        for arg in (*args, *kwargs.values()):
            budget.deep(arg)
        if isinstance(__obj, BuiltinMethodType):
            if __obj.__name__ in _METHODS_LEFT_OUT:
                raise jinja2.exceptions.SecurityError(f"the method {__obj.__name__!r} is not offered here")
            args = chat_growth.of_method(budget, __obj, args)
        found = super().call(__context, __obj, *args, **kwargs)
        budget.shallow(found)
        return found

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` inside the sandbox, with its widths counted."""
        if not isinstance(value, MethodType | BuiltinMethodType) or not isinstance(value.__self__, str):
            return None
        if value.__name__ not in ("format", "format_map"):
            return None
        form, by_map = str(value.__self__), value.__name__ == "format_map"

        @jinja2.pass_context
        def wrapped(context: Context, *args: Any, **kwargs: Any) -> str:
            budget = _budget(context)
            budget.text(len(form))
            if by_map:
                (kwargs,), args = args, ()
            return _Formatter(self, budget).vformat(form, args, kwargs)

        return wrapped


class _Formatter(SandboxedFormatter):
    def __init__(self, environment: Sandbox, budget: Budget):
        super().__init__(environment)
        self._budget = budget

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        found, used = super().get_field(field_name, args, kwargs)
        self._budget.deep(found)
        return found, used

    def format_field(self, value: Any, format_spec: str) -> Any:
        chat_growth.of_format(self._budget, format_spec)
        return super().format_field(value, format_spec)


class _Namespace(Namespace):
    """Without a repr that writes out what it holds, which may be endless, and without private names."""

    def __repr__(self) -> str:
        return "<Namespace>"

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace takes no private name such as {name!r}")
        super().__setitem__(name, value)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks words to train on; its text passes through."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _budget(context: Context) -> Budget:
    return context.parent[BUDGET]


def _guarded(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of jinja2 that counts first."""
    passed = getattr(filter, "jinja_pass_arg", None)
    kind = None if passed is None else passed.name

    @jinja2.pass_context
    def guarded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.work(CALL)
        value = chat_growth.of_filter(budget, name, value, args, kwargs)
        first = {"context": context, "environment": context.environment, "eval_context": context.eval_ctx}
        found = (
            filter(value, *args, **kwargs) if kind is None else filter(first[kind], value, *args, **kwargs)
        )
        if isinstance(found, Iterator):
            return budget.counted(found)
        budget.shallow(found)
        return whole_number(found)

    return guarded


@jinja2.pass_context
def _finalize(context: Context, value: Any) -> Any:
    if type(value) is str:
        context.parent[BUDGET].text(len(value))
    else:
        _budget(context).deep(value)
    return value


@jinja2.pass_context
def _charge(context: Context, cost: tuple[int, int]) -> bool:
    budget = _budget(context)
    budget.work(cost[0])
    budget.text(cost[1])
    return True


@jinja2.pass_context
def _measure(context: Context, value: Any) -> Any:
    _budget(context).deep(value)
    return value


@jinja2.pass_context
def _slice(context: Context, value: Any) -> Any:
    _budget(context).shallow(value)
    return value


@jinja2.pass_context
def _join(context: Context, values: list[Any]) -> str:
    _budget(context).deep(values)
    return "".join(map(str, values))
