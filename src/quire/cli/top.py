"""Watch a server in the terminal: load, KV cache, tokens a second, latencies. Works with vLLM's metrics, too.

Percentiles and rates are of the time between two looks. Ctrl-C ends it. Without a terminal each look is printed below the last.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import httpx
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from quire.client.address import DEFAULT_URL, RemoteError, ServerAddress, parse_address
from quire.client.server_metrics import Change, MetricsReading, read_metrics
from quire.errors import InvalidRequestError

LATENCIES = (
    ("TTFT", "time_to_first_token_seconds"),
    ("ITL", "inter_token_latency_seconds"),
    ("E2EL", "e2e_request_latency_seconds"),
    ("queue", "request_queue_time_seconds"),
)
PERCENTILES = (50, 90, 99)
BARS = "▁▂▃▄▅▆▇█"
HISTORY = 60
TIMEOUT_S = 5.0
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.05, 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", nargs="?", default=DEFAULT_URL, metavar="URL", help="default: %(default)s")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="look twice, print one frame and end")


def run(args: argparse.Namespace) -> None:
    if not MIN_INTERVAL_S <= args.interval <= MAX_INTERVAL_S:
        raise InvalidRequestError(
            f"--interval must be {MIN_INTERVAL_S} to {MAX_INTERVAL_S:g} seconds, got {args.interval:g}.",
            field="interval",
            value=args.interval,
        )
    address = parse_address(args.url, args.api_key)
    console, watch = Console(), Watch(address)
    with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http:
        first = read_metrics(http, address)
        if args.once:
            time.sleep(args.interval)
            console.print(watch.frame(Change(first, read_metrics(http, address))))
        elif console.is_interactive:
            with Live(watch.frame(Change(first, first)), console=console, screen=True, auto_refresh=False) as live:
                watch_until_stopped(http, watch, first, args.interval, partial(live.update, refresh=True))
        else:
            watch_until_stopped(http, watch, first, args.interval, console.print)


def watch_until_stopped(
    http: httpx.Client,
    watch: Watch,
    last: MetricsReading,
    interval_s: float,
    show: Callable[[RenderableType], object],
) -> None:
    """A server that is away is waited for; what was last seen of it stays on the screen."""
    while True:
        time.sleep(interval_s)
        try:
            newest = read_metrics(http, watch.address)
        except RemoteError as error:
            show(watch.lost(str(error)))
            continue
        show(watch.frame(Change(last, newest)))
        last = newest


class Watch:
    """Draws frames, and remembers what the next ones need: the last frame and the recent speeds."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self._speeds: deque[float] = deque(maxlen=HISTORY)
        self._shown: RenderableType = Text("")

    def frame(self, change: Change) -> RenderableType:
        self._speeds.append(change.rate("generation_tokens_total"))
        self._shown = Panel(
            Group(_figures(change), Text(sparkline(self._speeds), style="green"), Text(), _latencies(change)),
            title=Text(f"quire top  {self.address.root}  {_printable(change.after.model)}"),
            title_align="left",
        )
        return self._shown

    def lost(self, reason: str) -> RenderableType:
        return Group(self._shown, Text(_printable(reason), style="bold red"), Text("waiting for it ..."))


def sparkline(values: deque[float]) -> str:
    """The highest value is the full block."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[round(value / highest * (len(BARS) - 1))] for value in values)


def _figures(change: Change) -> Table:
    """Columns are as wide as what is in them; on a terminal that is narrower still, figures go on in the next line."""
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        table.add_column(overflow="fold")
    _add_load(table, change.after)
    table.add_row()
    _add_cache(table, change)
    table.add_row()
    _add_speed(table, change)
    return table


def _add_load(table: Table, reading: MetricsReading) -> None:
    values = reading.values
    running, waiting = values.get("num_requests_running", 0.0), values.get("num_requests_waiting", 0.0)
    table.add_row("running", f"{running:,.0f}", "waiting", f"{waiting:,.0f}")
    if "num_requests_preempted" in values:
        table.add_row("", "", "preempted", f"{values['num_requests_preempted']:,.0f}")


def _add_cache(table: Table, change: Change) -> None:
    reading = change.after
    usage = reading.values.get("kv_cache_usage_perc", 0.0) / reading.num_engines
    style = "red" if usage > 0.95 else "green"
    bar = ProgressBar(total=1.0, completed=min(max(usage, 0.0), 1.0), width=24, complete_style=style)
    table.add_row("KV cache", bar, "used", f"{usage:.1%}")
    hits = change.share("prefix_cache_hits_total", "prefix_cache_queries_total")
    preemptions = reading.values.get("num_preemptions_total", 0.0)
    more = f" (+{change.increase('num_preemptions_total'):,.0f})"
    table.add_row("prefix hits", "-" if hits is None else f"{hits:.1%}", "preemptions", f"{preemptions:,.0f}{more}")


def _add_speed(table: Table, change: Change) -> None:
    table.add_row("prompt", f"{change.rate('prompt_tokens_total'):,.0f} tok/s", "", "")
    generation = f"{change.rate('generation_tokens_total'):,.0f} tok/s"
    table.add_row("generation", generation, "requests", f"{change.rate('request_success_total'):,.1f} /s")


def _latencies(change: Change) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for _ in PERCENTILES:
        table.add_column(min_width=8, justify="right")
    table.add_row("", *(f"p{percent}" for percent in PERCENTILES), style="dim")
    for label, name in LATENCIES:
        table.add_row(label, *(_seconds(change.percentile(name, percent)) for percent in PERCENTILES))
    return table


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{1000 * value:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def _printable(text: str) -> str:
    """A server's words, without codes that would command the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
