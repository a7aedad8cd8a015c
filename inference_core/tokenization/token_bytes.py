"""Decodes tokens to bytes: vocabularies store bytes as printable characters."""

import re

from inference_core.errors import ModelFileError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPM_SPACE = "\u2581"


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's bijection between 256 printable characters and bytes.

    Printable Latin-1 bytes map to themselves; the others to U+0100 and following, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


# To Latin-1; characters of Latin-1 that stand for no byte become one that it lacks.
_TO_BYTES = dict.fromkeys(range(256), 0x100) | {ord(letter): byte for letter, byte in byte_level_alphabet().items()}


def byte_level_token(text: str) -> bytes:
    """The bytes of a byte-level token: `Ġhello` -> b' hello'. Raises ModelFileError if it is not one."""
    try:
        return text.translate(_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError as error:
        raise ModelFileError(f"token {text!r} has {text[error.start]!r}, which is not a byte's character") from error


def byte_fallback_token(text: str) -> bytes:
    """The bytes of a SentencePiece token with byte fallback: `▁hello` -> b' hello', `<0x0A>` -> a newline."""
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPM_SPACE, " ").encode()
