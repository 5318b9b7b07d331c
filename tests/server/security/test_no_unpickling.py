"""Nothing is ever unpickled or evaluated: neither by a look at the source nor on any socket that listens."""

from __future__ import annotations

import argparse
import ast
import base64
import json
import os
import pickle
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import zmq
from starlette.routing import Route
from tests.server.own_server import OwnServer, descendants, exchange, own_server, status_line, wait_for

import quire
from quire import LLM
from quire.checkpoint.checkpoint import open_checkpoint
from quire.cli import serve
from quire.core.wire import FromEngine, ToEngine
from quire.engine.frames import VERSION_BYTE, BadFrameError, Frames
from quire.errors import QuireError
from quire.server.routes import ROUTERS

SOURCE = Path(quire.__file__).parent
MODULES = frozenset(
    ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle")
)
CALLS = frozenset(("eval", "exec", "compile", "__import__"))
ATTRIBUTES = frozenset(("send_pyobj", "recv_pyobj", "send_serialized", "recv_serialized", "load_module"))


class Bomb:
    """Unpickled, it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return Path.touch, (self.marker,)  # type: ignore[return-value]


def breaches(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in MODULES:
                yield str(node.module)
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in CALLS:
                yield function.id
            if isinstance(function, ast.Attribute):
                owner = function.value.id if isinstance(function.value, ast.Name) else ""
                if function.attr in ATTRIBUTES or (owner, function.attr) in (("torch", "load"), ("np", "load")):
                    yield f"{owner}.{function.attr}"
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            yield node.arg


def test_cve_2024_9052_no_module_unpickles_or_evaluates() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    found = {f"{path.relative_to(SOURCE)}: {what}" for path in files for what in breaches(ast.parse(path.read_text()))}
    assert found == set()


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from dill import loads", "eval('1')", "torch.load('x')", "s.recv_pyobj()", "f(allow_pickle=1)"],
)
def test_the_gate_sees(line: str) -> None:
    assert list(breaches(ast.parse(line)))


WORDS = ("sampling_params", "sampling_rules", "structured_outputs", "embedding", "wire")
BEFORE_THE_ENGINE = ("server", "client", "cli", "checkpoint", "engine", *(f"core/{name}.py" for name in WORDS))
"""Where input is read and let in; what lies behind (scheduler, worker, models) sees only what was let in."""


def guards(tree: ast.AST) -> Iterator[ast.Assert]:
    """Asserts on which something could hang: all but those that tell the type checker what is no None, or of which
    class; without these the next line fails as well."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)])):
                continue
            case ast.Assert(test=ast.Call(func=ast.Name(id="isinstance"))):
                continue
            case ast.Assert():
                yield node


def test_cve_2026_41523_no_check_of_input_is_an_assert() -> None:
    places = [SOURCE / name for name in BEFORE_THE_ENGINE]
    paths = {path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place])}
    assert len(paths) > 100
    for path in paths:
        assert [node.lineno for node in guards(ast.parse(path.read_text()))] == [], path
    assert list(guards(ast.parse("assert key == 'sesame'")))


@pytest.fixture(scope="module")
def private_server(smollm2: str) -> Iterator[tuple[OwnServer, Path]]:
    """A server, and the directory of its sockets."""
    folder = tempfile.mkdtemp(prefix="q")
    try:
        with own_server(
            smollm2, "--executor", "null", "--num-blocks", "4096", environment={"TMPDIR": folder}
        ) as server:
            (directory,) = Path(folder).iterdir()
            yield server, directory
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def listening_sockets(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if stat.S_ISSOCK(path.stat().st_mode))


def completes(server: OwnServer) -> bool:
    with server.client() as client:
        answer = client.post("/v1/completions", json={"prompt": "still there?", "max_tokens": 3})
        return answer.status_code == 200 and client.get("/health").status_code == 200


def test_cve_2024_9052_pickles_on_every_socket_are_dropped_and_counted(
    private_server: tuple[OwnServer, Path], tmp_path: Path
) -> None:
    server, directory = private_server
    everyone = sorted(descendants(server.pid))
    sockets = listening_sockets(directory)
    assert {path.name for path in sockets} >= {"requests", "outputs-0", "status"}
    marker = tmp_path / "marker"
    bomb = pickle.dumps(Bomb(marker))
    frames = [bomb, VERSION_BYTE + bomb, b"", VERSION_BYTE, b"\xff" * 1000, VERSION_BYTE + b"\x93" * 5000]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for path in sockets:
        for kind in (zmq.PUSH, zmq.SUB, zmq.DEALER, zmq.REQ):
            with context.socket(kind) as attacker:
                # Those that are counted below must arrive, however late the engine reads them.
                arrives = kind == zmq.PUSH and path.name == "requests"
                attacker.setsockopt(zmq.LINGER, 60_000 if arrives else 500)
                attacker.connect(f"ipc://{path}")
                if kind == zmq.SUB:
                    attacker.setsockopt(zmq.SUBSCRIBE, bomb)
                    continue
                for frame in frames if kind == zmq.PUSH else frames[:1]:
                    if kind == zmq.PUSH and path.name != "requests":
                        # No pipe opens to a socket of a kind that does not pull.
                        attacker.setsockopt(zmq.SNDTIMEO, 100)
                    try:
                        attacker.send(frame)
                    except zmq.Again:
                        break
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path))
            raw.sendall(bomb * 100)
    context.term()
    wait_for(lambda: f"Dropped bad frame {len(frames)} " in server.log(), "the count of bad frames")
    assert status_line(exchange(server.port, bomb + b"\r\n\r\n")) == 400
    assert not marker.exists()
    pickle.loads(bomb)
    assert marker.exists(), "the bomb is none"
    assert completes(server)
    assert sorted(descendants(server.pid)) == everyone


