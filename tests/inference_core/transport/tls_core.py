"""A scripted core behind TLS in its own process, for attacks: `python -m … FOLDER` prints its port, ends with stdin.

Two more arguments replace the time of a handshake and the pause between logged refusals, in seconds.
"""

import asyncio
import sys

from inference_core.transport import handshake
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import TcpListener
from inference_core.transport.tls import CertificateFolder
from tests.inference_core.transport.scripted_core import ScriptedCore

SECRET = b"the secret of this core"


async def serve(folder: str) -> None:
    """Until standard input is closed."""
    listener = TcpListener("127.0.0.1", SECRET, tls=CertificateFolder(folder))
    server = CoreServer(ScriptedCore, listener)
    await server.start()
    print(listener.address.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        handshake.HANDSHAKE_SECONDS, handshake.LOG_SECONDS = map(float, sys.argv[2:])
    asyncio.run(serve(sys.argv[1]))
