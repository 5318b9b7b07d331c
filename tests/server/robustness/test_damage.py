"""Cases 3, 15, 26, 27, 38 and 39: late messages, rows of NaN, damaged files, full disks and a wall clock that jumps."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from tests.inside import worker_of
from tests.server.own_server import PATIENCE_S, descendants, own_server, wait_for

import quire
from quire import LLM, SamplingParams
from quire.core.sequence import FinishReason
from quire.core.wire import SampleDelta
from quire.engine.requests_in_progress import RequestsInProgress

SOURCE = Path(quire.__file__).parent
POISON = 10


def test_case_03_events_of_an_aborted_request_are_ignored(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), num_blocks=64, num_threads=1) as llm:
        engine = llm._engine
        request = engine.inputs.process([1] * 40, SamplingParams(max_tokens=50, ignore_eos=True))
        engine.client.add_request(request)
        engine.client.step()
        in_flight = RequestsInProgress(engine.tokenizer)
        in_flight.add(request)
        in_flight.drop(request.request_id)
        late = SampleDelta(request.request_id, 0, [1], finish_reason=FinishReason.LENGTH)
        assert in_flight.digest([late]).outputs == []
        engine.client.abort(request.request_id)
        for _ in range(2):
            engine.client.abort(request.request_id)
            engine.client.engine.finish_sample(request.request_id, 0, "stop")
            assert engine.client.step() == []
        assert engine.client.engine.scheduler.kv.pool.num_held == 0


def test_case_15_a_row_of_nan_fails_alone(tiny_llama: Path) -> None:
    """Weights that are no numbers are refused at the start, so the poison is put in afterwards."""
    greedy = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    poisoned = [[2 + i] * 40 + [POISON] * 20 for i in range(3)]
    with LLM(str(tiny_llama), num_blocks=128, num_threads=1, backend="reference") as llm:
        expected = llm.generate([1] * 40, greedy, use_tqdm=False)[0].outputs[0].text
        embedding = worker_of(llm)._model.embedding.table._weight
        assert embedding.shape[0] == 320
        embedding[POISON] = torch.nan
        for _ in range(2):
            # Again, with what the first left in the prefix cache.
            outputs = llm.generate([*poisoned, [1] * 40], greedy, use_tqdm=False)
            assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 3 + ["length"]
            assert outputs[3].outputs[0].text == expected
            assert all(output.num_cached_tokens <= 32 for output in outputs[:3]), (
                "blocks of NaN are in the prefix cache"
            )
        assert llm._engine.client.engine.scheduler.kv.pool.num_held == 0


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "reshaped", "no numbers"])
def test_case_26_a_damaged_weight_file(tiny_llama: Path, tmp_path: Path, damage: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    file = model / "model.safetensors"
    content = bytearray(file.read_bytes())
    length = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:length])
    match damage:
        case "truncated":
            del content[-1000:]
        case "flipped":
            content[2] ^= 0x40
        case "missing":
            pass
        case "reshaped":
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "intermediate_size": 97}))
        case "no numbers":
            start = length + header["model.norm.weight"]["data_offsets"][0]
            content[start : start + 4] = b"\xff\xff\xff\x7f"
    file.write_bytes(content)
    if damage == "missing":
        file.unlink()
    with own_server(str(model), "--num-threads", "1", ready=False) as server:
        seen = set()
        while server.process.poll() is None:
            seen.add(server.status_of("/health/ready"))
        assert seen <= {503, None}
        assert server.process.returncode == 1
        log = server.log()
        assert "error: " in log
        assert "Traceback" not in log
        assert "safetensors" in log or "model.norm.weight" in log or "mlp" in log, log


def test_case_27_a_vocabulary_larger_than_the_models(tiny_llama: Path, tmp_path: Path) -> None:
    """The tokenizer knows tokens that the model has no row for: texts with them are refused, others are served."""
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    kind = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    known = len(tokenizer["added_tokens"])
    tokenizer["added_tokens"] += [{"id": 256 + i, "content": f"<|{i}|>", **kind} for i in range(known, 80)]
    beyond = "a<|79|>b"
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with own_server(str(model), "--num-blocks", "64", "--num-threads", "1", ready=False) as server:
        wait_for(
            lambda: server.process.poll() is not None or server.status_of("/health/ready") == 200, "an end or readiness"
        )
        if server.process.poll() is not None:
            assert "vocab" in server.log()
            return
        with server.client() as client:
            asked = [
                ("/v1/completions", {"prompt": beyond}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": beyond}]}),
            ]
            for path, body in asked:
                refused = client.post(path, json={**body, "max_tokens": 2})
                assert refused.status_code == 400, refused.text
                assert "335" in refused.text
                assert "319" in refused.text
            assert client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2}).status_code == 200


def test_case_38_a_full_disk_under_the_log(smollm2: str, reserved_port: int) -> None:
    """Every line it writes fails with ENOSPC; every request succeeds."""
    command = [sys.executable, "-m", "quire.cli.main", "serve", smollm2, "--executor", "null", "--num-blocks", "600"]
    with open("/dev/full", "w") as full:
        server = subprocess.Popen(
            [*command, "--port", str(reserved_port)], stdout=full, stderr=full, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{reserved_port}"
        with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:

            def ready() -> bool:
                assert server.poll() is None
                try:
                    return client.get("/health/ready").status_code == 200
                except httpx.TransportError:
                    return False

            wait_for(ready, "readiness")
            for _ in range(20):
                assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
            assert client.post("/v1/completions", json={"prompt": []}).status_code == 400
        everyone = descendants(server.pid)
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
        assert everyone
    finally:
        server.kill()
        server.wait()


def test_case_39_no_time_is_measured_with_the_wall_clock() -> None:
    """Differences and deadlines are of monotonic clocks, so that a jump of the wall clock moves none of them."""
    readers = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"):
                    readers.add(str(path.relative_to(SOURCE)))
    assert readers
    # Spans are told in wall time: the tracer adds the difference of the clocks, as it then is, to monotonic times.
    for reader in readers - {"server/tracing.py"}:
        text = (SOURCE / reader).read_text()
        # As `created` of an answer, or in a log: never subtracted from, or compared with, anything.
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp | ast.Compare):
                parts = [ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Call)]
                assert not any(part.startswith(("time.time(", "datetime.now(")) for part in parts), (
                    f"{reader}:{node.lineno}"
                )
