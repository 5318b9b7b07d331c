"""Models on disk, without torch: references, downloads, GGUF and safetensors files, typed model configs, tokenizers."""
