"""Paged attention: one protocol, its backends, and a table that picks one and says why the others were refused."""
