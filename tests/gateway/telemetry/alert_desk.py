"""The address by which a server of tests gets alerts."""

from tests.support.upstream import LoopbackServer


def alert_url(server: LoopbackServer) -> str:
    """Return the address for `AIO_ALERT_URLS`: messages are posted as JSON with `title`, `message` and `type`."""
    return f"json://{server.base_url.partition('://')[2]}/enqueue"
