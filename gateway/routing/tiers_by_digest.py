"""Few tiers per digest, in memory that is taken once: what comes and goes in it leaves no holes in a heap."""

import numpy as np

DIGEST_BYTES = 16
# So many of a digest's tiers are kept, the newest.
TIERS_KEPT = 8
# Which places a digest may have; more of them forget more evenly and take longer to look through.
_WAYS = 64


class TiersByDigest:
    """At most `most` digests with the tiers noted for them, in 32 bytes each.

    A cache of sets: a digest's first bytes choose up to 64 places, and among those the longest unnoted makes room. So
    up to 64 digests the oldest goes first; of more, some go before their turn and some after it, but none that fewer
    than a quarter of `most` came after (the chance is below 1e-15). Digests must be evenly spread, as a keyed hash's.
    """

    def __init__(self, most: int) -> None:
        self._ways = min(most, _WAYS)
        self._sets = most // self._ways
        places = self._sets * self._ways
        self._digests = bytearray(places * DIGEST_BYTES)
        self._noted = np.full(places, -np.inf)
        # A place's tiers from the oldest on, then zeros: tiers count from 1.
        self._tiers = bytearray(places * TIERS_KEPT)

    def noted_since(self, moment: float) -> int:
        """How many digests were noted at `moment` or later."""
        return int(np.count_nonzero(self._noted >= moment))

    def since(self, moment: float, digest: bytes) -> tuple[int, ...]:
        """The tiers of `digest`, oldest first; none if it was last noted before `moment` or had to make room."""
        place = self._place_of(digest)
        if place is None or self._noted[place] < moment:
            return ()
        return tuple(self._tiers[place * TIERS_KEPT : (place + 1) * TIERS_KEPT].rstrip(b"\0"))

    def note(self, now: float, digest: bytes, tiers: tuple[int, ...]) -> None:
        """Keep the last `TIERS_KEPT` of `tiers` for `digest`, in place of what was there."""
        place = self._place_of(digest)
        if place is None:
            first = self._first_of(digest)
            place = first + int(self._noted[first : first + self._ways].argmin())
            self._digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES] = digest
        self._noted[place] = now
        kept = bytes(tiers[-TIERS_KEPT:])
        self._tiers[place * TIERS_KEPT : (place + 1) * TIERS_KEPT] = kept.ljust(TIERS_KEPT, b"\0")

    def _first_of(self, digest: bytes) -> int:
        return int.from_bytes(digest[:8], "little") % self._sets * self._ways

    def _place_of(self, digest: bytes) -> int | None:
        # Two digests' neighbouring halves look like a third as seldom as two digests are equal: it is not looked for.
        first = self._first_of(digest)
        at = self._digests.find(digest, first * DIGEST_BYTES, (first + self._ways) * DIGEST_BYTES)
        return None if at < 0 else at // DIGEST_BYTES
