"""The process that tries a grammar before an engine does: `python -m quire.engine.grammar_child`.

Compiling what a stranger wrote may take any time and memory, so it happens here, where it may fail, hang or be killed.
What is said over stdin and stdout is in grammar_frames.py. A vocabulary matters only by its special tokens, which
grammars may name.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import threading
from typing import IO, Any

import llguidance
import msgspec

from quire.core.structured_outputs import MAX_LEXER_STATES
from quire.engine.grammar_frames import GrammarAnswer, GrammarQuestion, GrammarVocabulary, read_frame, write_frame

MEMORY_LIMIT = 512 * 2**20
"""Bytes the process may take beyond what it starts with."""
SECONDS_TO_LIVE = 20
"""Of one question, should the process that asked be gone and nobody left to kill this one."""
STACK_SIZE = 2 * 2**20
"""Less than what the engine's threads have: what fits here cannot overflow there."""
NUM_TRIED_BYTES = 32
SPREAD = 7919
"""Far from one choice to the next."""

JSON_OPTIONS = {
    # A model that may write whitespace without end often does. One space after a comma or colon is what most write.
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    # Never less than the schema says.
    "lenient": False,
    "coerce_one_of": False,
}
_KEYWORDS_OF_COMPLAINTS = (
    ("oneOf constraints", "oneOf"),
    ("is not present in a registry", "$ref"),
    ("Pointer '", "$ref"),
    ("Invalid URI reference", "$ref"),
    ("circular references", "$ref"),
    ("Unknown format", "format"),
    ("regex parse error", "pattern patternProperties"),
    ("patternProperty regexes", "patternProperties"),
    ("min/maxProperties", "minProperties maxProperties"),
    ("float range", "minimum maximum exclusiveMinimum exclusiveMaximum"),
    ("integer range", "minimum maximum exclusiveMinimum exclusiveMaximum"),
    ("Invalid type", "type"),
    ("an $id beside $ref", "$id"),
)
"""What llguidance complains of, and the keywords that may be meant where the complaint does not name it."""


