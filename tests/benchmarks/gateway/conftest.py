"""The fixtures of the gateway's tests."""

from tests.support.app import gateway, module_app, module_gateway, settings

__all__ = ["gateway", "module_app", "module_gateway", "settings"]
