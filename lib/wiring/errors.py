"""The error type of the package: the problem, where, what was expected and found, and the remedy."""

from __future__ import annotations


class WiringError(Exception):
    """A problem in the user's input or on the user's machine.

    `code` names the problem in kebab case ("layout-not-numbers"); programs and tests compare it, so it stays the same
    if the wording changes. `problem` is the sentence; `where` names the file, field, port or process; `expected` and
    `found` are the two sides of the mismatch; `remedy` is the next step. Empty parts are left out of the message.
    """

    def __init__(
        self,
        problem: str,
        *,
        code: str = "",
        where: object = "",
        expected: object = "",
        found: object = "",
        remedy: str = "",
    ):
        self.code, self.problem, self.where, self.remedy = code, problem, str(where), remedy
        self.expected, self.found = str(expected), str(found)
        super().__init__(self._sentence())

    def as_json(self) -> dict[str, str]:
        """Return the parts by name and the whole sentence as `message`; an empty part is an empty string."""
        parts = ("code", "problem", "where", "expected", "found", "remedy")
        return {"message": str(self)} | {name: getattr(self, name) for name in parts}

    def _sentence(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        sides = [f"{name} {value}" for name, value in (("expected", self.expected), ("found", self.found)) if value]
        if sides:
            text += f" ({', '.join(sides)})"
        return f"{text}. {self.remedy}." if self.remedy else f"{text}."


class UnreadForward(WiringError):
    """The draft asks for a forward pass that the workbook does not implement, so no accuracy can be computed."""
