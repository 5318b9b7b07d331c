"""jinja2's immutable sandbox, made to end: a template cannot loop, grow or nest without limit.

The sandbox keeps a template away from Python; it does not keep it from burning time and memory. Killing a thread is
not possible, so the compiled template checks a budget wherever it could run long or make something large:

- the body of every loop begins with a check of the time, and pays for the text it may write;
- every call, test, comparison, attribute and operator checks the time;
- every call, filter, operator, `~`, slice and list display pays for what it makes, and those that can make much more
  than they are given (`*`, `**`, `%`, `center`, `replace`, `join` ...), or take much longer than its size says
  (`strip`, `rfind` ...), are refused before they start;
- filters and methods whose time or result cannot be foreseen do not exist (REMOVED_FILTERS, UNSAFE_METHODS).

So the time between two checks is that of one operation on values of bounded size, well under a second. Not covered:
parsing and compiling, which is bounded by the template's length, and the memory of other threads.
"""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from string import Formatter
from typing import Any

from jinja2 import Template, Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from quire.engine.template_budget import TemplateBudget, TemplateLimitError, TemplateLimits

MAX_SOURCE_CHARS = 65_536
"""More than twice the longest of models that chat; compiling takes about a second and 50 MB."""
MAX_CODE_CHARS = 8 * MAX_SOURCE_CHARS
"""Of the Python that becomes of it. Python's own compiler lets no other thread run: half a second for that many."""
MAX_INT_BITS = 100_000
MAX_WIDTH = 100_000
MAX_FIELD_WIDTH = 999
MAX_COMPARISONS = 2**29
"""Of pairs of characters, where Python compares those of one text with those of another: some tenths of a second."""
REMOVED_FILTERS = (
    *("filesizeformat", "forceescape", "pprint", "random", "striptags", "truncate"),
    *("urlencode", "urlize", "wordwrap", "xmlattr"),
)
UNSAFE_METHODS = frozenset({"encode", "expandtabs", "maketrans", "to_bytes", "translate"})
_PRINTF_FIELD = re.compile(r"%(?:\([^()]*\)|(\())?([-+ #0\d.*]*)[hlL]?%?")
"""Group 1: its key has brackets of its own. Group 2: flags, width and precision."""
_WIDE = re.compile(r"[*{(]|\d{4}")

_budget: ContextVar[TemplateBudget] = ContextVar("template_budget")


@functools.lru_cache(maxsize=64)
def compile_template(source: str) -> Template:
    """Raises TemplateError or TemplateLimitError, or what Python's own compiler raises for code nested too deeply."""
    if len(source) > MAX_SOURCE_CHARS:
        raise TemplateLimitError(f"it has {len(source)} characters, the limit is {MAX_SOURCE_CHARS}")
    token = _budget.set(TemplateBudget(TemplateLimits()))  # constants are computed while compiling
    try:
        return _ENVIRONMENT.from_string(source)
    finally:
        _budget.reset(token)


def render_template(template: Template, variables: Mapping[str, Any], limits: TemplateLimits) -> str:
    """Raises whatever the template raises; TemplateLimitError if it asks for too much."""
    budget = TemplateBudget(limits)
    budget.charge(dict(variables))
    token = _budget.set(budget)
    try:
        chunks: list[str] = []
        num_chars = 0
        for chunk in template.generate(variables):
            num_chars += len(chunk)
            budget.check_size(num_chars)
            chunks.append(chunk)
        return "".join(chunks)
    finally:
        _budget.reset(token)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What chat templates on the Hugging Face Hub expect, within a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[GenerationTag, loopcontrols],
            finalize=_output_text,
        )
        kept = {name: function for name, function in self.filters.items() if name not in REMOVED_FILTERS}
        kept["tojson"] = _tojson
        self.filters = {name: _guarded_filter(name, function) for name, function in kept.items()}
        self.tests = {name: _guarded_test(test) for name, test in self.tests.items()}
        del self.globals["lipsum"]
        self.globals |= {
            "dict": _make_dict,
            "namespace": TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in UNSAFE_METHODS and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"it reached for {attribute!r} of a {type(obj).__name__}, which is out of bounds")

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A step, as filters and formats follow a path of any length through every item of a list."""
        _budget.get().step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """As `getattr`."""
        _budget.get().step()
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_growth("str.format", value.__self__, (*args, *kwargs.values()))
            return str(wrapped(*args, **kwargs))

        return checked

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if __obj is TemplateEnvironment.tick:
            return __obj(*args)
        budget = _budget.get()
        budget.tick()
        if isinstance(__obj, types.BuiltinMethodType) and isinstance(__obj.__self__, str):
            if __obj.__name__ == "join":
                args = (list(args[0]),)
                _check_growth("join", args[0], (__obj.__self__,))
            else:
                _check_growth(__obj.__name__, __obj.__self__, (*args, *kwargs.values()))
        result = super().call(__context, __obj, *args, **kwargs)
        budget.charge(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        budget.tick()
        _check_operation(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        budget.charge(result)
        return result

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """The hook jinja2 offers between parsing and generating code."""
        code: str = super()._generate(_Instrument().visit(source), *args, **kwargs)
        if len(code) > MAX_CODE_CHARS:
            raise TemplateLimitError(f"it becomes {len(code)} characters of code, the limit is {MAX_CODE_CHARS}")
        return code

    # What instrumented templates call: see _Instrument.

    @staticmethod
    def tick(num_chars: int) -> bool:
        _budget.get().tick(num_chars)
        return True

    @staticmethod
    def join_text(parts: Sequence[Any]) -> str:
        texts = [str(part) for part in parts]
        _budget.get().check_size(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def take_slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
        return value[start:stop:step]

    @staticmethod
    def measured(value: Any) -> Any:
        return value


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the model writes, for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateNamespace(Namespace):
    """jinja2's, but without showing its content: namespaces in namespaces could make that endless."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Instrument(NodeTransformer):
    """Rewrites a parsed template so that it calls the environment's tick, join_text, take_slice and measured.

    They are reached as attributes of the environment, which a template's own variables cannot shadow.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:
        num_chars = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        tick = nodes.ExprStmt(_call_environment("tick", nodes.Const(num_chars)), lineno=node.lineno)
        node.body.insert(0, tick)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        return nodes.And(_call_environment("tick", nodes.Const(0)), node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call_environment("join_text", nodes.List(node.nodes))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _call_environment("take_slice", node.node, *(bound or nodes.Const(None) for bound in bounds))

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return node if node.ctx == "store" else self._measured(node)

    def _measured(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _call_environment("measured", node)

    visit_List = visit_Dict = _measured


def _call_environment(method: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)


def _check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse `*`, `**`, `%` and `+` whose result would be too large to make."""
    budget = _budget.get()
    if operator == "%" and isinstance(left, str):
        _check_growth("format", left, right if isinstance(right, tuple) else (right,))
    elif operator == "+":
        budget.check_size(budget.size(left) + budget.size(right))
    elif isinstance(left, int) and isinstance(right, int):
        num_bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if operator != "%" and num_bits > MAX_INT_BITS:
            raise TemplateLimitError(f"it would make a number of {num_bits} bits, the limit is {MAX_INT_BITS}")
    elif operator == "*":
        times, value = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(times, int):
            budget.check_size(times * (len(value) if isinstance(value, str) else budget.size(value)))


