"""A model on disk, whatever its format: its config, its tokenizer, its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from quire.checkpoint.families import GGUFWeights, read_config, read_gguf_config
from quire.checkpoint.generation_config import read_generation_config
from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from quire.checkpoint.identity import digest_files
from quire.checkpoint.model_config import ModelConfig
from quire.checkpoint.pooling import read_pooling
from quire.checkpoint.reference import DirectoryModel, GGUFModel, resolve_model
from quire.checkpoint.safetensors_files import SafetensorsFiles
from quire.checkpoint.small_file import read_json
from quire.checkpoint.tokenizer_files import TokenizerFiles, read_tokenizer_files
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
    def notes(self) -> Sequence[str]:
        """A line for a start to say of each thing in the files that is left unused."""

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
        self.weight_files: Sequence[Path] = [files.path]
        self.name = files.name
        file = GGUFFile(files.path)
        self._file: GGUFFile | None = file
        self._metadata = file.metadata
        self.config = read_gguf_config(file.metadata, file.tensors, str(files.path))
        self.notes: Sequence[str] = ()

    @cached_property
    def identity(self) -> str:
        return digest_files((), [self._path])

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        config = self.config
        return read_gguf_tokenizer(self._metadata, str(self._path), config.vocab_size, config.eos_token_ids)

    def open_weights(self) -> WeightSource:
        """Hands over the file that is open already (its metadata are large); asked again, opens it again."""
        file, self._file = self._file or GGUFFile(self._path), None
        return GGUFWeights(self.config, file)


class DirectoryCheckpoint:
    """A model in Hugging Face's layout."""

    def __init__(self, files: DirectoryModel) -> None:
        self._directory = files.directory
        self.weight_files: Sequence[Path] = files.weights
        self.name = files.name
        path = files.directory / "config.json"
        config = read_config(read_json(path), str(path))
        generation = read_generation_config(files.directory / "generation_config.json", config.vocab_size)
        self.notes: Sequence[str] = generation.notes
        self.config = replace(
            config,
            eos_token_ids=tuple(dict.fromkeys((*config.eos_token_ids, *generation.eos_token_ids))),
            pooling=None if config.pooling is None else read_pooling(files.directory, config.pooling),
        )

    @cached_property
    def identity(self) -> str:
        return digest_files([self._directory / "config.json"], self.weight_files)

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer_files(self._directory, self.config.vocab_size, self.config.eos_token_ids)

    def open_weights(self) -> WeightSource:
        return SafetensorsFiles(self.weight_files)
