"""What clipping, noise and freezing do on real data: `python -m benchmarks.measure NAME`."""
