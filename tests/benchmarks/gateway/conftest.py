"""The fixtures of the gateway's tests."""

from tests.gateway.conftest import gateway, served, settings

__all__ = ["gateway", "served", "settings"]
