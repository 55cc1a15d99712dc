"""Tests against models: every interleaving of two acts, and random histories of the queue."""
