"""Custom tools, which take text, as functions with one text parameter: that is what models and servers know."""

import json
import re

from gateway.base.errors import bad_request
from gateway.inference.api.reading.schemas import CustomTool
from tiers.tool_types import Tool, Tooling

CUSTOM = "custom"
INPUT = "input"
_BEGINNING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# What JSON writes between quotes: a character, or an escape; two of these may be the halves of one character.
_PIECE = re.compile(r'[^"\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]')
# The first half of a character, whose second half may still come.
_FIRST_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
_LONGEST_ESCAPE = len(r"\ude00")


def as_function(tool: CustomTool, where: str) -> Tool:
    """The function that stands for the custom tool at `where`. A grammar becomes a part of the description."""
    described, form = tool.description or "", tool.format
    if form is not None and form.type == "grammar":
        if form.grammar is None or not form.grammar.definition:
            raise bad_request(
                "A format of type grammar needs its definition.", f"{where}.format", "missing_required_parameter"
            )
        kind = "regular expression" if form.grammar.syntax == "regex" else "Lark grammar"
        described = f"{described}\n\nThe input must follow this {kind}:\n{form.grammar.definition}".strip()
    text = {"type": "string", "description": "The input of the tool: plain text, not JSON."}
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return Tool(name=tool.name, description=described or None, parameters=parameters, strict=True, custom=True)


def custom_names(tooling: Tooling) -> frozenset[str]:
    """The names of the custom tools among a request's."""
    return frozenset([tool.name for tool in tooling.tools if tool.custom])


def arguments_of(text: str) -> str:
    """The arguments of the function for this input of the tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """The input of the tool in the arguments of a call."""
    reader = InputReader()
    return reader.take(arguments) + reader.rest()


class InputReader:
    """Reads the input of a custom tool out of a call's arguments, JSON text that arrives in pieces.

    Models that nothing binds may write something else: then the whole arguments are the input, at the end.
    """

    def __init__(self) -> None:
        self._unread = ""
        self._begun = self._ended = False

    def take(self, piece: str) -> str:
        """Return the new text of the input."""
        if self._ended:
            return ""
        self._unread += piece
        if not self._begun:
            beginning = _BEGINNING.match(self._unread)
            if beginning is None:
                return ""
            self._unread, self._begun = self._unread[beginning.end() :], True
        return self._new_text()

    def rest(self) -> str:
        """Return what is left of the input, after the last piece."""
        if self._begun:
            return ""
        try:
            given = json.loads(self._unread)
        except (ValueError, RecursionError):
            return self._unread
        text = given.get(INPUT) if isinstance(given, dict) else given
        return text if isinstance(text, str) else self._unread

    def _new_text(self) -> str:
        raw, at, texts = self._unread, 0, []
        while at < len(raw):
            matched = _PIECE.match(raw, at)
            if matched is None:
                # The closing quote, or an escape that is none; a cut one goes on in the next piece.
                self._ended = raw[at] == '"' or len(raw) - at >= _LONGEST_ESCAPE
                break
            if _FIRST_HALF.match(raw, at):
                break
            texts.append(_unescaped(matched[0]))
            at = matched.end()
        self._unread = raw[at:]
        return "".join(texts)


def _unescaped(piece: str) -> str:
    if piece[0] != "\\":
        return piece
    try:
        text = str(json.loads(f'"{piece}"'))
    except ValueError:
        return piece
    # Half a character is none.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
