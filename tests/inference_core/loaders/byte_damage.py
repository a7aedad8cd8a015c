"""Damage that knows nothing of a format: bits flip, numbers become extreme, pieces are lost, repeated or moved."""

from hypothesis import strategies as st

_NUMBERS = [0, 1, 2, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


class Damaged(bytes):
    """Bytes that do not fill the screen when an example fails."""

    def __repr__(self) -> str:
        return f"<{len(self)} damaged bytes>"


@st.composite
def damaged_bytes(draw: st.DrawFn, intact: bytes, header: int) -> Damaged:
    """`intact` after one to six accidents, half of them within its first `header` bytes."""
    content = bytearray(intact)
    for _ in range(draw(st.integers(1, 6))):
        if not content:
            break
        reach = min(header, len(content)) if draw(st.booleans()) else len(content)
        at = draw(st.integers(0, reach - 1))
        match draw(st.sampled_from(["flip", "flip", "number", "number", "cut", "lose", "repeat", "insert"])):
            case "flip":
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "number":
                size = draw(st.sampled_from([1, 2, 4, 8]))
                content[at : at + size] = (draw(st.sampled_from(_NUMBERS)) % 2 ** (8 * size)).to_bytes(size, "little")
            case "cut":
                del content[at:]
            case "lose":
                del content[at : at + draw(st.integers(1, 64))]
            case "repeat":
                content[at:at] = content[at : at + draw(st.integers(1, 64))]
            case _:
                content[at:at] = draw(st.binary(min_size=1, max_size=16))
    return Damaged(content)
