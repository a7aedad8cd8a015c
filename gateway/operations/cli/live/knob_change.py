"""Shared by the commands for the gateway's own knobs: change a part's knobs, and show them as a table."""

from typing import Any

from gateway.operations.cli.live.knobs import ask_server, assignment, echo_changes, json_text
from gateway.operations.cli.options import table


def change_part(
    path: str, assignments: tuple[str, ...], reason: str | None, url: str, key: str | None, as_json: bool
) -> None:
    """PATCH the knobs at `path` to NAME=VALUE…, and print what changed."""
    answer = ask_server(url, key, "PATCH", path, dict(map(assignment, assignments)) | {"reason": reason})
    echo_changes(answer, as_json, lambda change, text: text)


def knob_table(shown: dict[str, Any]) -> str:
    """Return a table of a part's knobs with their values and descriptions."""
    rows = [[name, json_text(shown["knobs"][name]), schema["description"]] for name, schema in shown["schemas"].items()]
    return table(["knob", "value", "what it is"], rows)
