"""Real workers on real databases under a schedule of faults, and a ledger that says what came of it: docs/chaos.md."""
