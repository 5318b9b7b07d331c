"""Decoders and encoders in plain Python over `Ops`, one file a family."""
