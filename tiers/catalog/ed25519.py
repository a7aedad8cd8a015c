"""Verification of Ed25519 signatures (RFC 8032, 5.1.7), without a dependency. Nothing secret is computed: it takes
milliseconds, and its time may tell what everyone may know."""

import hashlib

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
# Extended homogeneous coordinates: x = X / Z, y = Y / Z, x * y = T / Z.
_Point = tuple[int, int, int, int]


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` (64 bytes) of `message` was made with the private key of `public_key` (32 bytes)."""
    if len(public_key) != 32 or len(signature) != 64:
        return False
    key, start = _decoded(public_key), _decoded(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    # A scalar that is not reduced would be a second signature of the same message.
    if key is None or start is None or scalar >= _L:
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % _L
    return _are_equal(_times(scalar, _BASE), _sum(start, _times(challenge, key)))


def _decoded(data: bytes) -> _Point | None:
    """Return the point, None if `data` encodes none (RFC 8032, 5.1.3)."""
    y = int.from_bytes(data, "little")
    is_odd, y = y >> 255, y & ((1 << 255) - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * _ROOT % _P
    if x * x % _P != square or (x == 0 and is_odd):
        return None
    if x & 1 != is_odd:
        x = _P - x
    return x, y, 1, x * y % _P


def _sum(one: _Point, other: _Point) -> _Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c, d = 2 * one[3] * other[3] * _D % _P, 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: _Point) -> _Point:
    total: _Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = _sum(total, point)
        point, scalar = _sum(point, point), scalar >> 1
    return total


def _are_equal(one: _Point, other: _Point) -> bool:
    return (one[0] * other[2] - other[0] * one[2]) % _P == 0 and (one[1] * other[2] - other[1] * one[2]) % _P == 0


_FOUND = _decoded((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
assert _FOUND is not None
_BASE = _FOUND
