"""Each peer's own half: how it makes its tables, enqueues, and says what is unfinished.

A side is imported by `benchmarks.producer` in the peer's own interpreter and environment; the
benchmark itself never imports a queue.
"""
