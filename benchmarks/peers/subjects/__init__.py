"""What each peer runs, as a process in that peer's own environment: `python -m benchmarks.peers.subjects`.

Nothing here imports what only our environment has, and mypy leaves the peers' own modules out.
"""
