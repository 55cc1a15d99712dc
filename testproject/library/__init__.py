"""The demo's app: an index of the Python source files installed beside it."""
