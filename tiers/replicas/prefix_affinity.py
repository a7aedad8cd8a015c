"""Which replica has a prompt's beginning in its prefix cache: rendezvous hashing, so that most stay where they are."""

import math
from hashlib import blake2b

from tiers.tier import GenerationRequest

BYTES_PER_TOKEN = 4


def prefix_key(request: GenerationRequest, num_bytes: int) -> bytes:
    """Hash of tenant, adapter and the beginning of the prompt, at most `num_bytes` of it.

    Of a chat: all up to its first user turn, which its later turns repeat.
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
    """Among servers the highest score wins a key; each wins a share of all keys in proportion to its weight.

    Thaler and Ravishankar 1998; weights as in Schindelhauer and Schomaker 2005. When a server goes only its keys move,
    and when one comes keys move only there.
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
        parts.append(f"{message.role}\0{message.content[:num_bytes]}\0".encode(errors="replace"))
        if message.role == "user":
            break
    return parts
