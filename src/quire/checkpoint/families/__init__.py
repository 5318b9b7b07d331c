"""What quire knows of each model family on disk: its config fields, its GGUF metadata, its GGUF tensor names."""

from quire.checkpoint.families.gguf_weights import GGUFWeights
from quire.checkpoint.families.registry import read_config, read_gguf_config

__all__ = ["GGUFWeights", "read_config", "read_gguf_config"]
