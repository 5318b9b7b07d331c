"""Models from a hub: one commit for every file, data files only, and clear errors. Each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import NEW, OLD, REPOSITORY, Hub, serve_hub
from tests.tiny_models import save_sentence_transformer

from quire.checkpoint.hub import fetch_repository, parse_repository
from quire.checkpoint.model_config import PoolingConfig
from quire.checkpoint.pooling import read_pooling
from quire.errors import DownloadError, ModelNotFoundError

RESOLVE = """
import json, sys
from quire.checkpoint.reference import resolve_model
from quire.errors import QuireError
try:
    model = resolve_model(sys.argv[1], with_weights=json.loads(sys.argv[2]))
    print(json.dumps({"name": model.name, "directory": str(model.directory), "weights": [p.name for p in model.weights]}))
except QuireError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
"""

WITHOUT_WAITING = "import time; time.sleep = lambda seconds: None"
"""The hub's library tries six times to reach it, and waits 23 s between the tries."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as hub:
        shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
        for commit in (OLD, NEW):
            hub.commits[commit] = {
                "config.json": b"{}",
                "tokenizer.json": commit.encode(),
                "chat_template.jinja": b"{{ messages }}",
                "model.safetensors.index.json": json.dumps({"weight_map": shards}).encode(),
                "model-1.safetensors": commit.encode(),
                "model-2.safetensors": commit.encode(),
                "pytorch_model.bin": b"pickle",
                "modeling_evil.py": b"raise SystemExit",
            }
        yield hub


def resolve(
    reference: str,
    hub: Hub,
    home: Path,
    *,
    with_weights: bool = True,
    offline: bool = False,
    program: str = RESOLVE,
) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    environment["HF_HUB_OFFLINE"] = str(int(offline))
    command = [sys.executable, "-c", program, reference, json.dumps(with_weights)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_cve_2026_47155_every_file_comes_from_the_commit_the_branch_had_at_first(hub: Hub, tmp_path: Path) -> None:
    def move_branch(revision: str, name: str) -> None:
        hub.branches["main"] = NEW

    hub.before_reply = move_branch
    model = resolve(REPOSITORY, hub, tmp_path)
    assert model["weights"] == ["model-1.safetensors", "model-2.safetensors"]
    directory = Path(model["directory"])
    contents = {name: (directory / name).read_text() for name in ("tokenizer.json", *model["weights"])}
    assert set(contents.values()) == {OLD}
    assert {revision for revision, name in hub.asked if name != "config.json"} == {OLD}


def test_code_and_pickles_are_never_asked_for(hub: Hub, tmp_path: Path) -> None:
    resolve(REPOSITORY, hub, tmp_path)
    suffixes = {Path(name).suffix for name in hub.files_fetched()}
    assert suffixes <= {".json", ".txt", ".jinja", ".safetensors"}


def test_how_an_encoder_pools_is_fetched_too(hub: Hub, tmp_path: Path) -> None:
    wanted = {"modules.json", "sentence_bert_config.json", "1_Pooling/config.json"}
    made = tmp_path / "made"
    made.mkdir()
    save_sentence_transformer(made, mode="cls_token", normalize=True, max_tokens=40)
    hub.commits[OLD] |= {name: (made / name).read_bytes() for name in wanted}
    directory = Path(resolve(REPOSITORY, hub, tmp_path)["directory"])
    assert read_pooling(directory, PoolingConfig(kind="mean", normalize=True, max_tokens=512)) == PoolingConfig(
        kind="cls", normalize=True, max_tokens=40
    )


def test_steps_of_an_encoder_outside_its_model_are_not_asked_for(hub: Hub, tmp_path: Path) -> None:
    hub.commits[OLD]["modules.json"] = json.dumps([{"type": "x.Pooling", "path": "../../other"}]).encode()
    assert resolve(REPOSITORY, hub, tmp_path)["error"] == "CheckpointError"
    assert not any("other" in name for name in hub.files_fetched())


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Hub, tmp_path: Path) -> None:
    hub.branches["v2"] = NEW
    for revision in ("v2", NEW):
        model = resolve(f"{REPOSITORY}@{revision}", hub, tmp_path)
        assert (Path(model["directory"]) / "tokenizer.json").read_text() == NEW


def test_planning_fetches_no_weights(hub: Hub, tmp_path: Path) -> None:
    assert resolve(REPOSITORY, hub, tmp_path, with_weights=False)["weights"] == []
    assert not any(name.endswith("safetensors") for name in hub.files_fetched())


