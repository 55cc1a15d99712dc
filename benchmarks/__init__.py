"""Measurements of the queue beside its peers, on a private PostgreSQL, in one run.

`python -m benchmarks` (make bench) is the only caller. docs/benchmarks.md says how it measures.
"""
