"""Read one call, `{"name": …, "arguments": {…}}`, character by character, so that its arguments can be streamed."""

import json

_ARGUMENTS = ("arguments", "parameters")


class CallScanner:
    """Feed it text that starts with `{`. `name` is set once it is known, `done` when the object has closed; `failed` if
    it is no call. `raw` is all text read. Arguments stream as the model wrote them."""

    def __init__(self, name_key: str = "name") -> None:
        self._name_key = name_key
        self.name: str | None = None
        self.raw = ""
        self.done = False
        self.failed = False
        self._stack: list[str] = []
        self._string: str | None = None  # the current open string, raw, from its quote on
        self._escaped = False
        self._key: str | None = None
        self._value = ""
        self._expects_key = False
        self._pieces: list[str] = []
        self._seen_arguments = False

    @property
    def ready(self) -> bool:
        """Whether the call can be announced: its name is known and its arguments have started, or the call is done.

        What fails later stays announced, as it would have been if the text had come character by character.
        """
        return self.name is not None and (bool(self._pieces) or self.done)

    def take_arguments(self) -> str:
        """Return the arguments that arrived since the last call."""
        piece = "".join(self._pieces)
        self._pieces.clear()
        return piece

    def feed(self, text: str) -> int:
        """Read `text` until the call ends, fails or has just got its name; return the number of characters read."""
        was_named = self.name is not None
        for place, character in enumerate(text):
            self.raw += character
            self._read(character)
            if self.done or self.failed or (self.name is not None and not was_named):
                return place + 1
        return len(text)

    def _read(self, character: str) -> None:
        if self._string is not None:
            self._read_in_string(character)
        elif character == '"':
            self._string = character
            self._put(character)
        elif character in "{[":
            self._open(character)
        elif character in "}]":
            self._close(character)
        elif len(self._stack) == 1 and character in ":,":
            self._separate(character)
        elif len(self._stack) == 1 and self._key is None and not character.isspace():
            self.failed = True
        else:
            self._put(character)

    def _read_in_string(self, character: str) -> None:
        assert self._string is not None
        self._string += character
        self._put(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            text, self._string = self._string, None
            if len(self._stack) == 1 and self._expects_key:
                self._key, self._expects_key, self._value = _decoded(text), False, ""

    def _open(self, character: str) -> None:
        self._put(character)
        self._stack.append(character)
        if len(self._stack) == 1:
            self._expects_key = character == "{"
            self.failed = character != "{"

    def _close(self, character: str) -> None:
        if not self._stack or (self._stack[-1], character) not in (("{", "}"), ("[", "]")):
            self.failed = True
            return
        if len(self._stack) == 1:
            self._end_value()
            self._stack.pop()
            self.done = not self.failed
            self.failed = self.failed or self.name is None
            if self.done and not self._seen_arguments:
                self._pieces.append("{}")
            return
        self._stack.pop()
        self._put(character)

    def _separate(self, character: str) -> None:
        if character == ":":
            self._value = ""
            self.failed = self._key is None
        else:
            self._end_value()
            self._expects_key, self._key = True, None

    def _put(self, character: str) -> None:
        """Add a character to the open value at the call's own level, if there is one."""
        if not self._stack or self._expects_key or self._key is None:
            return
        begins = not self._value
        if begins and character.isspace():
            return
        self._value += character
        if self._key in _ARGUMENTS and self._value[0] == "{":
            self._seen_arguments = True
            self._pieces.append(character)

    def _end_value(self) -> None:
        value = self._value.strip()
        if self._key == self._name_key:
            name = _decoded(value)
            # The first one may have been announced.
            self.failed = self.failed or not name or self.name is not None
            self.name = self.name or name
        elif self._key in _ARGUMENTS and value and value[0] != "{":
            # Some models write the arguments' JSON as a string.
            text = _decoded(value) if value[0] == '"' else None
            if text is not None and text.lstrip().startswith("{"):
                self._pieces.append(text)
                self._seen_arguments = True
            else:
                self.failed = value != "null"
        self._value = ""


def _decoded(text: str) -> str | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None
