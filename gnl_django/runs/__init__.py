"""Durable runs: functions whose steps are recorded, so that a crash resumes them (README.md)."""
