"""Capture what a running server feeds the draft, and match it to boundaries."""
