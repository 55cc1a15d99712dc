"""The ground floor: clock, databases, leases, loop, pool, payloads, registry."""
