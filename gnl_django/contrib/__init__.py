"""Optional adapters to other libraries; each needs its extra."""
