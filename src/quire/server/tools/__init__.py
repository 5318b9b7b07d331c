"""Calls of tools: the formats models write them in, finding them in text, and making models write them."""
