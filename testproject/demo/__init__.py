"""The demo: real work through the queue, with the test project around it.

`python -m testproject.demo` (or `make demo`) runs it; docs/demo.md describes it. Nothing here is
part of the library.
"""
