"""`python -m tests.recordings [--sent] [FILE …]`: play the cases of files (`chat/ends`), or of all, and write what
callers get into those that do not say it. All get their usual layout. `--sent`, with names of files: write what
servers get, too: the body for the request of the file itself, `plain`, and for each case the patch of it."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.recordings.playing import (
    ERROR_FIELDS,
    KEYS,
    SAYS,
    Exchange,
    Stage,
    apis_of,
    forms_of,
    parsed,
    stage,
    steps_of,
)
from tests.recordings.recording import FOLDER, Json, Recording, based, difference, files, merged, pretty, recordings


async def answer_of(servers: Stage, recording: Recording) -> Json:
    """Return what callers get: what differs from a plain answer, and on which API and in which form it is another."""
    fields, common, on = recording.fields, Json(), dict[str, Json]()
    for streamed in forms_of(fields):
        for api in apis_of(fields):
            seen = await _seen(servers, recording, api, streamed)
            if not common:
                common = seen
            form = "streamed" if streamed else "whole"
            patch = difference(merged(merged(common, on.get(api, {})), on.get(form, {})), seen)
            error_fields = ERROR_FIELDS.get((api, streamed))
            if error_fields and "error" in patch:
                patch["error"] = {name: value for name, value in patch["error"].items() if name in error_fields}
            if patch := {name: value for name, value in patch.items() if value != {}}:
                on[api if api != "chat" else form] = patch
    plain = {"status": 200} | SAYS
    return {name: value for name, value in common.items() if plain.get(name) != value} | ({"on": on} if on else {})


async def _seen(servers: Stage, recording: Recording, api: str, streamed: bool) -> Json:
    (step,) = steps_of(recording.fields)
    exchange = Exchange(servers, await servers.gateway(recording.fields["tiers"]), step, api, streamed)
    await exchange.problems(recording.id)
    assert exchange.told is not None
    told = exchange.seen(exchange.told)
    seen = {name: told[name] for name in ("status", *SAYS, "error") if name in told}
    if "calls" in seen:
        seen["calls"] = [[name, parsed(arguments)] for _, name, arguments in seen["calls"]]
    if "error" in seen:
        seen["error"] = {name: value for name, value in seen["error"].items() if value is not None}
    headers = {name: value for name, value in told["headers"].items() if name in TOLD}
    return seen | ({"headers": headers} if headers else {})


TOLD = ("retry-after", "x-aio-ignored-fields", "x-aio-changed-fields")


async def sent_of(servers: Stage, recording: Recording, plain: list[Json]) -> list[Json]:
    """Return what servers got beyond the bodies of a `plain` request."""
    await _seen(servers, recording, *_first(recording.fields))
    bodies = [request["body"] for request in servers.received]
    return [{"body": difference(plain[min(index, len(plain) - 1)], body)} for index, body in enumerate(bodies)]


def _first(fields: Json) -> tuple[str, bool]:
    return apis_of(fields)[0], forms_of(fields)[0]


async def main(names: list[str], *, sent: bool) -> None:
    """Record the cases of these files."""
    os.environ.update(dict.fromkeys(KEYS, "test-key-123"))
    async with stage(Path(tempfile.mkdtemp())) as servers:
        for file in [FOLDER / f"{name}.json" for name in names] or files():
            content = json.loads(file.read_text())
            shared = Recording(file, "", based({name: value for name, value in content.items() if name != "cases"}))
            plain = [{}]
            if sent:
                await _seen(servers, shared, *_first(shared.fields))
                plain = [request["body"] for request in servers.received]
                content = {name: content[name] for name in content if name != "cases"} | {
                    "plain": plain[0] if plain else {}, "cases": content["cases"],
                }  # fmt: skip
            for recording in recordings(file):
                own = content["cases"][recording.name]
                if sent and "sent" not in recording.fields and plain:
                    bodies = await sent_of(servers, recording, plain)
                    own["sent"] = bodies[0] if len(bodies) == 1 else bodies
                if "gets" not in recording.fields and "steps" not in recording.fields:
                    own["gets"] = await answer_of(servers, recording)
            file.write_text(pretty(content) + "\n")


if __name__ == "__main__":
    given = [name for name in sys.argv[1:] if name != "--sent"]
    asyncio.run(main(given, sent="--sent" in sys.argv))
