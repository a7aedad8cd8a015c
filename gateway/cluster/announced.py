"""What a replica of a core says of itself to those who look for it."""

from typing import Literal

import msgspec

from inference_core.transport.tcp import CoreAddress

Role = Literal["both", "prefill", "decode"]
"""What a replica is for: whole requests; prompts that others answer; answers, whose long prompts others compute."""


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is unique, also among those of the past. `node`: where it runs, as process `pid`.

    `leaving`: it takes no new requests. `own_knobs`: the names of those that its pool was started with; changes that
    are meant for all replicas leave them alone.
    """

    name: str
    node: str
    pid: int
    address: CoreAddress
    leaving: bool = False
    role: Role = "both"
    own_knobs: frozenset[str] = frozenset()
