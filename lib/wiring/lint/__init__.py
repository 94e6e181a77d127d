"""Check from files alone, in seconds, that draft, target and a server's arguments fit together."""

from wiring.checkpoints.file_findings import Finding
from wiring.lint.checks import CHECKS, LintResult, NotChecked, lint
from wiring.lint.lint_inputs import READ, Changed, ServerView

__all__ = ["CHECKS", "READ", "Changed", "Finding", "LintResult", "NotChecked", "ServerView", "lint"]
