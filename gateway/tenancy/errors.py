"""What is wrong with an order about keys, teams and budgets."""


class TenancyError(ValueError):
    """An order that cannot be carried out as things stand; `param` names the field that says so."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownSubjectError(TenancyError):
    """There is no key, team or budget of that id or name."""
