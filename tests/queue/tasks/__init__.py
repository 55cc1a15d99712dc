"""Tests of the backend of django.tasks; skipped on a Django without it."""