def _check_growth(name: str, subject: Any, args: Sequence[Any]) -> None:
    """Refuse a filter or string method whose result would be too large to make."""
    budget = _budget.get()
    largest = max(map(budget.size, args), default=0)
    match name:
        case "join":
            budget.check_size(sum(map(budget.size, subject)) + len(subject) * largest)
        case "replace":
            text = str(subject)
            budget.check_size(len(text) + text.count(str(args[0])) * largest)
        case "format" | "str.format":
            fields = _printf_fields(subject) if name == "format" else _format_fields(subject)
            if any(map(_WIDE.search, fields)):
                raise TemplateLimitError(
                    f"it formats a field of a width that is variable or 1000 and more: {subject[:80]!r}"
                )
            num_fields = subject.count("%") + subject.count("{")
            budget.check_size(len(subject) + num_fields * max(largest, MAX_FIELD_WIDTH))
        case "indent":
            width = args[0] if args and isinstance(args[0], int) else largest
            budget.check_size(len(str(subject)) + (str(subject).count("\n") + 1) * width)
        case "center" | "ljust" | "rjust" | "zfill" | "batch" | "slice" | "round":
            too_large = [arg for arg in args if isinstance(arg, int) and abs(arg) > MAX_WIDTH]
            if too_large:
                raise TemplateLimitError(f"it calls {name} with {too_large[0]}, the limit is {MAX_WIDTH}")
        case "strip" | "lstrip" | "rstrip" | "trim" | "rfind" | "rindex" | "rpartition" | "rsplit":
            num_comparisons = len(str(subject)) * max((len(arg) for arg in args if isinstance(arg, str)), default=0)
            if num_comparisons > MAX_COMPARISONS:
                raise TemplateLimitError(
                    f"{name} would compare {num_comparisons} pairs, the limit is {MAX_COMPARISONS}"
                )
        case "title":
            budget.check_size(8 * len(str(subject)))  # It makes an object of every word.
        case "sum":
            if any(not isinstance(arg, int | float | str | None) for arg in args):
                raise TemplateLimitError("it sums lists, which takes long; numbers can be summed")


def _printf_fields(text: str) -> Iterator[str]:
    """What `%` reads between a field's key and its type."""
    budget = _budget.get()
    for field in _PRINTF_FIELD.finditer(text):
        budget.tick()
        yield (field[1] or "") + field[2]


def _format_fields(text: str) -> Iterator[str]:
    """What `str.format` reads behind a field's colon."""
    budget = _budget.get()
    for _, _, spec, _ in Formatter().parse(text):
        budget.tick()
        yield spec or ""


def _guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with a check before it runs and an account of what it made."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.tick()
        subject, *others = args[first:]
        if name == "join":
            subject = list(subject)
        _check_growth(name, subject, (*others, *kwargs.values()))
        result = function(*args[:first], subject, *others, **kwargs)
        budget.charge(result)
        return result

    # jinja2 marks filters that take its context or environment before the value.
    first = 1 if "jinja_pass_arg" in guarded.__dict__ else 0
    return guarded


def _guarded_test(test: Any) -> Callable[..., Any]:
    """Tests make nothing, but `select` runs one on every item of a list."""

    @functools.wraps(test)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _budget.get().tick()
        return test(*args, **kwargs)

    return guarded


def _output_text(value: Any) -> str:
    """The text of `{{ value }}`."""
    text = value if isinstance(value, str) else str(value)
    _budget.get().tick(len(text))
    return text


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter escapes HTML."""
    width = len(indent) if isinstance(indent, str) else indent or 0
    if width > 16 or len("".join(separators or ())) > 16:
        raise TemplateLimitError("it indents or separates JSON with more than 16 characters")
    if width > 0:
        _budget.get().check_indented(value, width)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    if len(format) > 1000:
        raise TemplateLimitError("it formats the time with more than 1000 characters")
    return datetime.now().strftime(format)


_ENVIRONMENT = TemplateEnvironment()
