"""GGUF model files: metadata and quantized tensors, read from a memory map and dequantized a few rows at a time."""

from quire.checkpoint.gguf.reader import GGUFFile
from quire.checkpoint.gguf.tensor_table import GGUFTensor

__all__ = ["GGUFFile", "GGUFTensor"]
