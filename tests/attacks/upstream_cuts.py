"""An answer whose connection ends at a random byte, several times, by a server that goes on where it is asked to."""

import json
import re
from random import Random

from tests.attacks.hostile_upstream import Asked, upstream_answer
from tests.gateway.known_text import known_text, rest

LEAST_CUTS, MOST_CUTS = 2, 4
_ASKED = re.compile(r"hostile:cuts:(\d+)")
_attempts: dict[int, int] = {}
"""By the seed of the answer: how often it was begun."""


def number_of_cuts(seed: int) -> int:
    """Return how often the answer of a seed is broken off."""
    return Random(f"cuts {seed}").randint(LEAST_CUTS, MOST_CUTS)


@upstream_answer
async def cuts(asked: Asked) -> None:
    """A known text in pieces of random lengths, broken off at a random byte as often as the seed says: of the first
    attempt after its first piece, of later ones anywhere."""
    body = json.loads(asked.body)
    found = _ASKED.search(asked.body.decode())
    assert found is not None
    seed = int(found[1])
    attempt = _attempts[seed] = _attempts.get(seed, 0) + 1
    draw = Random(f"{seed} {attempt}")
    # A child engine is llama.cpp's server, which goes on without those fields.
    is_engine = not asked.path.startswith(f"/{asked.wire.name}/")
    text = rest(known_text(seed), body, found[0], needs_fields=asked.wire.name == "openai" and not is_engine)
    pieces = []
    while text:
        size = draw.randint(1, 12)
        pieces.append(_event(asked, text[:size]))
        text = text[size:]
    whole = asked.wire.begin() + b"".join(pieces) + asked.wire.end()
    # The end of a connection is that of Triton's answers, unless the body says its length.
    is_chunked = asked.wire.name == "triton"
    await asked.head(*[b"transfer-encoding: chunked"] * is_chunked)
    if attempt > number_of_cuts(seed):
        del _attempts[seed]
        await asked.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(whole), whole) if is_chunked else whole)
        return
    first = max(1, len(asked.wire.begin())) + len(pieces[0] if pieces and attempt == 1 else b"")
    # What precedes the end mark; after it nothing is left to go on with.
    most = len(whole) - len(asked.wire.end())
    cut = whole[: draw.randint(min(first, most), most)]
    if cut:
        await asked.send(b"%x\r\n%b\r\n" % (len(cut), cut) if is_chunked else cut)


def _event(asked: Asked, text: str) -> bytes:
    if "completions" in asked.path and "chat" not in asked.path:
        return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "text": text}]}).encode()
    return asked.wire.text(text)