def test_what_is_cached_works_offline(hub: Hub, tmp_path: Path) -> None:
    online = resolve(REPOSITORY, hub, tmp_path)
    hub.url = "http://127.0.0.1:9"
    assert resolve(REPOSITORY, hub, tmp_path) == online


def test_offline_with_nothing_cached_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    error = resolve(REPOSITORY, hub, tmp_path, offline=True)
    assert error["error"] == "DownloadError"
    assert f"hf download {REPOSITORY} --revision main" in error["message"]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """What `hf download` leaves of a whole model: nothing says which files the repository lacks."""
    cached = tmp_path / "hub" / "models--org--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(OLD)
    snapshot = cached / "snapshots" / OLD
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (snapshot / name).write_text("{}")
    (snapshot / "model.safetensors").touch()
    return snapshot


def test_offline_what_another_program_cached_is_whole(hub: Hub, tmp_path: Path, snapshot: Path) -> None:
    model = resolve(REPOSITORY, hub, tmp_path, offline=True)
    assert model == {"name": REPOSITORY, "directory": str(snapshot), "weights": ["model.safetensors"]}
    assert hub.asked == []


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_offline_what_a_model_cannot_do_without_is_named(hub: Hub, tmp_path: Path, snapshot: Path, name: str) -> None:
    (snapshot / name).unlink()
    error = resolve(REPOSITORY, hub, tmp_path, offline=True)
    assert error["error"] == "DownloadError"
    assert f"{name} of {REPOSITORY}@" in error["message"]
    assert f"hf download {REPOSITORY}" in error["message"]


def test_without_offline_mode_a_hub_out_of_reach_may_have_more(hub: Hub, tmp_path: Path, snapshot: Path) -> None:
    hub.url = "http://127.0.0.1:9"
    error = resolve(REPOSITORY, hub, tmp_path, program=f"{WITHOUT_WAITING}\n{RESOLVE}")
    assert error["error"] == "DownloadError"
    assert "HF_HUB_OFFLINE=1" in error["message"]


def test_an_error_without_words_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr("quire.checkpoint.hub.hf_hub_download", broken)
    repository = parse_repository("org/never-fetched")
    assert repository is not None
    with pytest.raises(DownloadError, match="failed: ConnectionResetError; run it again"):
        fetch_repository(repository, with_weights=False)


@pytest.mark.parametrize("reference", ["org/na--me", "org/name.git", "org/name-", f"org/na..me@{OLD}"])
def test_names_that_no_hub_takes(reference: str) -> None:
    repository = parse_repository(reference)
    assert repository is not None
    with pytest.raises(ModelNotFoundError, match="The hub has no model org/na"):
        fetch_repository(repository, with_weights=False)


def test_what_the_hub_does_not_have(hub: Hub, tmp_path: Path) -> None:
    assert resolve("org/other", hub, tmp_path)["error"] == "ModelNotFoundError"
    assert resolve(f"{REPOSITORY}@nope", hub, tmp_path)["error"] == "ModelNotFoundError"
    del hub.commits[OLD]["model-2.safetensors"]
    missing_shard = resolve(REPOSITORY, hub, tmp_path)
    assert missing_shard["error"] == "ModelNotFoundError"
    assert "model-2.safetensors" in missing_shard["message"]
    del hub.commits[NEW]["config.json"]
    assert "no config.json" in resolve(f"{REPOSITORY}@{NEW}", hub, tmp_path)["message"]


def test_an_index_that_points_outside_is_refused(hub: Hub, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../../../../etc/passwd"}}
    hub.commits[OLD]["model.safetensors.index.json"] = json.dumps(index).encode()
    assert resolve(REPOSITORY, hub, tmp_path)["error"] == "CheckpointError"
    assert not any("passwd" in name for name in hub.files_fetched())


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("org/name", "org/name@main"),
        ("Org-1/name.v2@refs/pr/3", "Org-1/name.v2@refs/pr/3"),
        ("org/name@", None),
        ("../name", None),
        ("org/na me", None),
        ("org/name/file", None),
        ("org/name@../x", None),
        ("name", None),
    ],
)
def test_repository_references(reference: str, expected: str | None) -> None:
    repository = parse_repository(reference)
    assert (None if repository is None else str(repository)) == expected
