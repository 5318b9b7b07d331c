"""The KV cache as control sees it: block pool, prefix cache, eviction, and the manager that hands out block tables."""
