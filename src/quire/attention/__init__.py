"""Paged attention: one protocol, its backends, and a table of them that says why one cannot run a model."""
