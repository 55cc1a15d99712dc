"""The ground floor: clock, database dialects, leases, loop, pool, payloads, registry."""
