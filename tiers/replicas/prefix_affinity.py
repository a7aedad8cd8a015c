"""Prefix affinity by rendezvous hashing: which replica has a prompt's prefix in its cache."""

import math
from hashlib import blake2b

from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN
from tiers.tier import GenerationRequest


def prefix_key(request: GenerationRequest, num_bytes: int) -> bytes:
    """Return a hash of tenant, adapter and the first `num_bytes` of the prompt.

    For a chat: everything up to its first user turn, which later turns repeat.
    """
    digest = blake2b(digest_size=16)
    digest.update(f"{request.salt}\0{request.adapter}\0".encode(errors="replace"))
    room = num_bytes
    for part in _beginning(request, num_bytes):
        digest.update(part[:room])
        room -= len(part)
        if room <= 0:
            break
    return digest.digest()


def rendezvous_score(key: bytes, url: str, weight: float) -> float:
    """Return a server's score for a key; the highest wins. Each server wins a share of all keys in proportion to its
    weight.

    Thaler and Ravishankar 1998; weights as in Schindelhauer and Schomaker 2005. When a server is removed only its keys
    move, and when one is added keys move only to it.
    """
    drawn = int.from_bytes(blake2b(key + url.encode(), digest_size=8).digest(), "big")
    return -weight / math.log((drawn + 0.5) / 2**64)


def _beginning(request: GenerationRequest, num_bytes: int) -> list[bytes]:
    if isinstance(request.prompt, list):
        return [" ".join(map(str, request.prompt[: num_bytes // BYTES_PER_TOKEN])).encode()]
    if request.prompt is not None:
        return [request.prompt[:num_bytes].encode(errors="replace")]
    parts: list[bytes] = []
    for message in request.messages or []:
        media = " ".join(part.digest for part in message.parts)
        parts.append(f"{message.role}\0{media}{message.content[:num_bytes]}\0".encode(errors="replace"))
        if message.role == "user":
            break
    return parts
