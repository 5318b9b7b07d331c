"""How an encoder's hidden states become one vector, read from the files sentence-transformers keeps beside a model.

modules.json lists the steps in order: the transformer, a pooling, perhaps a normalization. Without it there is
nothing to read, and the family's default holds: the mean of all tokens, normalized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.model_config import PoolingConfig, PoolingKind
from quire.checkpoint.small_file import MAX_SETTINGS_BYTES, read_json, read_json_as
from quire.errors import CheckpointError, UnsupportedModelError

MODULES_FILE, LENGTH_FILE, STEP_FILE = "modules.json", "sentence_bert_config.json", "config.json"
MODES: Mapping[str, PoolingKind] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
STEPS = ("Transformer", "Pooling", "Normalize")


class _Module(msgspec.Struct):
    type: str
    path: str = ""

    @property
    def step(self) -> str:
        """The class's name: files of all versions write it at the end of a module path."""
        return self.type.rsplit(".", 1)[-1]


def read_pooling(directory: Path, default: PoolingConfig) -> PoolingConfig:
    """Raises CheckpointError for damaged files, UnsupportedModelError for steps that quire does not implement."""
    longest = _read_fields(directory / LENGTH_FILE).optional_integer("max_seq_length")
    max_tokens = min(longest or default.max_tokens, default.max_tokens)
    modules = _read_modules(directory / MODULES_FILE)
    if not modules:
        return replace(default, max_tokens=max_tokens)
    steps = [module.step for module in modules]
    if steps not in (["Transformer", "Pooling"], list(STEPS)):
        raise UnsupportedModelError(
            f"{directory / MODULES_FILE} has the steps {', '.join(steps)}; quire supports Transformer and Pooling,"
            " with or without Normalize."
        )
    kind = _read_kind(_read_fields(_within(directory, modules[1].path) / STEP_FILE))
    return PoolingConfig(kind=kind, normalize="Normalize" in steps, max_tokens=max_tokens)


def files_of_modules(modules_file: Path) -> list[str]:
    """What `read_pooling` reads besides a modules.json, by their names within the model. Raises CheckpointError."""
    modules = _read_modules(modules_file)
    for module in modules:
        _within(modules_file.parent, module.path)
    return [LENGTH_FILE, *(f"{module.path}/{STEP_FILE}" for module in modules if module.step == "Pooling")]


def _read_modules(path: Path) -> list[_Module]:
    return read_json_as(path, list[_Module], MAX_SETTINGS_BYTES, "is not a list of modules", if_missing=[])


def _read_fields(path: Path) -> ConfigFields:
    return ConfigFields(read_json(path), str(path))


def _within(directory: Path, path: str) -> Path:
    """A folder named by a file of the model must lie inside the model."""
    folder = directory / path
    if "\0" in path or not folder.resolve().is_relative_to(directory.resolve()):
        raise CheckpointError(f"{directory / MODULES_FILE} points outside the model, to {path!r}.")
    return folder


def _read_kind(fields: ConfigFields) -> PoolingKind:
    """One mode is on; newer files may name it in `pooling_mode` instead."""
    named = fields.text("pooling_mode")
    if named is not None:
        return fields.choice("pooling_mode", {kind: kind for kind in MODES.values()})
    chosen = [name for name in fields.names("pooling_mode_") if fields.flag(name, False)]
    if len(chosen) != 1 or chosen[0] not in MODES:
        raise UnsupportedModelError(
            f"{fields.source} asks for {', '.join(chosen) or 'no pooling'}; quire supports one of {', '.join(MODES)}."
        )
    return MODES[chosen[0]]
