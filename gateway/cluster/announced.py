"""What a replica of a core announces about itself."""

from typing import Literal

import msgspec

from inference_core.transport.tcp import CoreAddress

Role = Literal["both", "prefill", "decode"]
"""Roles of a replica: whole requests; prompts that others answer; answers whose long prompts others compute."""


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's announcement. `name` is unique, also over time. `node`: where it runs, as process `pid`.

    `leaving`: it takes no new requests. `own_knobs`: names of the knobs set by its pool, which changes meant for all
    replicas do not touch.
    """

    name: str
    node: str
    pid: int
    address: CoreAddress
    leaving: bool = False
    role: Role = "both"
    own_knobs: frozenset[str] = frozenset()
