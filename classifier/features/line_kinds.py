"""The kind of a line of a turn by what it begins and ends with: log, stack trace, diff, table, data, code, quoted mail,
item of a list, or prose. One anchored pattern with bounded repeats is tried on a line, so that its cost is
bounded."""

import re
from typing import NamedTuple

PROSE, BLANK, LIST, FENCE, GAP = "prose", "blank", "list", "fence", "gap"
# Kinds whose lines are never a request.
STRUCTURED = frozenset(("log", "trace", "diff", "table", "data", "code", "quote"))
# Of a longer line only the beginning is looked at.
LONGEST = 400
# By what a line begins with, in the order of the tests; one pattern, which is searched once a line.
_OPENINGS = {
    "list": r"\(?[A-Ja-j][.)] ",
    "log": (
        r"[^\w\s]{0,3}(?:\d{4}[-/.]\d\d[-/.]\d\d[T ]\d\d:\d\d|\d\d[:.]\d\d[:.]\d\d\b|\d\d/\w{3}/\d{4}[: ]|"
        r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2} \d\d:\d\d|(?:\d{1,3}\.){3}\d{1,3} \S|"
        r"(?:INFO|WARN|WARNING|ERROR|DEBUG|TRACE|FATAL|NOTICE|CRITICAL)(?:\]|:|\s{2}|\s[\w./-]{0,60}[\]:=\[(\d])|"
        r"\d{1,10}\.\d{3,9}\] )|(?:level|ts|time)=\S|npm (?:ERR|WARN)|(?:error|warning)(?:\[\w{1,16}\]| TS\d{3,5})?: "
    ),
    "trace": (
        r"Traceback \(most recent|File \"|at [\w.$<>/]{2,100}[ (:]|Caused by: |Exception in thread |panic: |"
        r"[\w.]{1,80}(?:Error|Exception)(?::|$)|goroutine \d|thread '|\.\.\. \d+ more"
    ),
    "diff": (
        r"diff --git |@@ -\d|\+\+\+ \S|--- [ab]/|index [0-9a-f]{6}|commit [0-9a-f]{7,40}$|Author: .{1,80}<|Date: {3}\w"
    ),
    "data": (
        r"\"[^\"\n]{1,80}\"\s?:|[{}\[\]]{1,4},?$|</?[A-Za-z][\w:.-]{0,40}(?:\s[^<>]{0,200})?/?>|<\?xml|"
        r"(?:- )?[a-z_][\w.-]{0,40}:(?:\s[^?]{0,40})?$|(?:\{\s{0,8}\"|\[\s{0,8}[{\[\"\d-]).{40}"
    ),
    "code": (
        # Keywords of languages.
        r"(?:def|class|async def|func|fn|impl|struct|enum|interface|trait|package|namespace|template)\b[^.?]{0,200}"
        r"[({:;)]$|(?:import|using|use|require|include) [\w{\"'*@<][\w.*:;\"'/@ ,{}<>-]{0,120}$|"
        r"from [\w.]{1,80} import |#include|#!/|#\[|//|/\*|(?:public|private|protected|static|final|export|const|let|"
        r"var|val|auto|int|void|double|float|char|bool|string)\s[\w<>\[\],*& ]{1,80}[=({;:]|"
        r"(?:return|assert)\b[^?]{0,200}$|(?:if|for|while|switch|catch|elif|else if)\s?\(|"
        r"(?:if|for|while|with|try|except|elif|else|finally)\b[^.?]{0,200}[:{]$|@\w{2,40}(?:\(|$)|<\?php|"
        r"\$\w{1,40}\s?=|"
        # SQL in capitals.
        r"(?:SELECT|UPDATE|INSERT INTO|DELETE FROM|FROM|WHERE|(?:LEFT |INNER |RIGHT |OUTER |CROSS )?JOIN|GROUP BY|"
        r"ORDER BY|HAVING|CREATE|ALTER|DROP|UNION|AND|VALUES|SET|WITH)\s[\w(*;'.\"]|"
        r"(?:COMMIT|BEGIN|ROLLBACK|END)\b[\w ]{0,40};?$|-- |"
        # Assignments, calls, and ends of blocks.
        r"[\w.\[\]\"'>-]{1,60}(?:, ?\w{1,30}){0,3}\s?(?:[-+*/:|&]?=|<-)\s?[\w\"'\[({$&*!-][^?]{0,200}$|"
        r"[\w.:>-]{1,80}\([^?]{0,200}\)\s?[;,{]?$|[)}\]]{1,4}[;,)]{0,2}$"
    ),
    "item": r"[-*•–+] |\(?\d{1,2}[.)] |#{1,6} ",
}
_OPENING = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _OPENINGS.items()))
# First words of what those patterns match: of lines that may be no prose, and that may be none where they have one of
# the marks "(){:;=".
UNLIKE_PROSE = frozenset(
    ("INFO", "WARN", "WARNING", "ERROR", "DEBUG", "TRACE", "FATAL", "NOTICE", "CRITICAL", "npm", "Traceback", "File",
     "at", "Caused", "Exception", "goroutine", "thread", "Author", "Date", "diff", "index", "commit", "import", "using",
     "use", "require", "include", "from", "return", "assert", "SELECT", "UPDATE", "INSERT", "DELETE", "FROM", "WHERE",
     "LEFT", "INNER", "RIGHT", "OUTER", "CROSS", "JOIN", "GROUP", "ORDER", "HAVING", "CREATE", "ALTER", "DROP", "UNION",
     "AND", "VALUES", "SET", "WITH", "COMMIT", "BEGIN", "ROLLBACK", "END")
)  # fmt: skip
UNLIKE_PROSE_WITH_MARKS = frozenset(
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "error", "warning", "def",
     "class", "async", "func", "fn", "impl", "struct", "enum", "interface", "trait", "package", "namespace", "template",
     "public", "private", "protected", "static", "final", "export", "const", "let", "var", "val", "auto", "int", "void",
     "double", "float", "char", "bool", "string", "if", "for", "while", "switch", "catch", "elif", "else", "with",
     "try", "except", "finally")
)  # fmt: skip
_OPTION = re.compile(r"\(?[A-Ja-j][.)] ")
_ENDS_OF_CODE = ("{", "};", ");", "});", "],", "),", "->", "=>", "&&", "||")
_FENCES = ("```", "~~~", '"""', "'''")
_RULE = re.compile(r"([-=*_#])\1{2,79}$")


