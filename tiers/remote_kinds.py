"""Which wire a tier's `remote.kind` speaks."""

from tiers.openai_wire import OpenAIWire
from tiers.remote_wire import RemoteWire
from tiers.tier_spec import TierSpec


def wire_of(spec: TierSpec) -> RemoteWire:
    """The wire to the server of `spec`, which has a `remote` table."""
    assert spec.remote is not None
    return OpenAIWire(spec.remote)
