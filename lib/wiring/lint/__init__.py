"""Lint (evidence L): do draft, target and the server's arguments agree with each other? From files, in seconds."""

from wiring.lint.checks import CHECKS, LintResult, lint
from wiring.lint.findings import LintFinding, NotChecked
from wiring.lint.server_arguments import READ, Changed, ServerView

__all__ = ["CHECKS", "READ", "Changed", "LintFinding", "LintResult", "NotChecked", "ServerView", "lint"]
