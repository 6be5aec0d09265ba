"""What clipping, noise and freezing do, measured on real data: `python -m benchmarks.measure NAME [--quick]`."""
