"""What operators alone know, removed from the words of a server elsewhere: its credentials and its address."""

import re
from urllib.parse import urlsplit

from tiers.errors import without_credential

_MOST_CREDENTIALS = 4


class Redaction:
    """Removes what operators alone know from the words of the server at `base_url`: its address and credentials.

    A credential is found as it is, percent-encoded and in base64, and cut off at the end of a text.
    """

    def __init__(self, base_url: str) -> None:
        self._address = _address_pattern(base_url)
        self._credentials: dict[str, None] = {}

    def add(self, credential: str) -> None:
        """Remove `credential` too. The latest `_MOST_CREDENTIALS` are known, since tokens are renewed."""
        self._credentials.pop(credential, None)
        self._credentials[credential] = None
        if len(self._credentials) > _MOST_CREDENTIALS:
            del self._credentials[next(iter(self._credentials))]

    def __call__(self, text: str) -> str:
        for credential in self._credentials:
            text = without_credential(text, credential, "[key]")
        return text if self._address is None else self._address.sub("[server]", text)


def _address_pattern(base_url: str) -> re.Pattern[str] | None:
    """Match the host, with what stands around it: scheme, port and the path of `base_url`; and its port behind another
    name, because a server may know itself by one."""
    try:
        parts = urlsplit(base_url)
        host, port = re.escape(parts.hostname or ""), parts.port
    except ValueError:
        return None
    if not host:
        return None
    # A word such as `model` may be a host, and is no address in a sentence.
    is_word = re.fullmatch(r"[\w-]+", parts.hostname or "") is not None and parts.hostname != "localhost"
    bounded = rf"(?<![\w.-]){host}(?![\w-]|\.\w)"
    named = rf"(?:(?<=//)|(?<=@)|(?<=host=')){bounded}|{bounded}(?=:\d)" if is_word else bounded
    path = re.escape(parts.path.rstrip("/"))
    ports = r"(?::\d{1,5}|\\*['\"]?, ?(?:port=)?\d{1,5})"
    places = [rf"\[?(?:{named})\]?{ports}?"]
    if port is not None:
        places.append(rf"(?<![\w.-])[\w.-]{{1,253}}:{port}(?!\d)")
    whole = rf"(?:https?://)?(?:{'|'.join(places)})(?:{path}(?![\w-]))?"
    return re.compile(rf"{whole}|{path}" if path.count("/") > 1 else whole, re.IGNORECASE)
