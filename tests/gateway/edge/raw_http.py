"""Requests written by hand, for what no client library sends."""

import asyncio


def head(path: str, length: int | None, version: str, key: str = "unused", more: str = "") -> bytes:
    """The head of a POST of JSON with `more` header lines; without `length` it says none."""
    lines = [f"POST {path} HTTP/{version}", "host: localhost", "content-type: application/json"]
    lines.append(f"authorization: Bearer {key}")
    lines += [] if length is None else [f"content-length: {length}"]
    lines += [more] if more else []
    return "\r\n".join([*lines, "", ""]).encode()


async def exchanged(port: int, *sent: bytes) -> bytes:
    """Send all at once and return what comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(120):
        for one in sent:
            writer.write(one)
        answer = await reader.read()
    writer.close()
    return answer
