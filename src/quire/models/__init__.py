"""Decoders in plain torch, one file a family, and the loader that fills them."""
