"""A server that streams made-up tokens as fast as it is read, or at a steady pace: what the load generator is measured
against.

Run as a module it prints its port and serves until its stdin closes. Each event carries the monotonic time at which it was
written, so that the reader can tell how late it reads.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """`max_tokens` events; the body's `gap_s` is the time between them."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            body = msgspec.json.decode(await reader.readexactly(length))
            await _stream(writer, body["max_tokens"], body.get("gap_s", 0.0))
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        writer.close()


async def _stream(writer: asyncio.StreamWriter, num_tokens: int, gap_s: float) -> None:
    writer.write(HEAD)
    for _ in range(num_tokens):
        text = repr(time.perf_counter()).encode()
        _write_event(
            writer,
            b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"none",'
            b'"choices":[{"index":0,"delta":{"content":"' + text + b'"},"logprobs":null,"finish_reason":null}]}',
        )
        # Each event leaves alone, as a server sends them: drained, and the other streams get their turn.
        await writer.drain()
        await asyncio.sleep(gap_s)
    usage = b'{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":%d}' % (num_tokens, num_tokens + 1)
    _write_event(writer, b'{"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":' + usage + b"}")
    _write_event(writer, b"[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _write_event(writer: asyncio.StreamWriter, payload: bytes) -> None:
    writer.write(b"%x\r\ndata: %s\n\n\r\n" % (len(payload) + 8, payload))


async def serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
