"""Fixtures of the gateway's tests, which live in `tests/support`."""

from tests.support.alert_sender import _ready_sender, ready_alert_sender  # noqa: F401 - fixtures
from tests.support.app import aio, app, gateway, module_app, module_gateway, settings  # noqa: F401 - fixtures
from tests.support.served import _served, module_served  # noqa: F401 - fixtures
from tests.support.upstream import own_upstream, upstream  # noqa: F401 - fixtures
