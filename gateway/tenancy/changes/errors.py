"""Errors of commands about keys, teams and budgets."""


class TenancyError(ValueError):
    """A command that cannot be carried out in the current state; `param` names the field responsible."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownSubjectError(TenancyError):
    """There is no key, team or budget of that id or name."""
