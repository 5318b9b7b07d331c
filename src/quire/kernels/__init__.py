"""Torch operators behind one signature an op: reference (bitwise, the oracle) and torch (fast)."""
