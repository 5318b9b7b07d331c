"""What a model needs of memory, from its config alone: weights are neither read nor loaded.

A built-in model, whose config is in the file of its weights, is fetched first. The exit code is 1 if the model does not fit.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from quire.checkpoint.checkpoint import open_checkpoint
from quire.cli.engine_flags import add_engine_flags, engine_arguments
from quire.cli.shared_flags import count
from quire.config import MODEL_HELP, EngineConfig
from quire.errors import InvalidRequestError
from quire.plan.machine import read_machine
from quire.plan.render import render_plan
from quire.plan.resolve import plan_for
from quire.plan.sizes import parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--concurrency", type=count, default=1, metavar="N", help="full-length sequences at once (default: %(default)s)"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="such as 8GiB, or 8G for the same (default: what the engine would take here)"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_engine_flags(
        parser,
        (
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "backend",
            "max_model_len",
            "block_size",
            "max_num_batched_tokens",
            "memory_utilization",
        ),
    )


def run(args: argparse.Namespace) -> int:
    given = engine_arguments(args)
    if args.memory and "memory_utilization" in given:
        raise InvalidRequestError(
            "--memory says all of what may be taken; leave out --memory-utilization.", field="memory_utilization"
        )
    config = EngineConfig(model=args.model, **given)
    model = open_checkpoint(config.model, with_weights=False).config
    machine = read_machine()
    budget = parse_size(args.memory) if args.memory else int(machine.free_memory * config.memory_utilization)
    plan, why_dtype = plan_for(config, model, machine, budget, args.concurrency)
    if args.json:
        print(json.dumps({"model": config.model, **asdict(plan), "fits": plan.fits}, indent=2))
    else:
        print(render_plan(config.model, model, plan, why_dtype))
    return int(not plan.fits)
