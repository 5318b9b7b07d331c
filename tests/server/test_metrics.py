"""The metrics page: its names, its figures, and that no client can make it grow."""

from __future__ import annotations

import asyncio
import os
import random
import string
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from tests.server.records import make_record, status

from quire.core.engine_info import EngineInfo
from quire.core.stats import EngineStats, StepTokens
from quire.server.http_metrics import HTTPMetrics
from quire.server.metrics import Metrics
from quire.server.routes import metrics as metrics_routes

ROOT = Path(__file__).parent.parent.parent

GAUGES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "lora_requests_info",
]
COUNTERS = [
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
]
HISTOGRAMS = [
    "iteration_tokens_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
]
TTFT = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
ITL = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
LATENCY = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"


class Page:
    """A rendered metrics page."""

    def __init__(self, text: bytes | str) -> None:
        text = text if isinstance(text, str) else text.decode()
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (
                sample.name,
                *sorted((k, v) for k, v in sample.labels.items() if k not in ("model_name", "engine")),
            ): sample
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[(name, *sorted(labels.items()))].value

    def bounds(self, name: str) -> list[float]:
        return [float(s.labels["le"]) for s in self.families[name].samples if s.name.endswith("_bucket")]


def read(metrics: Metrics) -> Page:
    return Page(metrics.render())


@pytest.mark.parametrize("namespace", ["quire", "vllm"])
def test_names_types_and_labels_are_the_fields(namespace: str) -> None:
    info = EngineInfo(
        model="smollm2", task="generate", dtype="float32", backend="cpu", num_threads=1, max_model_len=64, block_size=16,
        num_blocks=9, max_num_batched_tokens=64, max_num_seqs=2, scheduling_policy="fcfs", enable_prefix_caching=True,
        max_concurrency=1.0,
    )  # fmt: skip
    heard = msgspec.structs.replace(status(EngineStats(num_accepted_tokens_per_position=[3, 1])), info=info)
    metrics = Metrics("smollm2", namespace, lambda: heard)
    page = read(metrics)
    for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS)):
        for name in names:
            family = page.families[f"{namespace}:{name}"]
            assert family.type == kind, name
            for sample in family.samples:
                assert sample.labels["model_name"] == "smollm2"
                assert sample.labels["engine"] == "0"
                assert kind != "counter" or sample.name == f"{namespace}:{name}_total"
    assert page.value(f"{namespace}:spec_decode_num_accepted_tokens_per_pos_total", position="1") == 1
    assert page.value(f"{namespace}:cache_config_info", block_size="16", num_gpu_blocks="9") == 1


def test_buckets_are_the_fields() -> None:
    page = read(Metrics("m"))
    for name, bounds in (
        ("time_to_first_token_seconds", TTFT),
        ("inter_token_latency_seconds", ITL),
        ("request_time_per_output_token_seconds", ITL),
        ("e2e_request_latency_seconds", LATENCY),
        ("request_queue_time_seconds", LATENCY),
    ):
        assert page.bounds(f"quire:{name}") == [*map(float, bounds.split()), float("inf")], name


def test_a_request_is_observed_once_with_its_times() -> None:
    metrics = Metrics("m")
    metrics.observe_request(make_record())
    page = read(metrics)
    for name, total in (
        ("request_prompt_tokens", 30),
        ("request_generation_tokens", 11),
        ("request_max_num_generation_tokens", 11),
        ("request_params_n", 1),
        ("request_params_max_tokens", 64),
        ("e2e_request_latency_seconds", 4.25),
        ("request_queue_time_seconds", 0.5),
        ("request_prefill_time_seconds", 1.5),
        ("request_decode_time_seconds", 2.0),
        ("request_inference_time_seconds", 3.5),
        ("request_time_per_output_token_seconds", 0.2),
    ):
        assert page.value(f"quire:{name}_count") == 1, name
        assert page.value(f"quire:{name}_sum") == pytest.approx(total), name
    assert page.value("quire:request_success_total", finished_reason="stop") == 1
    assert page.value("quire:request_success_total", finished_reason="abort") == 0


def test_a_request_that_never_ran_has_no_times_of_running() -> None:
    metrics = Metrics("m")
    record = make_record(
        first_scheduled_time=None, first_token_time=None, last_token_time=None, finish_reason="abort", max_tokens=None
    )
    metrics.observe_request(record)
    page = read(metrics)
    assert page.value("quire:request_success_total", finished_reason="abort") == 1
    assert page.value("quire:e2e_request_latency_seconds_count") == 1
    for name in ("request_queue_time_seconds", "request_prefill_time_seconds", "request_params_max_tokens"):
        assert page.value(f"quire:{name}_count") == 0


