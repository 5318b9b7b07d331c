"""A template can neither get out of its sandbox nor keep it busy: every attack ends in ChatTemplateError, soon."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from small_tokenizers import byte_level_json, tokenizer_files

from quire.engine.chat_template import render_chat
from quire.engine.template_budget import MAX_DEPTH, TemplateBudget, TemplateLimitError, TemplateLimits
from quire.engine.template_sandbox import MAX_SOURCE_CHARS, _budget, compile_template, render_template
from quire.engine.tokenizer import Tokenizer
from quire.errors import ChatTemplateError

LIMITS = TemplateLimits(seconds=0.2)
MAX_PEAK_BYTES = 64 * 2**20
LONG = "{% set a = 'a' * 100000 %}"
REPEAT = "{% set ns = namespace(x=X) %}{% for i in range(90000) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
NESTED_LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LONG_BLOCK = "{% set x %}{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}{% endset %}"
LONG_PATH = "'real.' * 1000 ~ 'real'"

OUT_OF_BOUNDS = "it reached for '.*' of a .*, which is out of bounds"
ESCAPES = {
    OUT_OF_BOUNDS: [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ ''['__class__'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].__setitem__('role', 'x') }}",
        "{{ '\t'.expandtabs(10 ** 10) }}",
        "{{ (1).to_bytes(10 ** 10, 'big') }}",
        "{{ 'a'.encode() }}",
        "{{ 'a'.translate({97: 'b' * 1000000}) }}",
        "{{ 'a'.maketrans({'a': 'b'}) }}",
    ],
    "no loader for this environment": ["{% include '/etc/passwd' %}", "{% import 'os' as os %}{{ os }}"],
    "has no attribute": [
        "{{ dict.update(messages[0], {'role': 'x'}) }}",
        "{{ dict.setdefault(messages[0], 'x', 1) }}",
    ],
    "is undefined": ["{{ config }}{{ config.x }}", "{{ lipsum(n=10 ** 9) }}"],
    "No filter named": [
        *("{{ 1 | filesizeformat }}", "{{ '' | forceescape }}", "{{ '' | pprint }}", "{{ [1] | random }}"),
        *("{{ '' | striptags }}", "{{ '' | truncate }}", "{{ '' | urlencode }}", "{{ '' | urlize }}"),
        *("{{ '' | wordwrap }}", "{{ {} | xmlattr }}"),
    ],
}

TIME = r"ran for more than 0\.2 s"
SIZE = r"would make a value of size \d+, the limit is 8000000"
BITS = "would make a number of"
STACK = "recursion"
FIELD = "formats a field of a width that is variable or 1000 and more"
NUMBER = r"it calls \w+ with -?\d+, the limit is 100000"
PAIRS = "would compare"
JSON = "indents or separates JSON with more than 16 characters"
RUNAWAYS = {
    TIME: {
        "nested loops": NESTED_LOOPS,
        "own tick": "{% macro tick() %}{% endmacro %}{% set environment = 1 %}" + NESTED_LOOPS,
        "condition": "{% set l = ['a'] * 99999 %}{% for x in range(99999) if x in l %}{% endfor %}",
        "comparisons in line": "{% set l = ['a'] * 99999 %}" + "{% set x = 1 in l %}" * 400,
        "calls in line": "{% set f = ('a' * 4000000).find %}" + "{% set x = f('ab') %}" * 400,
        "filters in line": "{% set a = 'a ' * 400000 %}" + "{% set x = a | wordcount %}" * 40,
        "operators in line": "{% set a = 3 ** 30000 %}" + "{% set x = a * a % a %}" * 400,
        "select": "{{ range(99999) | select('in', range(99999) | list) | list | length }}",
        "recursive macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "map of a path": "{{ range(99999) | map(attribute=" + LONG_PATH + ") | list | length }}",
        "select by a path": "{{ range(99999) | selectattr(" + LONG_PATH + ") | list | length }}",
        "sort by many": "{{ range(99999) | sort(attribute='real,' * 1000 ~ 'real') | length }}",
        "format of many fields": "{{ ('{}' * 3000000).format(1) }}",
        "printf of many fields": "{{ ('%s' * 3000000) % 1 }}",
        "format of a path": "{{ ('{0' ~ '.real' * 1000000 ~ '.nothing.nothing}').format(1) }}",
    },
    SIZE: {
        "long output": "{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}",
        "outputs": LONG + "{{ a }}" * 100,
        "times": "{{ 'a' * 10 ** 10 }}",
        "times a list": "{{ 10 ** 9 * [0] }}",
        "times a list of texts": LONG + "{{ [a] * 1000 }}",
        "doubling ~": REPEAT.replace("X", "'a'").replace("STEP", "ns.x ~ ns.x"),
        "doubling +": REPEAT.replace("X", "'a'").replace("STEP", "ns.x + ns.x"),
        "doubling list": REPEAT.replace("X", "['a' * 10000]").replace("STEP", "ns.x + ns.x"),
        "shared lists": REPEAT.replace("X", "[1]").replace("STEP", "[ns.x, ns.x]"),
        "shared tuples": REPEAT.replace("X", "[1]").replace("STEP", "(ns.x, ns.x)"),
        "shared dicts": REPEAT.replace("X", "[1]").replace("STEP", "{'a': ns.x, 'b': ns.x}"),
        "shared keys": REPEAT.replace("X", "(1,)").replace("STEP", "(dict([((ns.x, ns.x), 1)]).keys() | first)"),
        "shared views": REPEAT.replace("X", "{'a': 1}").replace("STEP", "dict(a=ns.x.items(), b=ns.x.items())"),
        "shared values": REPEAT.replace("X", "{'a': 1}").replace("STEP", "dict(a=ns.x.values(), b=ns.x.values())"),
        "slices": LONG + REPEAT.replace("X", "[]").replace("STEP", "ns.x + [a[i:]]"),
        "high numbers in a list": "{% set x = 2 ** 14000 %}{{ [x] * 200000 }}",
        "high numbers printed": "{% set x = 2 ** 49000 %}{{ ('%x' * 2000) % ((x,) * 2000) }}",
        "high numbers formatted": "{% set x = 2 ** 49000 %}{{ ('{0:b}' * 2000).format(x) }}",
        "printf fields": "{{ ('%999d' * 100000) % ((1,) * 100000) }}",
        "format fields": "{{ ('{0:999}' * 100000).format(1) }}",
        "format values": LONG + "{{ ('{x}' * 1000).format(x=a) }}",
        "format values by position": LONG + "{{ ('{0}' * 1000).format(a) }}",
        "format_map values": LONG + "{{ ('{x}' * 1000).format_map({'x': a}) }}",
        "printf values": LONG + "{{ ('%(x)s' * 1000) % {'x': a} }}",
        "printf a tuple of values": LONG + "{{ ('%s' * 1000) % ((a,) * 1000) }}",
        "printf filter values": LONG + "{{ ('%(x)s' * 1000) | format(x=a) }}",
        "replace": LONG + "{{ a.replace('a', a) }}",
        "replace filter": LONG + "{{ a | replace('a', a) }}",
        "replace nothing": LONG + "{{ a.replace('', a) }}",
        "join": LONG + "{{ a.join(a) }}",
        "join long ones": LONG + "{% set ns = namespace(x=a ~ 1) %}{% set b = a * 70 %}{{ ''.join([b, a * 15]) }}",
        "join one after the other": "{{ ('a' * 5000).join(range(99999) | map('string')) }}",
        "join filter": LONG + "{{ range(99999) | join(a) }}",
        "join filter of a kind": LONG + "{{ range(1000) | map('string') | join(d=a) }}",
        "indent": "{% set a = '\n' * 100000 %}{{ a | indent(100000) }}",
        "indent with a text": LONG + "{% set b = '\n' * 100000 %}{{ b | indent(width=a) }}",
        "json escapes": "{% set a = 'é' * 2000000 %}{% set b = a | tojson(ensure_ascii=true) %}",
        "json indent of deep lists": (
            "{% set ns = namespace(x=[0] * 90000) %}{% for i in range(97) %}{% set ns.x = [ns.x] %}{% endfor %}"
            "{% set b = ns.x | tojson(indent='a' * 16) %}"
        ),
        "concatenation": LONG + "{{ " + "a ~ " * 1000 + "a }}",
        "macro": LONG + "{% macro m() %}" + "{{ a }}" * 100 + "{% endmacro %}{% set b = m() %}",
        "title": "{{ ('a ' * 3000000) | title }}",
    },
    "made more than 128000000 characters in all": {"long block": LONG_BLOCK},
    BITS: {
        "power": "{{ 10 ** (10 ** 8) }}",
        "power that is not that high": "{% set x = 10 ** 40000 %}",
        "squares": REPEAT.replace("X", "3").replace("STEP", "ns.x * ns.x"),
    },
    "Range too big": {"huge range": "{% for i in range(10 ** 9) %}{% endfor %}"},
    "nested deeper than 100 levels": {"deep tuples": REPEAT.replace("X", "(1,)").replace("STEP", "(ns.x,)")},
    STACK: {
        "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "long chain": "{{ " + "1 + " * 5000 + "1 }}",
        "many ifs": "{% if 1 %}" * 500 + "{% endif %}" * 500,
    },
    NUMBER: {
        "center": "{{ 'a' | center(10 ** 9) }}",
        "center a little more": "{{ 'a' | center(100001) }}",
        "center by name": "{{ 'a' | center(width=10 ** 9) }}",
        "ljust": "{{ 'a'.ljust(10 ** 10) }}",
        "rjust": "{{ 'a'.rjust(10 ** 9) }}",
        "zfill": "{{ '1'.zfill(10 ** 9) }}",
        "batch": "{{ [1] | batch(10 ** 9, 0) | list }}",
        "slice filter": "{{ [1] | slice(10 ** 9) | list }}",
        "round": "{{ 1 | round(10 ** 9) }}",
        "round down": "{{ 1 | round(-10 ** 9) }}",
    },
    FIELD: {
        "printf": "{{ '%0999999999d' % 1 }}",
        "printf filter": "{{ '%0999999999d' | format(1) }}",
        "printf width": "{{ '%*d' % (10 ** 9, 1) }}",
        "printf by a key": "{{ '%(x)999999999d' % {'x': 1} }}",
        "printf by a key with brackets": "{{ '%(a(b))999999999d' % {'a(b)': 1} }}",
        "printf behind a field of a percent sign": "{{ '%5%%1000d' % 1 }}",
        "printf behind a long percent sign": "{{ '%l%%1000d' % 1 }}",
        **{f"printf {flag}": "{{ '%" + flag + "1000x' % 1 }}" for flag in "-+ #"},
        "printf precision": "{{ '%.1000f' % 1 }}",
        "printf behind a percent sign": "{{ '%%%1000d' % 1 }}",
        "format": "{{ '{:>999999999}'.format(1) }}",
        "format with a letter": "{{ '{:x>999999999}'.format(1) }}",
        "format without minus zero": "{{ '{:z999999999.1f}'.format(1.0) }}",
        "format by an index": "{{ '{0[}]:999999999}'.format({'}': 1}) }}",
        "format width": "{{ '{:>{w}}'.format(1, w=10 ** 9) }}",
        "format_map": "{{ '{x:1000}'.format_map({'x': 1}) }}",
    },
    PAIRS: {
        "strip": "{{ ('a' * 4000000).strip('b' * 3000000 ~ 'a') }}",
        "lstrip": "{{ ('a' * 4000000).lstrip('b' * 3000000 ~ 'a') }}",
        "rstrip": "{{ ('a' * 4000000).rstrip('b' * 3000000 ~ 'a') }}",
        "trim": "{{ ('a' * 4000000) | trim('b' * 3000000 ~ 'a') }}",
        "trim by name": "{{ ('a' * 4000000) | trim(chars='b' * 3000000 ~ 'a') }}",
        "rfind a little more": "{{ ('a' * 23171).rfind('a' * 23171) }}",
        "rfind": "{{ ('a' * 4000000).rfind('ab' ~ 'a' * 2000000) }}",
        "rindex": "{{ ('a' * 4000000).rindex('ab' ~ 'a' * 2000000) }}",
        "rpartition": "{{ ('a' * 4000000).rpartition('ab' ~ 'a' * 2000000) }}",
        "rsplit": "{{ ('a' * 4000000).rsplit(sep='ab' ~ 'a' * 2000000) }}",
    },
    "sums lists": {"sum of lists": "{{ ([[1]] * 10000) | sum(start=[]) }}"},
    JSON: {
        "json indent": "{{ range(99999) | list | tojson(indent=17) }}",
        "json indent of text": "{{ [0] | tojson(indent='a' * 17) }}",
        "json separators": LONG + "{{ range(1000) | list | tojson(separators=(a, a)) }}",
    },
    "formats the time with more than 1000 characters": {"time": "{{ strftime_now('%A' * 501) }}"},
    "it has 65537 characters, the limit is 65536": {"long source": "x" * 65_537},
    "Expected an expression": {"syntax": "{% for %}"},
}


def render(template: str, limits: TemplateLimits = LIMITS) -> str:
    tokenizer = Tokenizer(tokenizer_files(byte_level_json(), chat_templates={"default": template}))
    return render_chat(tokenizer, [{"role": "user", "content": "Hi"}], limits=limits)


@pytest.mark.parametrize(("reason", "template"), [(why, one) for why, some in ESCAPES.items() for one in some])
def test_cve_2024_34359_nothing_outside_can_be_reached(reason: str, template: str) -> None:
    with pytest.raises(ChatTemplateError, match=reason):
        render(template)


@pytest.mark.parametrize(("reason", "name"), [(why, name) for why, some in RUNAWAYS.items() for name in some])
@pytest.mark.timeout(60)
def test_cve_2025_61620_a_runaway_is_stopped(reason: str, name: str) -> None:
    """It is refused before it has made what would be too large, and by the check that is meant for it: time is the last."""
    limits = LIMITS if reason is TIME else TemplateLimits(seconds=30)
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError, match=reason):
            render(RUNAWAYS[reason][name], limits)
        assert tracemalloc.get_traced_memory()[1] < MAX_PEAK_BYTES
    finally:
        tracemalloc.stop()


def test_a_conversation_of_more_than_one_value_may_hold_is_refused() -> None:
    template = compile_template("{{ messages | length }}")
    size = LIMITS.max_size // 2
    assert render_template(template, {"messages": ["a" * size]}, LIMITS) == "1"
    with pytest.raises(TemplateLimitError):
        render_template(template, {"messages": ["a" * size, "b" * size]}, LIMITS)


def test_honest_work_of_some_size_is_done() -> None:
    template = (
        "{% set ns = namespace(out=[], text='') %}{% for i in range(500) %}{% set ns.out = ns.out + [i] %}"
        "{% set ns.text = ns.text + 'line ' ~ i ~ '\n' %}{% endfor %}{{ ns.out | length }} {{ ns.text | length }}"
    )
    assert render(template, TemplateLimits()) == "500 4390"


@pytest.mark.timeout(60)
def test_a_format_is_searched_once_however_many_fields_may_begin_in_it() -> None:
    for text in ("'%-' * 1000000", "'%(' ~ '%(a' * 1000000", "'%(a)' * 1000000"):
        with pytest.raises(ChatTemplateError, match=f"{SIZE}|{FIELD}"):
            render("{% set a = " + text + " %}{{ a | format }}", TemplateLimits(seconds=30))


def test_other_threads_go_on_while_a_template_runs_away() -> None:
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        with pytest.raises(ChatTemplateError, match=r"ran for more than 0\.5 s"):
            render(NESTED_LOOPS, TemplateLimits(seconds=0.5))
    finally:
        stop.set()
        thread.join()
    assert len(ticks) >= 5


def test_a_template_that_fails_does_not_spoil_the_next_rendering() -> None:
    with pytest.raises(ChatTemplateError):
        render(LONG_BLOCK)
    assert render("{{ messages[0].content }}") == "Hi"


def test_a_value_is_not_measured_beyond_its_limit() -> None:
    met: list[int] = []

    class Watched(list[int]):
        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                met.append(item)
                yield item

    limits = TemplateLimits(max_size=1600)
    with pytest.raises(TemplateLimitError, match="would make a value of size"):
        TemplateBudget(limits).size(Watched(range(1000)))
    assert len(met) <= 100


def test_a_value_is_walked_once() -> None:
    met: list[int] = []

    class Watched(list[int]):
        def __iter__(self) -> Iterator[int]:
            met.append(len(self))
            return super().__iter__()

    budget, part = TemplateBudget(TemplateLimits()), Watched([1, 2])
    assert budget.size([part, part]) == 16 + 2 * (16 + 2 * 16)
    assert budget.size((part,)) == 16 + (16 + 2 * 16)
    assert met == [2]


def test_a_list_that_is_gone_is_not_taken_for_a_new_one_in_its_place() -> None:
    budget = TemplateBudget(TemplateLimits())
    assert [budget.size([0] * number) for number in range(50)] == [16 + 16 * number for number in range(50)]


PAIRS_OF_ONE = {"ab": 1}


@pytest.mark.parametrize(
    ("value", "size"),
    [
        *((1, 16), (None, 16), (1.5, 16), (True, 16), (2**16 - 1, 16), (2**16, 17), (-(2**999), 1000)),
        *(("", 16), ("abc", 19), (b"abc", 19), ([], 16), ([1, "abc"], 51), ((1, "abc"), 51), ({"abc"}, 35)),
        *((frozenset({"abc"}), 35), (PAIRS_OF_ONE, 50), (PAIRS_OF_ONE.keys(), 34), (PAIRS_OF_ONE.values(), 32)),
        *((PAIRS_OF_ONE.items(), 66), ({(1, 2): [3]}, 96), ([[[]]], 48)),
    ],
)
def test_the_size_of_a_value(value: object, size: int) -> None:
    assert TemplateBudget(TemplateLimits(max_size=size)).size(value) == size
    with pytest.raises(TemplateLimitError, match=f"of size {size}, the limit is {size - 1}"):
        TemplateBudget(TemplateLimits(max_size=size - 1)).charge(value)


def test_the_deepest_part_is_the_depth() -> None:
    def nested(depth: int) -> list[object]:
        value: list[object] = []
        for _ in range(depth):
            value = [value, 1]
        return value

    TemplateBudget(TemplateLimits()).size(nested(MAX_DEPTH))
    with pytest.raises(TemplateLimitError, match="deeper than 100 levels"):
        TemplateBudget(TemplateLimits()).size(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("value", "cost"),
    [("abc", 19), ([1, 2], 32), ((1, "abc", 3), 48), ({"a": 1}, 16), (5, 0), (frozenset({1}), 0), ({"a": 1}.keys(), 0)],
)
def test_what_is_made_is_paid_for(value: object, cost: int) -> None:
    """Views and numbers hold nothing of their own that is long."""
    budget = TemplateBudget(TemplateLimits(max_total=100 + 2 * cost))
    budget.tick(100)
    budget.charge(value)
    budget.charge(value)
    with pytest.raises(TemplateLimitError, match="characters in all"):
        budget.tick(1)


SPENDERS = {
    "text of a loop": (100, "x" * 50),
    "output": (200, "{{ messages[0] }}"),
    "concatenation": (250, "{% set x = 'x' ~ i ~ 'y' %}"),
    "concatenation of slices": (40, "{% set x = a[:] ~ '' %}"),
    "slices": (100, "{% set x = a[:] %}"),
    "lists": (100, "{% set x = [i, i, i] %}"),
    "lists of slices": (100, "{% set x = [a[:]] %}"),
    "tuples": (100, "{% set x = (i, i, i) %}"),
    "dicts": (150, "{% set x = {1: i, 2: i} %}"),
    "filters": (250, "{% set x = 'abc' | upper %}"),
    "methods": (250, "{% set x = 'abc'.upper() %}"),
    "operators": (250, "{% set x = 'abc' + 'def' %}"),
    "slices in a condition": (100, "{% if a[:] == i %}{% endif %}"),
}


@pytest.mark.parametrize("name", SPENDERS)
def test_all_that_a_template_makes_counts(name: str) -> None:
    limits = TemplateLimits(max_total=4000)
    number, step = SPENDERS[name]
    template = "{% set a = 'a' * 50 %}{% for i in range(N) %}" + step + "{% endfor %}"
    render(template.replace("N", "10"), limits)
    with pytest.raises(ChatTemplateError, match="more than 4000 characters in all"):
        render(template.replace("N", str(number)), limits)


def test_a_rendering_leaves_nothing_behind() -> None:
    render("{{ messages[0].content }}", TemplateLimits())
    with pytest.raises(ChatTemplateError):
        render("{{ 'a' * 10 ** 10 }}", TemplateLimits())
    with pytest.raises(LookupError):
        _budget.get()


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'abcdef'[1:5:2] }}{{ 'abc'[::-1] }}{{ [1, 2, 3][1:] }}{{ 'abc'[1] }}", "bdcba[2, 3]b"),
        ("{% for a, (b, c) in [(1, (2, 3))] %}{{ a ~ b ~ c }}{% endfor %}", "123"),
        ("{% for x in range(9) if x is odd and x > 2 %}{{ x }}{% endfor %}", "357"),
        ("{{ namespace(x=1) }}", "<namespace>"),
        ("{{ dict([('a', 1)], b=2) }}", "{'a': 1, 'b': 2}"),
        ("{{ {'b': 'é', 'a': 1} | tojson }}", '{"b": "é", "a": 1}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": 1, "b": "\\u00e9"}'),
        ("{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}", '[1,{"a":2}]'),
        ("{{ [1] | tojson(indent=16) }}", "[\n" + " " * 16 + "1\n]"),
        ("{{ [[1]] | tojson(indent='  ') }}", "[\n  [\n    1\n  ]\n]"),
        ("{{ [] | tojson(separators=('c' * 8, 'c' * 8)) }}", "[]"),
        ("{{ [1, 2.5] | sum }}{{ [1] | sum(start=0.5) }}{{ [{'n': 2}] | sum(attribute='n', start=1) }}", "3.51.53"),
        ("{{ '%999d' % 1 }}", " " * 998 + "1"),
        ("{{ '12:3000 %% 100%'.replace('%', '!') }}{{ '%d%% of 20000' % 5 }}", "12:3000 !! 100!5% of 20000"),
        ("{{ 'a' | center(100000) | length }}{{ 'a'.ljust(100000) | length }}", "100000100000"),
        ("{{ (2 ** 50000 * 2 ** 49997) % 7 }}{{ -3 % 2 }}{{ 3 * 'a' }}{{ 'a' * 3 }}{{ 2.5 * 2 }}", "21aaaaaa5.0"),
        ("{{ (7 * 10 ** 6 * 'a') | length }}", "7000000"),
        ("{{ ' \n x \t'.strip() }}{{ 'a</s>b</s>c'.rsplit('</s>', 1)[-1] }}{{ '..x'.lstrip('.') }}", "xcx"),
        ("{{ ('a' * 23170).rfind('a' * 23170) }}{{ ('a' * 9).rindex('aa') }}", "07"),
        ("{{ 'Date: 2024, %s' % 1 }}{{ '%d%%2024' % 1 }}{{ '%(a)s:2024' | format(a=3) }}", "Date: 2024, 11%20243:2024"),
        ("{{ 'Date: 2024, {}'.format(1) }}{{ '{} %2024 {a:x>3}'.format(1, a=2) }}", "Date: 2024, 11 %2024 xx2"),
        ("{{ '{a}{b:5}'.format_map({'a': 1, 'b': 2}) }}", "1    2"),
        ("{{ strftime_now('x' * 1000) | length }}", "1000"),
        (
            "{{ 'one two' | title }}{{ [3, 1] | sort }}{{ messages | map(attribute='role') | join('-') }}",
            "One Two[1, 3]user",
        ),
        ("{{ '\na\nb' | indent(2) }}|{{ 'a\nb' | indent('--') }}", "\n  a\n  b|a\n--b"),
        ("{{ '-'.join(['a', 'b'] | map('upper')) }}{{ ['a', 1] | join }}{{ 'abc'.join('xy') }}", "A-Ba1xabcy"),
        (
            "{% generation %}a{% endgeneration %}{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "a13",
        ),
        ("{% macro m(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% call m(1) %}in{% endcall %}", "[1in]"),
        ("{% set x %}{% for i in range(3) %}{{ i }}{% endfor %}{% endset %}{{ x ~ messages[5:] }}", "012[]"),
    ],
)
def test_what_is_within_bounds_is_what_jinja_makes(template: str, text: str) -> None:
    assert render(template, TemplateLimits()) == text


def test_a_source_of_the_longest_length_is_rendered() -> None:
    assert render("x" * MAX_SOURCE_CHARS, TemplateLimits()) == "x" * MAX_SOURCE_CHARS


@pytest.mark.parametrize(
    "source",
    ["{{ a" + "<a" * 25_000 + " }}", "{{ a" + "~a" * 25_000 + " }}", "{{ a }}" * 9_000],
    ids=["<", "~", "{{ }}"],
)
def test_a_source_that_becomes_much_code_is_refused(source: str) -> None:
    """Python's compiler lets no other thread run, and what is read here in two characters is fifty to it."""
    with pytest.raises(TemplateLimitError, match="characters of code, the limit is"):
        compile_template(source)
