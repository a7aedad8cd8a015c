"""Service levels over all gateway processes behind one port."""

import logging

import msgspec

from gateway.peers.peers import Peers
from gateway.telemetry.objectives.service_levels import Figures, ServiceLevels, merged

log = logging.getLogger(__name__)
_figures = msgspec.msgpack.Decoder(Figures)


async def levels_of_all(levels: ServiceLevels, peers: Peers | None) -> Figures:
    """This process's figures and those of the others that answer."""
    own = levels.figures()
    if peers is None:
        return own
    found = [own]
    for worker, reply in (await peers.ask("levels")).items():
        try:
            found.append(_figures.decode(reply))
        except msgspec.DecodeError as error:
            log.warning("worker %d's service levels are left out: %s", worker, error)
    return merged(found)
