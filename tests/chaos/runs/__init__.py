"""Fault tests of durable runs: kills at every point, frozen holders, and the checkers' own test."""
