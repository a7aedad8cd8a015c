"""Why an engine does not run."""


class EngineProblem(Exception):
    """The engine cannot be started or has failed; the message says why, and what to do if something can be done."""
