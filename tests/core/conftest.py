"""Hypothesis without its deadline: how fast a machine is says nothing about a property."""

from hypothesis import settings

settings.register_profile("gnl", deadline=None, print_blob=True)
settings.load_profile("gnl")
