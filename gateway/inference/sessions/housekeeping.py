"""Housekeeping of agents' clients, such as titles and commit messages: what it asks of routing."""

from gateway.base.requests.client_turn import ClientTurn


def is_housekeeping(turn: ClientTurn) -> bool:
    """Return whether a request is housekeeping: no step of its session, whose tier it neither takes nor changes."""
    return turn.kind == "housekeeping"


def cheapest_because(turn: ClientTurn, mode: str) -> str | None:
    """Return why the cheapest tier that may answer does so without being compared with others, None where it does not.

    `mode`: the knob `agents_housekeeping`.
    """
    return f"housekeeping of {turn.client}" if mode == "cheapest" and is_housekeeping(turn) else None
