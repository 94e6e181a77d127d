"""The EAGLE-3 draft in plain PyTorch, and the reference target with hooks on every boundary."""
