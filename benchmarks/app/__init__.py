"""The Django app whose one handler is measured."""
