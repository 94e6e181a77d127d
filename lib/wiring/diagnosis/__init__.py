"""Claims, evidence and verdicts."""
