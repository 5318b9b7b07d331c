"""What HTTP costs: tokens a second through one API process, and latency beyond the same engine in this process.

    python -m benchmarks.front_end
    python -m benchmarks.front_end --num-streams 64 --max-tokens 500

The engine computes nothing (null executor). Steps that reach an API process which is behind are sent as one chunk, so
both are printed, tokens and chunks a second. The client here counts bytes and parses nothing. CPU shares are of one
core, read from /proc. Prints text, and writes JSON with --output.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.script import argument_parser, write_json

from quire.bench.statistics import percentile
from quire.client.address import ServerAddress
from quire.client.server_process import ServerProcess
from quire.config import EngineConfig
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.engine.async_llm import AsyncLLM
from quire.engine.launch import launch
from quire.engine.local_engine import LocalEngine

MODEL = "smollm2"
TOKEN = b'"delta":{"content":'
LATENCY_TOKENS = 8


@dataclass
class Counts:
    num_chunks: int = 0
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)


async def ask(address: ServerAddress, counts: Counts, num_requests: int, max_tokens: int) -> None:
    """Streamed chats, one after the other on one connection."""
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=2**20)
    for number in range(num_requests):
        body = {"messages": [{"role": "user", "content": f"hello {number}"}], "max_tokens": max_tokens}
        data = json.dumps(body | {"stream": True, "ignore_eos": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in address.headers.items())
        start = time.perf_counter()
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        first, tail = True, b""
        while not tail.endswith(b"0\r\n\r\n"):
            read = await reader.read(2**18)
            assert read, "the server closed the connection"
            num_chunks = read.count(TOKEN)
            counts.num_chunks += num_chunks
            if first and num_chunks:
                first = False
                counts.ttft_s.append(time.perf_counter() - start)
            tail = (tail + read)[-16:]
        counts.e2e_s.append(time.perf_counter() - start)
    writer.close()


async def ask_many(address: ServerAddress, num_streams: int, num_requests: int, max_tokens: int) -> Counts:
    counts = Counts()
    await asyncio.gather(*(ask(address, counts, num_requests, max_tokens) for _ in range(num_streams)))
    return counts


async def ask_in_process(num_requests: int) -> Counts:
    llm = AsyncLLM.over(LocalEngine(launch(EngineConfig(model=MODEL, num_blocks=4096), "null")))
    params = SamplingParams(max_tokens=LATENCY_TOKENS, ignore_eos=True, output_kind=OutputKind.DELTA)
    counts = Counts()
    for number in range(num_requests):
        start, first = time.perf_counter(), True
        prompt = await llm.chat_prompt([{"role": "user", "content": f"hello {number}"}])
        async for _ in llm.generate(prompt, params):
            if first:
                counts.ttft_s.append(time.perf_counter() - start)
            first = False
        counts.e2e_s.append(time.perf_counter() - start)
    llm.shutdown()
    return counts


def cpu_seconds(pid: int) -> dict[str, float]:
    """Of a server's processes, by what they are."""
    seconds = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        name = Path(f"/proc/{child}/cmdline").read_text().split("\0")[2].rpartition(".")[2]
        ticks = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]
        seconds[name] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return seconds


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--num-streams", type=int, default=64)
    parser.add_argument("--num-requests", type=int, default=4, help="of each stream")
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--num-latencies", type=int, default=400, help="requests one by one")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with ServerProcess([MODEL, "--executor", "null", "--num-blocks", "4096"]) as server:
        server.wait_until("/health/ready", 120)
        asyncio.run(ask_many(server.address, 1, 20, LATENCY_TOKENS))
        before, start = cpu_seconds(server.pid), time.perf_counter()
        counts = asyncio.run(ask_many(server.address, args.num_streams, args.num_requests, args.max_tokens))
        seconds = time.perf_counter() - start
        after = cpu_seconds(server.pid)
        alone = asyncio.run(ask_many(server.address, 1, args.num_latencies, LATENCY_TOKENS))
    inside = asyncio.run(ask_in_process(args.num_latencies))
    num_tokens = args.num_streams * args.num_requests * args.max_tokens
    result: dict[str, Any] = {
        "num_streams": args.num_streams,
        "tokens_per_s": num_tokens / seconds,
        "chunks_per_s": counts.num_chunks / seconds,
        "cpu_share": {name: (after[name] - before[name]) / seconds for name in after},
        "http_ttft_ms": 1e3 * percentile(alone.ttft_s, 50),
        "http_e2e_ms": 1e3 * percentile(alone.e2e_s, 50),
        "in_process_ttft_ms": 1e3 * percentile(inside.ttft_s, 50),
        "in_process_e2e_ms": 1e3 * percentile(inside.e2e_s, 50),
    }
    shares = ", ".join(f"{name} {share:.0%}" for name, share in result["cpu_share"].items())
    print(
        f"{args.num_streams} streams: {result['tokens_per_s']:,.0f} tokens/s in {result['chunks_per_s']:,.0f} chunks/s ({shares})"
    )
    for name in ("ttft", "e2e"):
        http, own = result[f"http_{name}_ms"], result[f"in_process_{name}_ms"]
        print(f"one by one, {name} p50: {http:.2f} ms over HTTP, {own:.2f} ms in process: {http - own:.2f} ms more")
    write_json(args.output, result)


if __name__ == "__main__":
    main()
