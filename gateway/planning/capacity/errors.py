"""What can be wrong with a question about a fleet."""


class PlanError(ValueError):
    """No fleet can be planned from what was given: the message says what was given and what would do."""
