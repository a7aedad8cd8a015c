"""Housekeeping of agents' clients, such as titles and commit messages: what it asks of routing."""

from gateway.base.requests.client_turn import ClientTurn


def is_housekeeping(turn: ClientTurn | None) -> bool:
    """Return whether a request is housekeeping: no step of its session, whose tier it neither takes nor changes."""
    return turn is not None and turn.kind == "housekeeping"


def cheapest_because(turn: ClientTurn | None, mode: str) -> str | None:
    """Return why the cheapest tier that may answer does so without being compared with others, None where it does not.

    `mode`: the knob `agents_housekeeping`.
    """
    if mode != "cheapest" or turn is None or turn.kind != "housekeeping":
        return None
    return f"housekeeping of {turn.client}"
