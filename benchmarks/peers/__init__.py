"""Other durable engines beside ours, on the same server and in turns: `python -m benchmarks.peers`."""
