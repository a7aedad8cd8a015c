"""Lasting effects of an attack on a gateway, to compare before and after."""

from typing import Any

from tests.support.served import ServedProcess


def left_behind(aio: ServedProcess) -> dict[str, Any]:
    """Keys, teams, the audit trail, files, and the number of served requests."""
    paths = ("/admin/api/keys", "/admin/api/teams", "/admin/api/transitions", "/v1/files")
    found = {path: aio.admin.get(path).raise_for_status().json() for path in paths}
    lines = aio.admin.get("/metrics").text.splitlines()
    return found | {"requests": [line for line in lines if line.startswith("aio_requests_total")]}
