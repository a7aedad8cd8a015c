"""What a replica of a core says of itself to those who look for it."""

import msgspec

from inference_core.tcp_transport import CoreAddress


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is unique, also among those of the past. `node`: where it runs, as process `pid`.

    `leaving`: it takes no new requests.
    """

    name: str
    node: str
    pid: int
    address: CoreAddress
    leaving: bool = False
