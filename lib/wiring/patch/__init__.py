"""The cure: plan, preview, apply, verify, undo."""