def test_cve_2025_47277_the_directory_of_the_sockets_is_private(private_server: tuple[OwnServer, Path]) -> None:
    _, directory = private_server
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_cve_2025_30202_only_the_api_port_listens(private_server: tuple[OwnServer, Path]) -> None:
    server, _ = private_server
    inodes = set()
    for pid in (server.pid, *descendants(server.pid)):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # of a file that was closed meanwhile
                target = os.readlink(link)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1])
    # The kernel writes 127.0.0.1 in the machine's byte order.
    address = int.from_bytes(socket.inet_aton("127.0.0.1"), "little")
    assert listening == [f"{address:08X}:{server.port:04X}"]


ENDPOINTS = sorted(
    route.path
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, Route) and "POST" in (route.methods or ())
)


def test_cve_2025_10164_no_endpoint_takes_tensors(private_server: tuple[OwnServer, Path], tmp_path: Path) -> None:
    """Pickles, as bodies and in fields where other servers take serialized tensors: refused, or passed over."""
    server, _ = private_server
    marker = tmp_path / "marker"
    bomb = pickle.dumps(Bomb(marker))
    coded = base64.b64encode(bomb).decode()
    fields = dict.fromkeys(("prompt_embeds", "serialized_named_tensors", "tensors", "multi_modal_data"), coded)
    assert len(ENDPOINTS) > 8
    with server.client() as client:
        for path in ENDPOINTS:
            for kind in ("application/octet-stream", "application/x-pickle", "application/json"):
                answer = client.post(path, content=bomb, headers={"Content-Type": kind})
                assert answer.status_code == 400, (path, kind, answer.text)
            assert client.post(path, json=fields).status_code == 400, path
            client.post(path, json={**fields, "prompt": coded, "input": coded, "messages": [], "max_tokens": 1})
        for path in ("/update_weights_from_tensor", "/load_lora_adapter", "/v1/load_lora_adapter"):
            assert client.post(path, content=bomb).status_code == 404
    assert completes(server)
    assert not marker.exists()


def test_cve_2025_10164_no_flag_turns_it_on() -> None:
    """Weights come from safetensors and GGUF: there is no other format to choose, and no code to trust."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    flags = parser.format_help()
    assert "--api-key" in flags
    assert not re.search(r"--(load-format|trust-remote-code|[\w-]*(pickle|torch-load|loader|serializ)[\w-]*)", flags)


@pytest.mark.parametrize("kind", [ToEngine, FromEngine])
def test_cve_2025_32444_frames_of_another_version_or_type_are_refused(kind: object) -> None:
    frames: Frames[object] = Frames(kind)
    other = bytes([VERSION_BYTE[0] + 1])
    for frame in (
        b"",
        other,
        VERSION_BYTE,
        other + msgspec.msgpack.encode({}),
        VERSION_BYTE + msgspec.msgpack.encode([1]),
    ):
        with pytest.raises(BadFrameError):
            frames.decode(frame)


def test_cve_2025_24357_a_pickled_checkpoint_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    marker = tmp_path / "marker"
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(QuireError, match="safetensors"):
        open_checkpoint(str(model))
    (model / "model.safetensors").write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(QuireError):
        LLM(str(model), num_blocks=16, num_threads=1)
    assert not marker.exists()


def test_cve_2025_66448_code_in_a_model_folder_never_runs(tiny_llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    marker = tmp_path / "marker"
    code = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nclass X:\n    pass\n"
    for name in ("modeling_x.py", "configuration_x.py", "tokenization_x.py", "__init__.py"):
        (model / name).write_text(code)
    for file, keys in (
        ("config.json", {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.X"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["tokenization_x.X", None]}),
    ):
        settings = json.loads((model / file).read_text())
        (model / file).write_text(json.dumps({**settings, "auto_map": keys, "trust_remote_code": True}))
    with own_server(str(model), "--num-blocks", "64", "--num-threads", "1") as server, server.client() as client:
        body = {
            "prompt": "a",
            "max_tokens": 1,
            "trust_remote_code": True,
            "model_path": str(model),
            "code_revision": "main",
        }
        client.post("/v1/completions", json=body)
        assert completes(server)
    assert not marker.exists()
