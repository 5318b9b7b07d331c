"""Workloads, measurements and reports over the public API."""