def test_the_engines_figures_are_its_newest_stats() -> None:
    steps = StepTokens()
    for num_tokens in (1, 1, 20, 99_999):
        steps.add(num_tokens)
    stats = EngineStats(
        num_running=3, num_waiting=2, num_preempted=1, num_blocks=100, num_held_blocks=25, num_free_blocks=70,
        num_cached_blocks=5, num_prompt_tokens=1000, num_generation_tokens=50, num_preemptions=4,
        num_prefix_query_tokens=900, num_prefix_hit_tokens=300, step_tokens=steps,
    )  # fmt: skip
    page = read(Metrics("m", get_status=lambda: status(stats)))
    for name, value in (
        ("num_requests_running", 3), ("num_requests_waiting", 2), ("num_requests_preempted", 1),
        ("kv_cache_usage_perc", 0.25), ("num_blocks_free", 70), ("num_blocks_cached", 5), ("num_blocks_held", 25),
        ("prompt_tokens_total", 1000), ("generation_tokens_total", 50), ("num_preemptions_total", 4),
        ("prefix_cache_queries_total", 900), ("prefix_cache_hits_total", 300),
        ("iteration_tokens_total_count", 4), ("iteration_tokens_total_sum", 100_021),
    ):  # fmt: skip
        assert page.value(f"quire:{name}") == value, name
    assert page.value("quire:iteration_tokens_total_bucket", le="16.0") == 2
    assert page.value("quire:iteration_tokens_total_bucket", le="+Inf") == 4


def test_wall_clock_jumps_change_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 39: every figure comes from the monotonic clock, and no wall-clock creation times are shown."""
    pages = []
    for offset in (0.0, 3600.0, -3600.0):
        wall = time.time
        monkeypatch.setattr(time, "time", lambda wall=wall, offset=offset: wall() + offset)
        metrics = Metrics("m")
        metrics.observe_request(make_record())
        metrics.observe_first_token(0.5)
        pages.append(metrics.render())
        monkeypatch.undo()
    assert pages[0] == pages[1] == pages[2]
    assert b"_created" not in pages[0]


def test_times_that_run_backwards_between_processes_are_zero_not_negative() -> None:
    metrics = Metrics("m")
    metrics.observe_request(make_record(first_scheduled_time=99.0, finished_time=98.0, last_token_time=101.0))
    metrics.observe_first_token(-1.0)
    metrics.observe_tokens(-0.001)
    assert all(sample.value >= 0 for sample in read(metrics).samples.values())


def make_app(metrics: Metrics) -> FastAPI:
    app = FastAPI()
    app.state.server = SimpleNamespace(metrics=metrics)
    app.include_router(metrics_routes.router)

    @app.post("/v1/models/{model}")
    async def model(model: str) -> str:
        return model

    app.add_middleware(HTTPMetrics, metrics=metrics)
    return app


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def ask_randomly(app: FastAPI, count: int, rng: random.Random) -> None:
    async with client(app) as http:
        for _ in range(count):
            word = "".join(rng.choices(string.ascii_uppercase, k=12))
            await http.request(word, "/v1/models/m")
            await http.request("POST", f"/v1/models/{word}", headers={"x-request-id": word})
            await http.request("GET", f"/{word}")


def test_cve_2026_105759_random_methods_and_models_make_no_series() -> None:
    """Not one, so that 500 of each show what any number would."""
    metrics = Metrics("m")
    app = make_app(metrics)
    rng = random.Random(0)
    asyncio.run(ask_randomly(app, 2, rng))
    before = set(read(metrics).samples)
    asyncio.run(ask_randomly(app, 500, rng))
    page = read(metrics)
    assert set(page.samples) == before
    responses = "quire:http_responses_total"
    assert page.value(responses, route="/v1/models/{model}", status="200") == 502
    assert page.value(responses, route="none", status="404") == 502


def test_routes_of_metrics_and_load() -> None:
    stats = EngineStats(num_running=2, num_waiting=3, num_blocks=10, num_held_blocks=5)
    metrics = Metrics("m", get_status=lambda: status(stats))

    async def ask() -> tuple[httpx.Response, httpx.Response]:
        async with client(make_app(metrics)) as http:
            return await http.get("/metrics"), await http.get("/load")

    page, load = asyncio.run(ask())
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert Page(page.text).value("quire:num_requests_waiting") == 3
    assert load.json() == {
        "server_load": 5, "num_requests_running": 2, "num_requests_waiting": 3, "kv_cache_usage_perc": 0.5,
    }  # fmt: skip


WORKER = """
import sys
sys.path.insert(0, {root!r})
from tests.server.records import make_record, status
from quire.core.stats import EngineStats
from quire.server.metrics import Metrics
metrics = Metrics("m", get_status=lambda: status(EngineStats(num_running=7, num_prompt_tokens=500)))
for _ in range(int(sys.argv[1])):
    metrics.observe_request(make_record())
    metrics.observe_first_token(0.5)
    metrics.observe_response("/v1/completions", 200)
print(metrics.render().decode())
"""


def test_any_of_several_api_processes_shows_the_whole(tmp_path: Path) -> None:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    pages = []
    for count in (3, 4, 0):
        done = subprocess.run(
            [sys.executable, "-c", WORKER.format(root=str(ROOT)), str(count)],
            env=env, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        pages.append(Page(done.stdout))
    assert [page.value("quire:e2e_request_latency_seconds_count") for page in pages] == [3, 7, 7]
    last = pages[-1]
    assert last.value("quire:time_to_first_token_seconds_sum") == 3.5
    assert last.value("quire:request_success_total", finished_reason="stop") == 7
    assert last.value("quire:http_responses_total", route="/v1/completions", status="200") == 7
    assert last.value("quire:num_requests_running") == 7, "the engine's figures come once, not once a process"
    assert last.value("quire:prompt_tokens_total") == 500
    single = read(Metrics("m"))
    assert set(single.families) == set(last.families)