class _ByteVocabulary:
    """One token a byte, among ids as large as the model's, in the form llguidance asks for."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        special = {**dict.fromkeys(vocabulary.eos_token_ids, "<eos>"), **vocabulary.special_tokens}
        size = max(vocabulary.vocab_size, 256 + len(special), *(token_id + 1 for token_id in special))
        self.tokens = [b""] * size
        ordinary = (token_id for token_id in range(size) if token_id not in special)
        self._id_of_byte = [next(ordinary) for _ in range(256)]
        for byte, token_id in enumerate(self._id_of_byte):
            self.tokens[token_id] = bytes([byte])
        for token_id, text in special.items():
            self.tokens[token_id] = text.encode()
        self.special_token_ids = sorted(special)
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        return [self._id_of_byte[byte] for byte in (text.encode() if isinstance(text, str) else text)]


def answer(question: GrammarQuestion, tokenizer: llguidance.LLTokenizer, special: set[str]) -> GrammarAnswer:
    """Compile the grammar and try it on a text."""
    try:
        grammar = _to_llguidance(question, special)
    except Exception as error:  # converters raise whatever they stumble over
        return _refusal(question, str(error) or type(error).__name__)
    limits = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        _follow_some_text(matcher)
    if not matcher.is_error():
        return GrammarAnswer(grammar=grammar)
    return _refusal(question, matcher.get_error())


def _refusal(question: GrammarQuestion, complaint: str) -> GrammarAnswer:
    if complaint.startswith("NoExtension"):
        return GrammarAnswer(refusal="no text satisfies it")
    keywords = _keywords(complaint, question.source) if question.kind in ("json", "structural_tag") else []
    return GrammarAnswer(refusal=_first_words(complaint), keywords=keywords)


def _follow_some_text(matcher: llguidance.LLMatcher) -> None:
    """Write a few bytes that the grammar allows: some grammars outgrow their limits only when they are used."""
    for step in range(NUM_TRIED_BYTES):
        mask = matcher.compute_bitmask()
        allowed = [8 * i + bit for i, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
        if matcher.is_stopped() or not allowed:
            return
        matcher.consume_token(allowed[step * SPREAD % len(allowed)])


def _to_llguidance(question: GrammarQuestion, special: set[str]) -> str:
    match question.kind:
        case "json":
            _refuse_old_reference_beside_id(json.loads(question.source))
            return llguidance.LLMatcher.grammar_from_json_schema(question.source, overrides=JSON_OPTIONS)  # type: ignore[arg-type]
        case "json_object":
            return llguidance.LLMatcher.grammar_from_json_schema('{"type":"object"}', overrides=JSON_OPTIONS)  # type: ignore[arg-type]
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(question.source)
        case "grammar" | "choice":
            return llguidance.grammar_from(question.kind, question.source)
        case "structural_tag":
            return llguidance.LLMatcher.grammar_from_lark(_tags_to_lark(json.loads(question.source), special))


def _tags_to_lark(tag: dict[str, Any], special: set[str]) -> str:
    """vLLM's form of structural tags. Triggers that are special tokens of the model are matched as such."""
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not structures or not isinstance(triggers, list):
        raise ValueError("it needs `structures` and `triggers`, both lists, and at least one structure")
    tags = []
    for structure in structures:
        begin, end, schema = (structure.get(key) for key in ("begin", "end", "schema"))
        if not isinstance(begin, str) or not isinstance(end, str) or not isinstance(schema, dict):
            raise ValueError("each of its structures needs `begin` and `end`, both texts, and `schema`, an object")
        trigger = next((t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None)
        if trigger is None:
            raise ValueError(f"none of its triggers is how {begin[:80]!r} begins")
        grammar = {**schema, "x-guidance": JSON_OPTIONS}
        tags.append(llguidance.StructTag(trigger=trigger, begin=begin, grammar=grammar, end=end))
    assume_special = all(tag.trigger in special for tag in tags if tag.trigger[0] == "<" and tag.trigger[-1] == ">")
    return llguidance.StructTag.to_grammar(tags, assume_special=assume_special)


def _refuse_old_reference_beside_id(schema: object) -> None:
    """Up to draft 7 an `$id` beside `$ref` is ignored; llguidance resolves the reference against it.

    At the root both ways lead to the same schema.
    """
    draft = str(schema.get("$schema", "")) if isinstance(schema, dict) else ""
    if re.search(r"draft-0[3-7]", draft) is None:
        return
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            beside = isinstance(value.get("$ref"), str) and ("$id" in value or "id" in value)
            if beside and value is not schema:
                raise ValueError("an $id beside $ref has no effect in this draft")
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def _keywords(complaint: str, source: str) -> list[str]:
    """The keywords of the schema that a complaint is about."""
    unimplemented = re.search(r"Unimplemented keys: (\[.*?\])", complaint)
    if unimplemented is not None:
        return [str(key) for key in json.loads(unimplemented[1])]
    missing = re.search(r"Resource '([^'#]+)", complaint)
    if missing is not None and f'"$schema":"{missing[1]}' in source:
        return ["$schema"]
    meant = next((keywords.split() for words, keywords in _KEYWORDS_OF_COMPLAINTS if words in complaint), [])
    meant += re.findall(r"'(\w+)'", complaint) if not meant else []
    return [keyword for keyword in meant if f'"{keyword}":' in source]


def _first_words(text: str) -> str:
    """What a person needs of an error: its text before llguidance's dump of its own state."""
    return " ".join(re.split(r"<state>|<non-verbose/>|<backtrace>", text)[0].split())[:200]


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:
        size = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_LIMIT, size + MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    first = read_frame(requests)
    if first is None:
        return
    vocabulary = msgspec.msgpack.decode(first, type=GrammarVocabulary)
    wrapper = llguidance.TokenizerWrapper(_ByteVocabulary(vocabulary))
    tokenizer = llguidance.LLTokenizer(wrapper, eos_token=vocabulary.eos_token_ids)
    special = set(vocabulary.special_tokens.values())
    write_frame(answers, GrammarAnswer())
    while (frame := read_frame(requests)) is not None:
        signal.alarm(SECONDS_TO_LIVE)
        write_frame(answers, answer(msgspec.msgpack.decode(frame, type=GrammarQuestion), tokenizer, special))
        signal.alarm(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not reach the frames
    if os.path.exists("/proc/self/statm"):
        _limit_memory()
    threading.stack_size(STACK_SIZE)
    thread = threading.Thread(target=_serve, args=(sys.stdin.buffer, answers))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
