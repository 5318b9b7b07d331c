"""Grammars are tried in a process that may hang, crash or be killed; whoever asked gets an answer and lives on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.small_tokenizers import small_tokenizer

from quire.core.structured_outputs import StructuredOutputs
from quire.engine import grammar_check
from quire.engine.grammar_check import RETRY_AFTER_S, GrammarCheck
from quire.errors import InvalidRequestError, RequestTimeoutError


@pytest.fixture(scope="module")
def shared_check() -> Iterator[GrammarCheck]:
    check = GrammarCheck(small_tokenizer("byte-level"), 1000)
    yield check
    check.close()


@pytest.fixture
def check(shared_check: GrammarCheck) -> GrammarCheck:
    return shared_check


def refusal(check: GrammarCheck, **fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refused:
        check.resolve(StructuredOutputs(**fields))
    return refused.value


def child_id(check: GrammarCheck) -> int:
    assert check._child is not None
    return check._child._process.pid


GOOD: list[dict[str, Any]] = [
    {"json": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}}},
    {"json": {"type": "array", "items": {"$ref": "#"}}},
    {"json_object": True},
    {"regex": r"\d{3}-[a-z]+"},
    {"regex": "(a+)+$"},
    {"choice": ["yes", "no", 'é\n"\\', "😀"]},
    {"grammar": 'start: "a" | NUMBER\nNUMBER: /[0-9]+/'},
    {"grammar": 'root ::= "a" [0-9]+'},
    {"grammar": 'start: "a" </s>'},
    {
        "structural_tag": {
            "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
            "triggers": ["<f"],
        }
    },
]


@pytest.mark.parametrize("fields", GOOD, ids=str)
def test_what_can_be_enforced_is_resolved(check: GrammarCheck, fields: dict[str, Any]) -> None:
    wanted = StructuredOutputs(**fields)
    resolved = check.resolve(wanted)
    assert resolved.compiled_from
    assert resolved.source == wanted.source


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {"const": 1}, "then": {"type": "string"}}, "if"),
        ({"properties": {"a": {"contains": {"const": 1}}}}, "contains"),
        ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "oneOf"),
        ({"$ref": "https://example.com/elsewhere.json"}, "$ref"),
        ({"$ref": "#/definitions/missing"}, "$ref"),
        ({"$schema": "https://example.com/my-own-draft", "type": "object"}, "$schema"),
        ({"type": "string", "format": "color"}, "format"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "object", "patternProperties": {"(?=a)b": {}}}, "patternProperties"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "thing"}, "type"),
        ({"type": "object", "propertyNames": {"minLength": 2}}, "propertyNames"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$id": "x", "$ref": "#"}}, "$id"),
    ],
)
def test_what_a_schema_asks_too_much_is_named(check: GrammarCheck, schema: dict[str, Any], keyword: str) -> None:
    error = refusal(check, json=schema)
    assert error.field == "structured_outputs.json"
    assert keyword in error.value  # type: ignore[operator]
    assert f'"{keyword}"' in str(error)


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "["},
        {"regex": "(?<=a)b"},
        {"grammar": 'start: "a" | missing'},
        {"grammar": "start: start"},
        {"grammar": "root ::= ("},
        {"grammar": 'start: "a" <|no_such_token|>'},
        {"choice": ["\ud800"]},
        {"json": {"$ref": 5, "type": ["string", {}]}},
        {"json": {"enum": []}},
        {"structural_tag": {"structures": []}},
        {"structural_tag": {"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<g"]}},
        {"structural_tag": {"structures": [{"begin": 1}], "triggers": []}},
    ],
    ids=str,
)
def test_cve_2025_48942_bad_schemas_and_regexes_are_refused(check: GrammarCheck, fields: dict[str, Any]) -> None:
    before = child_id(check) if check._child is not None else None
    error = refusal(check, **fields)
    assert error.field == f"structured_outputs.{next(iter(fields))}"
    assert check.resolve(StructuredOutputs(regex="still alive")).compiled_from
    assert before in (None, child_id(check))


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(a?){5000}a{5000}"},
        {"regex": "(" * 100_000 + ")" * 100_000},
        {"grammar": "start: " + "(" * 50_000 + '"a"' + ")" * 50_000},
        {"grammar": "root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000},
        {"grammar": 'start: "a" start'},
        {"json": {"allOf": [{"anyOf": [{"pattern": f"a|{i}", "minLength": i} for i in range(30)]}] * 10}},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_cve_2026_55574_grammars_that_explode_are_refused(check: GrammarCheck, fields: dict[str, Any]) -> None:
    assert "cannot be enforced" in str(refusal(check, **fields))
    assert check.resolve(StructuredOutputs(regex="still alive")).compiled_from


@pytest.mark.timeout(60)
@pytest.mark.parametrize("length", [1, 200_000], ids=["short", "longer than a pipe holds"])
def test_cve_2026_55574_a_compiler_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    hard = "b" * length
    check = GrammarCheck(small_tokenizer("sentencepiece"), 1000)
    try:
        check.resolve(StructuredOutputs(regex="a"))
        monkeypatch.setattr(grammar_check, "TIME_LIMIT_S", 0.2)
        hung = child_id(check)
        os.kill(hung, signal.SIGSTOP)
        # Stopping takes a moment: each of its threads has to notice.
        while ") T " not in Path(f"/proc/{hung}/stat").read_text():
            time.sleep(0.001)
        assert "took more than 0.2 s" in str(refusal(check, regex=hard))
        assert not Path(f"/proc/{hung}").exists()
        monkeypatch.setattr(grammar_check, "TIME_LIMIT_S", 30.0)
        assert check.resolve(StructuredOutputs(regex="c")).compiled_from
        assert "took more than" in str(refusal(check, regex=hard)), "the same grammar is not tried again"
        clock = time.monotonic() + RETRY_AFTER_S + 1
        monkeypatch.setattr(grammar_check, "time", SimpleNamespace(monotonic=lambda: clock))
        assert length > 1 or check.resolve(StructuredOutputs(regex=hard)).compiled_from, "nor held against it for ever"
    finally:
        check.close()


@pytest.mark.parametrize("script", ["#!/bin/sh\nexec sleep 60\n", None], ids=["slow", "no-process"])
def test_a_compiler_that_does_not_start_is_no_fault_of_the_grammar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None
) -> None:
    never_starts = tmp_path / "python"
    if script is not None:
        never_starts.write_text(script)
        never_starts.chmod(0o700)
    check = GrammarCheck(small_tokenizer("byte-level"), 1000)
    try:
        with monkeypatch.context() as slow:
            slow.setattr(grammar_check, "START_LIMIT_S", 0.2)
            slow.setattr(sys, "executable", str(never_starts))
            with pytest.raises(RequestTimeoutError, match=r"did not start within 0\.2 s"):
                check.resolve(StructuredOutputs(regex="a"))
        assert check.resolve(StructuredOutputs(regex="a")).compiled_from, "the same grammar, later"
    finally:
        check.close()


def test_a_compiler_that_crashed_is_replaced() -> None:
    check = GrammarCheck(small_tokenizer("byte-level"), 1000)
    try:
        check.resolve(StructuredOutputs(regex="a"))
        first = child_id(check)
        os.kill(first, signal.SIGKILL)
        assert check._child is not None
        check._child._process.wait()
        assert check.resolve(StructuredOutputs(regex="b")).compiled_from
        assert child_id(check) != first
    finally:
        check.close()


def test_a_compiler_that_dies_as_it_is_asked_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    check = GrammarCheck(small_tokenizer("byte-level"), 1000)
    try:
        assert check.resolve(StructuredOutputs(regex="a+")).compiled_from
        assert check._child is not None
        check._child._process.kill()
        check._child._process.wait()
        monkeypatch.setattr(grammar_check._Child, "alive", True)
        assert "crashed" in str(refusal(check, regex="b+"))
        assert check.resolve(StructuredOutputs(regex="c+")).compiled_from
    finally:
        check.close()


def test_cve_2026_55574_the_compiler_cannot_take_the_machines_memory() -> None:
    script = (
        "from quire.engine import grammar_child as c\n"
        "c._limit_memory()\n"
        "try:\n    bytearray(c.MEMORY_LIMIT + 2**20)\nexcept MemoryError:\n    print('refused')"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "refused\n"


def test_the_child_ends_with_its_parent() -> None:
    """The parent is killed outright; the child sees its input end."""
    script = (
        "import os, signal, sys\n"
        "from quire.core.structured_outputs import StructuredOutputs\n"
        "from quire.engine.grammar_check import GrammarCheck\n"
        "from tests.engine.small_tokenizers import small_tokenizer\n"
        "check = GrammarCheck(small_tokenizer('byte-level'), 1000)\n"
        "check.resolve(StructuredOutputs(regex='a'))\n"
        "print(check._child._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    result = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    assert result.returncode == -signal.SIGKILL
    assert wait_for_end(int(result.stdout))


def wait_for_end(process_id: int) -> bool:
    """Whether a process that is not our child ends; the test's own time limit ends the wait."""
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    ended = bool(poller.poll(30_000))
    os.close(descriptor)
    return ended


def test_cve_2025_29770_ten_thousand_schemas_take_no_more_memory_than_a_few() -> None:
    check = GrammarCheck(small_tokenizer("byte-level"), 1000)
    try:
        sizes = []
        for index in range(10_000):
            check.resolve(StructuredOutputs(json={"const": index}))
            if index in (2_000, 9_999):
                sizes.append(resident_bytes(child_id(check)))
        assert len(check._answers._answers) == grammar_check.MAX_CACHED_ANSWERS
        assert sizes[1] - sizes[0] < 16 * 2**20
    finally:
        check.close()


def test_cve_2025_29770_long_grammars_are_forgotten_sooner(
    monkeypatch: pytest.MonkeyPatch, check: GrammarCheck
) -> None:
    monkeypatch.setattr(grammar_check, "MAX_CACHED_CHARACTERS", 20_000)
    for index in range(40):
        check.resolve(StructuredOutputs(regex=f"{index}" + "b" * 1000))
    assert check._answers._num_characters <= 20_000
    assert check._answers._num_characters == sum(len(answer.grammar) for answer, _ in check._answers._answers.values())


def resident_bytes(process_id: int) -> int:
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
