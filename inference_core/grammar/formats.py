"""The string formats that answers must have, as patterns of whole texts (RFC 3339, 1123, 5321, 3986, 6570,
6901).

The library's own patterns admit 29 February of any year, second 60 at any time, and hosts that are too long. Formats
that are not listed are annotations, as JSON Schema says. Patterns of internationalised formats are their ASCII part.
"""

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"
# Without year 0, which most libraries do not have.
_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_ALNUM, _INNER = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"


def _label(most: int) -> str:
    """Up to `most` characters, no hyphen at the ends, nor in third and fourth place, which are reserved ("xn--")."""
    short = rf"{_ALNUM}|{_INNER}{_ALNUM}|{_INNER}{_INNER}{_ALNUM}"
    return rf"{_ALNUM}(?:{short}|{_INNER}(?:{_ALNUM}{_INNER}|-{_ALNUM}){_INNER}{{0,{most - 5}}}{_ALNUM})?"


# Three labels and a shorter one: at most 253 characters with their dots.
_HOST = rf"(?:{_label(63)}\.){{0,3}}{_label(61)}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    (
        rf"(?:{_H16}:){{7}}{_H16}",
        rf"(?:{_H16}:){{6}}{_IPV4}",
        *(
            rf"(?:{_H16}(?::{_H16}){{0,{before - 1}}})?::(?:(?:{_H16}:){{0,{6 - before}}}{_H16})?"
            for before in range(1, 7)
        ),
        rf"(?:{_H16}:){{7}}:",
        rf"::(?:{_H16}:){{0,5}}{_IPV4}",
    )
)
_LETTER = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_ATOM = f"{_LETTER}+"
_HEX2 = "%[0-9a-fA-F]{2}"
_SEGMENT = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|{_HEX2})"
_NO_COLON = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|{_HEX2})"
_NAME = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=-]|{_HEX2})*"
_AUTHORITY = rf"(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|{_HEX2})*@)?(?:{_NAME}|\[(?:{_IPV6})\])(?::[0-9]*)?"
_TAIL = rf"(?:\?(?:{_SEGMENT}|[/?])*)?(?:#(?:{_SEGMENT}|[/?])*)?"
_HIERARCHY = rf"//{_AUTHORITY}(?:/{_SEGMENT}*)*|/(?:{_SEGMENT}+(?:/{_SEGMENT}*)*)?"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{_HIERARCHY}|{_SEGMENT}+(?:/{_SEGMENT}*)*)?{_TAIL}"
_REFERENCE = rf"(?:{_URI}|(?:{_HIERARCHY}|{_NO_COLON}+(?:/{_SEGMENT}*)*)?{_TAIL})"
_POINTER = r"(?:/(?:[^~/\x00-\x1f\x7f]|~[01])*)*"
_DOMAIN = rf"(?:{_HOST}|\[{_IPV4}\])"
_EMAIL = rf"(?=[^@]{{1,64}}@){_ATOM}(?:\.{_ATOM})*@{_DOMAIN}"
_HMS = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_YMD = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"

_VARIABLE = rf"(?:[a-zA-Z0-9_]|{_HEX2})(?:\.?(?:[a-zA-Z0-9_]|{_HEX2}))*(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = rf"(?:[^\x00- \"'%<>\\^`{{|}}\x7f-\xa0]|{_HEX2}|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"

# Names of formats and the patterns of their whole texts.
FORMATS = {
    "date": _DATE,
    "time": _CLOCK,
    "date-time": rf"{_DATE}[tT]{_CLOCK}",
    "duration": rf"P(?:{_YMD}(?:{_HMS})?|{_HMS}|[0-9]+W)",
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": _URI,
    "uri-reference": _REFERENCE,
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
# Without a lookahead, which grammars have not: local parts of at most 64 characters, but few dots in long ones.
_WRITTEN_EMAIL = rf"(?:{_LETTER}{{1,64}}|{_LETTER}{{1,21}}(?:\.{_LETTER}{{1,20}}){{1,2}})@{_DOMAIN}"
# What is written for formats that have more than that: a part of what they allow, so answers are not checked for it.
PARTS = {
    "email": _WRITTEN_EMAIL,
    "idn-email": _WRITTEN_EMAIL,
    "idn-hostname": _HOST,
    "iri": _URI,
    "iri-reference": _REFERENCE,
}
