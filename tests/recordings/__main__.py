"""`python -m tests.recordings [FILE]`: play the cases of a file (`chat/ends`), or of all; write what callers get into
those that do not say it, and all of them in their usual layout."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.recordings.playing import ERROR_FIELDS, KEYS, SAYS, Exchange, Stage, apis_of, forms_of, stage, steps_of
from tests.recordings.recording import FOLDER, Json, Recording, difference, files, merged, pretty, recordings


async def answer_of(servers: Stage, recording: Recording) -> Json:
    """Return what callers get: what differs from a plain answer, and on which API and in which form it is another."""
    fields, found, on = recording.fields, Json(), dict[str, Json]()
    (step,) = steps_of(fields)
    for streamed in forms_of(fields):
        for api in apis_of(fields):
            exchange = Exchange(servers, await servers.gateway(fields["tiers"]), step, api, streamed)
            await exchange.problems(recording.id)
            assert exchange.told is not None
            told = exchange.seen(exchange.told)
            seen = {name: told[name] for name in ("status", *SAYS, "error") if name in told}
            if "calls" in seen:
                seen["calls"] = [[name, json.loads(arguments)] for _, name, arguments in seen["calls"]]
            if "error" in seen:
                seen["error"] = {name: value for name, value in seen["error"].items() if value is not None}
            if wait := told["headers"].get("retry-after"):
                seen["headers"] = {"retry-after": wait}
            if not found:
                found = seen
            form = "streamed" if streamed else "whole"
            patch = difference(merged(merged(found, on.get(api, {})), on.get(form, {})), seen)
            known = ERROR_FIELDS.get((api, streamed))
            if known and "error" in patch:
                patch["error"] = {name: value for name, value in patch["error"].items() if name in known}
            if patch := {name: value for name, value in patch.items() if value != {}}:
                on[api if api != "chat" else form] = patch
    plain = {"status": 200} | SAYS
    return {name: value for name, value in found.items() if plain.get(name) != value} | ({"on": on} if on else {})


async def main(names: list[str]) -> None:
    """Record the cases of these files."""
    os.environ.update(dict.fromkeys(KEYS, "test-key-123"))
    async with stage(Path(tempfile.mkdtemp())) as servers:
        for file in [FOLDER / f"{name}.json" for name in names] or files():
            content = json.loads(file.read_text())
            for recording in recordings(file):
                if "gets" not in recording.fields and "steps" not in recording.fields:
                    content["cases"][recording.name]["gets"] = await answer_of(servers, recording)
            shared = {name: value for name, value in content.items() if name not in ("base", "cases")}
            for name, own in content["cases"].items():
                content["cases"][name] = difference(shared, merged(shared, own))
            file.write_text(pretty(content) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
