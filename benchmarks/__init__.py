"""What a private step costs, beside a plain PyTorch step and Opacus: ``python -m benchmarks``."""
