"""A template can neither get out of its sandbox nor keep it busy: every attack ends in ChatTemplateError, soon."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from small_tokenizers import byte_level_json, tokenizer_files

from quire.engine.chat_template import render_chat
from quire.engine.template_budget import TemplateBudget, TemplateLimitError, TemplateLimits
from quire.engine.template_sandbox import compile_template, render_template
from quire.engine.tokenizer import Tokenizer
from quire.errors import ChatTemplateError

LIMITS = TemplateLimits(seconds=0.2)
MAX_PEAK_BYTES = 64 * 2**20
LONG = "{% set a = 'a' * 100000 %}"
REPEAT = "{% set ns = namespace(x=X) %}{% for i in range(90000) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"

ESCAPES = [
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
    "{{ ['{0.__class__}'] | map('format', 1) | list }}{{ messages | map(attribute='__class__') | list }}",
    "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",
    "{{ messages.append({}) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].__setitem__('role', 'x') }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{{ config }}{{ config.x }}",
]

RUNAWAYS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "own tick": "{% macro tick() %}{% endmacro %}{% set environment = 1 %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "huge range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "condition": "{% set l = range(99999) | list %}{% for x in range(99999) if x + 10 ** 6 in l %}{% endfor %}",
    "select": "{{ range(99999) | select('in', range(99999) | list) | list | length }}",
    "recursive macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "long output": "{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}",
    "long block": "{% set x %}{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}{% endset %}",
    "times": "{{ 'a' * 10 ** 10 }}",
    "times a list": "{{ 10 ** 9 * [0] }}",
    "power": "{{ 10 ** (10 ** 8) }}",
    "power that is not that high": "{% set x = 10 ** 40000 %}",
    "squares": REPEAT.replace("X", "3").replace("STEP", "ns.x * ns.x"),
    "doubling ~": REPEAT.replace("X", "'a'").replace("STEP", "ns.x ~ ns.x"),
    "doubling +": REPEAT.replace("X", "'a'").replace("STEP", "ns.x + ns.x"),
    "doubling list": REPEAT.replace("X", "[1]").replace("STEP", "ns.x + ns.x"),
    "shared lists": REPEAT.replace("X", "[1]").replace("STEP", "[ns.x, ns.x]"),
    "shared dicts": REPEAT.replace("X", "[1]").replace("STEP", "{'a': ns.x, 'b': ns.x}"),
    "shared views": REPEAT.replace("X", "{'a': 1}").replace("STEP", "dict(a=ns.x.items(), b=ns.x.items())"),
    "deep tuples": REPEAT.replace("X", "(1,)").replace("STEP", "(ns.x,)"),
    "slices": LONG + REPEAT.replace("X", "[]").replace("STEP", "ns.x + [a[i:]]"),
    "center": "{{ 'a' | center(10 ** 9) }}",
    "ljust": "{{ 'a'.ljust(10 ** 10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 10) }}",
    "to_bytes": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "printf": "{{ '%0999999999d' % 1 }}",
    "printf filter": "{{ '%0999999999d' | format(1) }}",
    "printf width": "{{ '%*d' % (10 ** 9, 1) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format width": "{{ '{:>{w}}'.format(1, w=10 ** 9) }}",
    "format values": LONG + "{{ ('{x}' * 1000).format(x=a) }}",
    "printf values": LONG + "{{ ('%(x)s' * 1000) % {'x': a} }}",
    "printf filter values": LONG + "{{ ('%(x)s' * 1000) | format(x=a) }}",
    "zfill": "{{ '1'.zfill(10 ** 9) }}",
    "rjust": "{{ 'a'.rjust(10 ** 9) }}",
    "replace": LONG + "{{ a.replace('a', a) }}",
    "replace filter": LONG + "{{ a | replace('a', a) }}",
    "replace nothing": LONG + "{{ a.replace('', a) }}",
    "join": LONG + "{{ a.join(a) }}",
    "join filter": LONG + "{{ range(99999) | join(a) }}",
    "indent": "{% set a = '\n' * 100000 %}{{ a | indent(100000) }}",
    "batch": "{{ [1] | batch(10 ** 9, 0) | list }}",
    "slice filter": "{{ [1] | slice(10 ** 9) | list }}",
    "round": "{{ 1 | round(10 ** 9) }}",
    "sum of lists": "{{ ([[1]] * 10000) | sum(start=[]) }}",
    "json indent": "{{ range(99999) | list | tojson(indent=100000) }}",
    "json separators": LONG + "{{ range(1000) | list | tojson(separators=(a, a)) }}",
    "json escapes": "{% set a = 'é' * 2000000 %}{% set b = a | tojson(ensure_ascii=true) %}",
    "time": "{{ strftime_now('%A' * 1000) }}",
    "lipsum": "{{ lipsum(n=10 ** 9) }}",
    "concatenation": LONG + "{{ " + "a ~ " * 1000 + "a }}",
    "macro": LONG + "{% macro m() %}" + "{{ a }}" * 100 + "{% endmacro %}{% set b = m() %}",
    "outputs": LONG + "{{ a }}" * 100,
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "long chain": "{{ " + "1 + " * 5000 + "1 }}",
    "many ifs": "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "long source": "x" * 300_000,
    "syntax": "{% for %}",
}


def render(template: str, limits: TemplateLimits = LIMITS) -> str:
    tokenizer = Tokenizer(tokenizer_files(byte_level_json(), chat_templates={"default": template}))
    return render_chat(tokenizer, [{"role": "user", "content": "Hi"}], limits=limits)


@pytest.mark.parametrize("template", ESCAPES)
def test_cve_2024_34359_nothing_outside_can_be_reached(template: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(template)


@pytest.mark.parametrize("name", RUNAWAYS)
@pytest.mark.timeout(60)
def test_cve_2025_61620_a_runaway_is_stopped(name: str) -> None:
    """It is refused before it has made what would be too large."""
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError):
            render(RUNAWAYS[name])
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
    assert render("{% set a = ':' * 1000000 %}{{ a | format | length }}", TemplateLimits()) == "1000000"


def test_other_threads_go_on_while_a_template_runs_away() -> None:
    template = RUNAWAYS["nested loops"]
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        with pytest.raises(ChatTemplateError, match=r"ran for more than 0\.5 s"):
            render(template, TemplateLimits(seconds=0.5))
    finally:
        stop.set()
        thread.join()
    assert len(ticks) >= 5


def test_a_template_that_fails_does_not_spoil_the_next_rendering() -> None:
    with pytest.raises(ChatTemplateError):
        render(RUNAWAYS["long block"])
    assert render("{{ messages[0].content }}") == "Hi"


def test_a_value_is_not_measured_beyond_its_limit() -> None:
    met: list[int] = []

    class Watched(list[int]):
        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                met.append(item)
                yield item

    limits = TemplateLimits()
    with pytest.raises(TemplateLimitError, match="would make a value of size"):
        TemplateBudget(limits).size(Watched(range(2 * limits.max_size)))
    assert len(met) <= limits.max_size
