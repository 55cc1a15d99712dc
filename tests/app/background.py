"""Handlers of the test run that child processes need; tests in this process declare their own."""
