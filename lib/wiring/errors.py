"""The error that users see: what is wrong, where, what was expected and found, and what to do."""

from __future__ import annotations


class WiringError(Exception):
    """A problem in the user's input or machine, told in one sentence and a remedy.

    `where` names the file, field, port or process; `expected` and `found` are the two sides of the
    mismatch; `remedy` is the next thing to do. Empty parts are left out of the message.
    """

    def __init__(
        self, problem: str, *, where: object = "", expected: object = "", found: object = "", remedy: str = ""
    ):
        self.problem, self.where, self.remedy = problem, str(where), remedy
        self.expected, self.found = str(expected), str(found)
        super().__init__(self._sentence())

    def as_json(self) -> dict[str, str]:
        """The parts, and the whole as `message`; an empty part is an empty string."""
        parts = ("problem", "where", "expected", "found", "remedy")
        return {"message": str(self)} | {name: getattr(self, name) for name in parts}

    def _sentence(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        sides = [f"{name} {value}" for name, value in (("expected", self.expected), ("found", self.found)) if value]
        if sides:
            text += f" ({', '.join(sides)})"
        return f"{text}. {self.remedy}." if self.remedy else f"{text}."


class UnreadForward(WiringError):
    """A draft that is whole, but asks for a forward pass that the workbook does not have: no number can be computed."""
