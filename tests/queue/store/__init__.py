"""Tests of the stores that the conformance tests do not hold."""
