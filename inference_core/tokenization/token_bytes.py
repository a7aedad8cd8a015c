"""What bytes a token stands for: vocabularies store them under printable disguises."""

import re

from inference_core.errors import ModelFileError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPM_SPACE = "\u2581"


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's bijection of 256 printable characters and bytes.

    Bytes that print in Latin-1 stand for themselves; the others are numbered from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_ALPHABET = byte_level_alphabet()


def byte_level_token(text: str) -> bytes:
    """A token of a byte-level vocabulary, `Ġhello` -> b' hello'. Raises ModelFileError if it cannot be one."""
    try:
        return bytes([_ALPHABET[character] for character in text])
    except KeyError as error:
        raise ModelFileError(f"token {text!r} holds {error} which stands for no byte") from error


def byte_fallback_token(text: str) -> bytes:
    """A token of a SentencePiece vocabulary with byte fallback: `▁hello` -> b' hello', `<0x0A>` -> a newline."""
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPM_SPACE, " ").encode()
