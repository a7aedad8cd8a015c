"""What a line break may have cut in two: content parts become lines of one text, and mail programs break long words.

Only what stands next to such a break is joined, so that lines of code and columns of numbers stay apart as far as they
can.
"""

import re

# After a break, "@" begins decorators and names more often than the rest of an address.
_REST_OF_EMAIL = re.compile(
    r"@(?:[\w-]{1,63}\.){1,4}(?:com|org|net|edu|gov|info|biz|eu|de|fr|es|it|nl|be|at|ch|pl|pt|se|no|dk|fi|ie|cz|gr|"
    r"uk|us|ca|mx|br|ar|cl|in|cn|jp|kr|ru|ua|tr|au|nz|za)(?![\w-])"
)
# What words have that are no language's: parts of keys and of addresses.
_NO_LANGUAGE = re.compile(r"[-_@0-9]")
_SEPARATORS = ".-/"
_MOST = 64
"""Characters on each side of a break that are joined."""


def joined_lines(text: str) -> str:
    """Return what breaks may have cut, each on a line of its own; "" for nothing."""
    found: list[str] = []
    before = number = ""
    for given in text.splitlines():
        if not (line := given.strip()):
            continue
        if before:
            if _is_cut_number(before, line):
                # A number may go on over several lines.
                number = (number or before[-_MOST:]) + line[:_MOST]
            if number and (not _is_cut_number(before, line) or len(line) > _MOST):
                found.append(number)
                number = ""
            if (word := _cut_word(before, line)) is not None:
                found.append(word)
        before = line
    return "\n\n".join([*found, number] if number else found)


def _is_cut_number(before: str, line: str) -> bool:
    """Whether one line ends and the next begins in a number, of which one part has more than a digit."""
    ends, begins = before[-1].isdecimal() or before[-1] in _SEPARATORS, line[0].isdecimal()
    return ends and begins and (before[-2:].isdecimal() or line[:2].isdecimal())


def _cut_word(before: str, line: str) -> str | None:
    """The last word of a line and the first of the next as one; None where they are words of a language."""
    last, first = before[-1], line[0]
    if first == "@":
        if _REST_OF_EMAIL.match(line) is None:
            return None
    elif not (first.isalnum() and (last.isalnum() or last in "@.-_")):
        return None
    word = before[-_MOST:].rsplit(None, 1)[-1]
    if first != "@" and _NO_LANGUAGE.search(word) is None:
        return None
    return word + line[:_MOST].split(None, 1)[0]
