"""What uploads of one caller that stop, drip or fill the room do to the transcriptions of another."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from socket import socket
from tempfile import TemporaryDirectory

from tests.attacks.exchange import Client
from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import SHORT_TIMES, Target
from tests.hostile.target import Outcome, attack_class
from tests.loop_thread import on_a_thread
from tests.polling import until
from tests.support.administrator import ADMIN_KEY
from tests.support.served import served
from tests.support.upstream import Call, LoopbackServer, write_remote_catalog

PATH = "/v1/audio/transcriptions"
MEDIA = """
[[targets]]
name = "media"
url = "{url}"
model = "media-1"
serves = ["transcriptions", "images"]
"""
MIB = 2**20
MOST = 64 * MIB
FORM_HEAD = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nmedia\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
)
FORM_END = b"\r\n--b--\r\n"
# What has arrived of an upload when it stops.
ARRIVED = (0, 1, 100_000, 5 * MIB, 40 * MIB, 60 * MIB)


async def _write_down(call: Call) -> None:
    await call.reply(200, {"text": "hello"})


def _begun(client: Client, key: str | None, path: str, arrived: int) -> socket:
    """A connection on which a form of the largest size is announced and stops."""
    connection = client.connect()
    authorization = b"" if key is None else b"Authorization: Bearer %b\r\n" % key.encode()
    head = b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n" % (
        path.encode(), f"{client.host}:{client.port}".encode(), authorization, MOST,
    )  # fmt: skip
    with suppress(ConnectionError):
        connection.sendall(head + b"Content-Type: multipart/form-data; boundary=b\r\n\r\n")
        if arrived:
            connection.sendall(FORM_HEAD + bytes(arrived))
    return connection


@attack_class("neighbours of uploads", 240, "open")
def neighbours_of_uploads(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Forms of 64 MiB that are announced, and stop at once, later or near their end, by strangers, by several keys of a
    team and by another key: transcriptions of a further key are answered meanwhile."""
    with TemporaryDirectory() as folder, on_a_thread(LoopbackServer(_write_down)) as (media, _):
        data = Path(folder) / "data"
        data.mkdir()
        catalog = write_remote_catalog(data / "catalog.toml", target.upstream.base_url)
        with catalog.open("a") as file:
            file.write(MEDIA.format(url=media.base_url))
        environment = SHORT_TIMES | {"NO_PROXY": "127.0.0.1", "AIO_REQUEST_SECONDS": "60"}
        with served(data, data.parent / "cache", "--catalog", str(catalog), environment=environment) as aio:
            host, port = aio.url.removeprefix("http://").split(":")
            with Client(host, int(port)) as client:
                keys = _keys(client)
                done = 0
                while done < count:
                    with ExitStack() as stack:
                        for _ in range(draw.randint(2, 6)):
                            owner = draw.choice(("ada", "ann", "bob", None))
                            path = draw.choice((PATH, PATH, "/v1/images/edits"))
                            begun = _begun(client, owner and keys[owner], path, draw.choice(ARRIVED))
                            stack.callback(begun.close)
                        for _ in range(8):
                            done += 1
                            form = FORM_HEAD + bytes(draw.choice((1000, 200_000, 3 * MIB, 8 * MIB))) + FORM_END
                            answer = client.ask(
                                "POST", PATH, form, key=keys["eve"],
                                content_type="multipart/form-data; boundary=b",
                            )  # fmt: skip
                            fell = (
                                "" if answer.status == 200 else f"a neighbour got {answer.status} {answer.text[:200]}"
                            )
                            yield outcome_of(answer, f"{len(form)} bytes beside uploads that stop", fell)


def _keys(client: Client) -> dict[str, str]:
    """ada and ann share a team."""
    client.ask("POST", "/admin/api/teams", {"name": "research"}, key=ADMIN_KEY)
    orders = {"ada": {"team": "research"}, "ann": {"team": "research"}, "bob": {}, "eve": {}}
    keys = {
        name: client.ask("POST", "/admin/api/keys", {"name": name} | order, key=ADMIN_KEY).json["key"]
        for name, order in orders.items()
    }
    until(lambda: client.ask("GET", "/v1/models", key=keys["eve"]).status == 200)
    return keys
