"""What the guards of all endpoints use: keys, sign-ins to the dashboard, and proxies whose headers are believed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.base.settings import Settings
from gateway.edge.asgi import Connection
from gateway.edge.proxies import TrustedProxies
from gateway.tenancy.tenancy import Tenancy

if TYPE_CHECKING:
    from gateway.tenancy.users.sessions import Sessions

ACCESS = "access"
"""The key of the app's state."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call, and from where. `proxies`: those whose headers are believed."""

    settings: Settings
    tenancy: Tenancy
    sessions: "Sessions"
    proxies: TrustedProxies


def access_of(connection: Connection) -> Access:
    """Return what the guards of the app that serves `connection` use."""
    access: Access = connection.app.state[ACCESS]
    return access
