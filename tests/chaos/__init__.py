"""Fault tests: processes are killed and frozen, connections cut, servers stopped under work."""