class Line(NamedTuple):
    """A line of a turn, without its end."""

    text: str
    start: int
    """Where it begins in the turn."""
    kind: str


def end_of(line: Line) -> int:
    """Return where the line ends in the turn."""
    return line.start + len(line.text)


class Material(NamedTuple):
    """What a request is about: its kind, and where it stands in the turn."""

    kind: str
    start: int
    end: int


def kind_of(line: str) -> str:
    """Return the kind of a line by itself."""
    text = line[:LONGEST].strip()
    if not text:
        return BLANK
    first = text[0]
    if first == ">":
        return "code" if text.startswith((">>>", "><")) else "quote"
    if first in "|`~\"'-=*_#" and (special := _special(text)) is not None:
        return special
    opening = _OPENING.match(text)
    kind = None if opening is None else opening.lastgroup
    if (kind is None or kind == "item") and text.endswith(_ENDS_OF_CODE):
        return "code"
    return PROSE if kind is None else LIST if kind == "item" else kind


def _special(text: str) -> str | None:
    if text[0] == "|" and text.count("|") > 1:
        return "table"
    return FENCE if text.startswith(_FENCES) or _RULE.match(text) else None


def separator_of(line: str) -> tuple[str, int]:
    """Return what parts the cells of a line of a table and how often it occurs; ("", 0) for prose."""
    if len(line) > LONGEST:
        return "", 0
    for mark in ("|", "\t"):
        if mark in line:
            return mark, line.count(mark)
    commas, semicolons = line.count(","), line.count(";")
    if semicolons and line[-1] != ";" and "; " not in line:
        return ";", semicolons
    if commas and ", " not in line and (commas > 1 or line[-1] != ","):
        return ",", commas
    if commas > 1 and len(line) < 24 * (commas + 1) and line[-1] not in ".!?:," and ":" not in line and "[" not in line:
        return ", ", commas
    cells = [cell for cell in line.split("  ") if cell.strip()]
    is_table = len(cells) > 2 and sum(map(len, cells)) > 2 * len(cells)
    return ("  ", len(cells) - 1) if is_table else ("", 0)


# Marks that prose seldom has within its words.
_OF_MACHINES = frozenset("/\\=@#|<>{}%")
_FORM_TOKENS = 4
_RUN = re.compile(r"\w+")
_BULLETS = ("-", "*", "•", "–", "+")


def form_of(line: str) -> str:
    """Return the form of a line's first words, which lines that a program wrote share: their punctuation, and "0" for a
    run of letters and digits that has a digit, "a" for another. "" for prose, which has no digit there and no mark of
    programs, for options, and for items whose text is prose."""
    tokens = line[:LONGEST].split(None, _FORM_TOKENS)[:_FORM_TOKENS]
    if not tokens or _OPTION.match(f"{tokens[0]} "):
        return ""
    form = _RUN.sub(_of_run, " ".join(tokens))
    first = tokens[0]
    is_item = first in _BULLETS or (first[-1] in ".)" and first[:-1].isdigit())
    text = form.partition(" ")[2] if is_item else form
    return form if "0" in text or not _OF_MACHINES.isdisjoint(text) else ""


def _of_run(run: "re.Match[str]") -> str:
    return "a" if run[0].isalpha() else "0"
