"""Operators behind one signature an op: reference (bitwise, the oracle), torch, cpu (native); and what they compute with."""
