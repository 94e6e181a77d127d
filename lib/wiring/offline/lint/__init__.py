"""Lint (evidence L): do draft, target and the server's arguments agree with each other? From files, in seconds."""

from wiring.offline.lint.checks import CHECKS, LintResult, lint
from wiring.offline.lint.finding import LintFinding, NotChecked
from wiring.offline.lint.server import READ, Changed, ServerView

__all__ = ["CHECKS", "READ", "Changed", "LintFinding", "LintResult", "NotChecked", "ServerView", "lint"]
