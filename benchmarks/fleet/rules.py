"""The interface of the rules that are compared, and the simplest of them."""

from typing import Protocol

from gateway.planning.scaling.scaling import Observation


class ScalingRule(Protocol):
    """Decides how many replicas there should be, once per interval."""

    def desired(self, seen: Observation) -> int:
        """Return at least 0; the caller applies limits."""
        ...


class FixedRule:
    """Always the same number."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def desired(self, seen: Observation) -> int:
        return self._replicas
