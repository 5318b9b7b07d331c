"""A model on disk, whatever its format: its config, its tokenizer, its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from quire.checkpoint.families import gguf_weights, read_config, read_gguf_config
from quire.checkpoint.families.checks import check_token_ids
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from quire.checkpoint.identity import digest_files
from quire.checkpoint.model_config import ModelConfig
from quire.checkpoint.pooling import read_pooling
from quire.checkpoint.reference import DirectoryModel, GGUFModel, resolve_model
from quire.checkpoint.safetensors_files import SafetensorsFiles
from quire.checkpoint.tokenizer_files import TokenizerFiles, read_json, read_tokenizer_files
from quire.checkpoint.weights import WeightSource


class Checkpoint(Protocol):
    """A model whose config has been read; the rest is read when asked for."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def identity(self) -> str:
        """SHA-256 (hex) of what determines the computation; see `quire.checkpoint.identity`."""

    @property
    def tokenizer(self) -> TokenizerFiles:
        """Raises CheckpointError or UnsupportedModelError."""

    @property
    def weight_files(self) -> Sequence[Path]: ...

    def open_weights(self) -> WeightSource:
        """The caller closes it. Raises CheckpointError."""


def open_checkpoint(reference: str, *, with_weights: bool = True) -> Checkpoint:
    """Find a model (see `resolve_model`) and read its config.

    `with_weights=False` is for planning: a directory or repository then needs no weight files. Code that comes with
    a model (`auto_map`) is never loaded: the architecture must be one quire implements.
    """
    files = resolve_model(reference, with_weights=with_weights)
    return GGUFCheckpoint(files) if isinstance(files, GGUFModel) else DirectoryCheckpoint(files)


class GGUFCheckpoint:
    """A model in one GGUF file."""

    def __init__(self, files: GGUFModel) -> None:
        self._path = files.path
        self.name = files.name
        file = GGUFFile(files.path)
        self._file: GGUFFile | None = file
        self._metadata = file.metadata
        self.config = read_gguf_config(file.metadata, file.tensors, str(files.path))

    @cached_property
    def identity(self) -> str:
        return digest_files((), [self._path])

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return read_gguf_tokenizer(self._metadata, str(self._path), self.config.vocab_size)

    @property
    def weight_files(self) -> Sequence[Path]:
        return [self._path]

    def open_weights(self) -> WeightSource:
        """Hands over the file that is open already (its metadata are large); asked again, opens it again."""
        file, self._file = self._file or GGUFFile(self._path), None
        return gguf_weights(self.config, file)


class DirectoryCheckpoint:
    """A model in Hugging Face's layout."""

    def __init__(self, files: DirectoryModel) -> None:
        self._directory = files.directory
        self._weights = files.weights
        self.name = files.name
        path = files.directory / "config.json"
        config = read_config(read_json(path), str(path))
        ends = _read_more_ends(files.directory / "generation_config.json", config.vocab_size)
        self.config = replace(
            config,
            eos_token_ids=tuple(dict.fromkeys((*config.eos_token_ids, *ends))),
            pooling=None if config.pooling is None else read_pooling(files.directory, config.pooling),
        )

    @cached_property
    def identity(self) -> str:
        return digest_files([self._directory / "config.json"], self._weights)

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer_files(self._directory, self.config.vocab_size, self.config.eos_token_ids)

    @property
    def weight_files(self) -> Sequence[Path]:
        return self._weights

    def open_weights(self) -> WeightSource:
        return SafetensorsFiles(self._weights)


def _read_more_ends(path: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a text besides config.json's: generation_config.json may name some."""
    ends = ConfigFields(read_json(path), str(path)).token_ids("eos_token_id")
    check_token_ids(ends, vocab_size, str(path))
    return ends
