"""One model on one device: the executor the engine knows, and behind it the worker, its rows and its KV cache."""
