"""How fast the engine is, as shares of what the same database allows: `python -m benchmarks`."""
