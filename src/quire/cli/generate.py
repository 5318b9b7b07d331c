"""Continue prompts: text goes to stdout, progress and logs to stderr."""

from __future__ import annotations

import argparse
import json

from quire.cli.answer import tell
from quire.cli.engine_flags import OF_EVERY_MODEL, add_engine_flags, engine_arguments
from quire.cli.prompts import given_or_stdin
from quire.cli.sampling_flags import add_sampling_flags, sampling_params
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import OutputKind
from quire.engine.llm import LLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="text to continue (default: read one from stdin)")
    parser.add_argument("--chat", action="store_true", help="answer each prompt as a chat message")
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt")
    add_sampling_flags(parser, max_tokens=128, temperature=1.0)
    add_engine_flags(parser, OF_EVERY_MODEL)


def run(args: argparse.Namespace) -> int:
    """The exit code is 1 if a prompt could not be continued."""
    params = sampling_params(args, OutputKind.FINAL_ONLY)
    prompts = given_or_stdin(args.prompts)
    with LLM(**engine_arguments(args)) as llm:
        show_progress = not args.quiet and len(prompts) > 1
        if args.chat:
            conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
            outputs = llm.chat(conversations, params, use_tqdm=show_progress)
        else:
            outputs = llm.generate(prompts, params, use_tqdm=show_progress)
    failed = False
    for prompt, output in zip(prompts, outputs, strict=True):
        error = output.outputs[0].error
        if error is not None:
            failed = True
            tell(f"error: {error}")
        if error is None or args.json:
            print(_as_json(prompt, output) if args.json else _as_text(prompt, output, len(prompts), args.chat))
    return int(failed)


def _as_text(prompt: str, output: RequestOutput, num_prompts: int, chat: bool) -> str:
    """A continued prompt is shown whole; an answer alone, under its question where there are several."""
    text = output.outputs[0].text
    if not chat:
        return prompt + text
    return text if num_prompts == 1 else f"> {prompt}\n{text}\n"


def _as_json(prompt: str, output: RequestOutput) -> str:
    completion = output.outputs[0]
    return json.dumps(
        {
            "prompt": prompt,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "error": None if completion.error is None else completion.error.sentence,
            "num_prompt_tokens": len(output.prompt_token_ids),
            "num_cached_tokens": output.num_cached_tokens,
            "token_ids": completion.token_ids,
        },
        ensure_ascii=False,
    )
