"""A turn is divided into what is asked (the instruction) and what it is asked about (the material): pasted logs,
tables, JSON, code, mails and long prose.

The instruction says how hard a request is; material only costs. So the classifier reads the instruction and, in place
of each material, its kind, and of prose a few words. Code is read where the request may be as hard as the code is.
Rules on lines, not a model: lines of a kind that follow each other are one material (`classifier.features.line_kinds`).
Prose is material where it is marked (quoted, fenced, in an element), or where a short request leads to it
(`classifier.features.pasted_prose`). Lists of requirements, options of a question and word problems are instructions.
Only so many lines at either end of a turn are read, so that the work is bounded; what lies between belongs to the
material around it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice

from classifier.features import request_words as words
from classifier.features.line_kinds import (
    BLANK,
    FENCE,
    GAP,
    LIST,
    PROSE,
    STRUCTURED,
    UNLIKE_PROSE,
    UNLIKE_PROSE_WITH_MARKS,
    Line,
    Material,
    end_of,
    form_of,
    kind_of,
    separator_of,
)
from classifier.features.pasted_prose import LEAST_MARKED, QUOTES, is_text, material_in_one_line, prose_in
from classifier.native import KERNELS

# Characters and lines that are read at either end.
HEAD, TAIL = 2560, 1536
HEAD_LINES, TAIL_LINES = 20, 12
# A shorter turn on one line is read as it is.
LEAST = 240
# Lines of a kind that are a material, and of tables and settings, which prose resembles.
LEAST_LINES, LEAST_CELLS = 2, 3
# Lines of a dialogue that are a material, and characters before the colon of a speaker.
LEAST_SPOKEN, LONGEST_NAME = 4, 32
# Lines of one form that are a material, and items of a list.
LEAST_ALIKE, LEAST_ITEMS = 5, 8
# Words of a material that its stand-in has, of one without a request, and of code as hard as the code is.
SHOWN_WORDS, ALONE_WORDS, CODE_WORDS, CODE_CHARS = 6, 64, 160, 1280
# Characters beyond the materials that may be prose and a request.
LEAST_TEXT = 160
# Lines that the first words of a material are looked for in, and characters of a stand-in.
SHOWN_LINES, SHOWN_CHARS = 4, 60
# Characters of each part of a request that say whether it is as hard as its code.
ASKED_CHARS = 400
# Stand-ins of a turn; further materials are left out.
MOST_SHOWN = 3
# What the classifier reads of a word.
_WORD_CHARS = 24
# White space that begins a stand-in, so that it is not taken for words of a user.
STAND_IN = "\x1e"
_SAID = "here is the {}"
_KIND_READ = re.compile(f"{STAND_IN}(?:{_SAID.format('')})?(\\w+)")

# Kinds whose stand-in has a few of their words; those of data would count as figures and names of the request.
_OF_PROSE = ("text", "quote")
# What further lines of a kind begin with.
_CONTINUED = {"code": ("  ", "\t"), "trace": ("  ", "\t"), "diff": ("+", "-", " ")}
# A fence that names a language.
_OF_CODE = re.compile(r"(?:```|~~~)(?!te?xt|plain|markdown|md\b|csv|tsv|json|ya?ml|xml|log|diff|console)\w")
_TAG = re.compile(r"<([A-Za-z][\w-]{0,40})>$")


def as_read(text: str) -> str:
    """Return what the classifier reads of a turn: its instruction, and a stand-in for each material; the same string
    where there is none. Deterministic; the work is bounded."""
    if STAND_IN in text:
        text = text.replace(STAND_IN, " ")
    if len(text) < LEAST and "\n" not in text:
        return text
    # Most turns have no material, which a kernel sees at once; the rules say of the others.
    materials = [] if KERNELS is not None and KERNELS.has_no_material(_rules(), text) else materials_of(text)
    if not materials:
        return text
    request = _request_parts(text, materials)
    if not any(character.isalnum() for part in request for character in part):
        first = materials[0]
        return _first_words(text[first.start : first.end], ALONE_WORDS)
    has_code = any(material.kind == "code" for material in materials)
    as_hard_as_it_is = has_code and not words.LOOK_UP.search(" ".join(part[-ASKED_CHARS:] for part in request))
    parts: list[str] = []
    for index, (part, material) in enumerate(zip(request, [*materials, None], strict=True)):
        if part:
            parts.append(part)
        if material is not None and index < MOST_SHOWN:
            parts.append(_stand_in(text, material, as_hard_as_it_is))
    return "\n".join(parts)


@cache
def _rules() -> object:
    first_words = {**dict.fromkeys(UNLIKE_PROSE, 1), **dict.fromkeys(UNLIKE_PROSE_WITH_MARKS, 2)}
    return KERNELS.make_material(words.words_by_bit(), first_words)


def kinds_left_out(read: str) -> tuple[str, ...]:
    """Return the kinds of the materials that have a stand-in in what was `read` of turns, without repetition."""
    if STAND_IN not in read:
        return ()
    return tuple(dict.fromkeys(_KIND_READ.findall(read)))


def materials_of(text: str) -> list[Material]:
    """Return the materials of a turn in their order; they do not overlap."""
    lines = _lines_of(text)
    materials = _marked(text, lines)
    materials = _with(materials, _structured(_outside(lines, materials)))
    if sum(material.end - material.start for material in materials) + LEAST_TEXT < len(text):
        materials = _with(materials, prose_in(text, _outside(lines, materials)))
    if not materials:
        materials = material_in_one_line(text)
    return _joined(text, _joined_over_gap(lines, materials))


def _joined(text: str, materials: Sequence[Material]) -> list[Material]:
    """Return the materials with those that only white space parts as one."""
    whole: list[Material] = []
    for material in materials:
        if whole and not text[whole[-1].end : material.start].strip():
            whole[-1] = whole[-1]._replace(end=material.end)
        else:
            whole.append(material)
    return whole


def _request_parts(text: str, materials: Sequence[Material]) -> list[str]:
    """Return the parts of the turn before, between and after its materials."""
    starts = [0, *(material.end for material in materials)]
    ends = [*(material.start for material in materials), len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def _stand_in(text: str, material: Material, as_hard_as_it_is: bool) -> str:
    content = text[material.start : min(material.end, material.start + HEAD)]
    if material.kind == "code" and as_hard_as_it_is:
        return " ".join(content[:CODE_CHARS].split(None, CODE_WORDS)[:CODE_WORDS])
    if material.kind not in _OF_PROSE:
        return STAND_IN + _SAID.format(material.kind)
    lines = (line.strip() for line in content.split("\n", SHOWN_LINES)[:SHOWN_LINES])
    shown = next((line for line in lines if kind_of(line) not in (BLANK, FENCE)), "")
    return f"{STAND_IN}{material.kind} {_first_words(shown, SHOWN_WORDS)[:SHOWN_CHARS]}"


def _first_words(text: str, most: int) -> str:
    return " ".join(word[:_WORD_CHARS] for word in text[: most * _WORD_CHARS].split(None, most)[:most])


def _lines_of(text: str) -> list[Line]:
    """Return the lines of the turn's ends with their kinds; one of the kind `GAP` between them where more were left."""
    if len(text) <= HEAD + TAIL:
        cut = text.split("\n", HEAD_LINES + TAIL_LINES)
        if len(cut) <= HEAD_LINES + TAIL_LINES:
            return list(_kinds(cut, 0))
        head, rest = cut[:HEAD_LINES], len(text)
        tail = text.rsplit("\n", TAIL_LINES)[1:]
    else:
        head = text[:HEAD].split("\n", HEAD_LINES)
        if len(head) > 1:
            head.pop()
        head, tail, rest = head[:HEAD_LINES], text[-TAIL:].rsplit("\n", TAIL_LINES), len(text)
        if len(tail) > 1:
            tail = tail[1:]
    before = list(_kinds(head, 0))
    begin = len(text) - sum(map(len, tail)) - len(tail) + 1
    end = before[-1].start + len(before[-1].text)
    return [*before, Line("", min(end, rest), GAP), *_kinds(tail, begin)]


def _kinds(lines: Sequence[str], start: int) -> Iterator[Line]:
    for line in lines:
        yield Line(line, start, kind_of(line))
        start += len(line) + 1


def _outside(lines: Sequence[Line], materials: Sequence[Material]) -> list[Line]:
    """Return the lines with those that stand in a material as `FENCE`, which ends what stands before it."""
    if not materials:
        return list(lines)
    return [
        Line(line.text, line.start, FENCE) if any(span.start <= line.start < span.end for span in materials) else line
        for line in lines
    ]


def _with(materials: Sequence[Material], more: Sequence[Material]) -> list[Material]:
    return sorted((*materials, *more), key=lambda material: material.start)


def _marked(text: str, lines: Sequence[Line]) -> list[Material]:
    """Materials between fences, in an element, or in quotes that begin a line."""
    materials: list[Material] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        stripped = line.text.strip()
        end = None
        if line.kind == FENCE:
            end = _closing_fence(lines, at, stripped)
        elif line.kind == "data" and (tag := _TAG.match(stripped)) is not None:
            end = next((i for i in range(at + 1, len(lines)) if lines[i].text.strip() == f"</{tag[1]}>"), None)
        elif line.kind == PROSE and stripped[0] in QUOTES:
            end = _closing_quote(lines, at, QUOTES[stripped[0]])
        if end is None:
            at += 1
            continue
        inner = lines[at + 1 : end] if line.kind != PROSE else lines[at : end + 1]
        kind = "code" if _OF_CODE.match(stripped) else _kind_of_lines(inner)
        asked = " ".join(other.text for other in (*lines[:at], *lines[end + 1 :]) if other.kind in (PROSE, LIST))
        if inner and (kind != "text" or is_text(text[line.start : end_of(lines[end])], asked)):
            materials.append(Material(kind, line.start, end_of(lines[end])))
        at = end + 1
    return materials


def _closing_fence(lines: Sequence[Line], at: int, opening: str) -> int | None:
    for index in range(at + 1, len(lines)):
        if lines[index].kind == FENCE and lines[index].text.strip()[:3] == opening[:3]:
            return index
    is_code = opening.startswith(("```", "~~~"))
    return len(lines) - 1 if is_code or (at and len(lines) > at + 1) else None


def _closing_quote(lines: Sequence[Line], at: int, mark: str) -> int | None:
    """Return the last line that ends in `mark`; None where what it encloses is short."""
    for index in range(len(lines) - 1, at - 1, -1):
        if lines[index].text.rstrip(" .").endswith(mark) and (index > at or len(lines[at].text) > 1):
            return index if end_of(lines[index]) - lines[at].start >= LEAST_MARKED else None
    return None


def _kind_of_lines(lines: Sequence[Line]) -> str:
    kinds = Counter(line.kind for line in lines if line.kind not in (BLANK, GAP))
    if not kinds:
        return "text"
    most, count = kinds.most_common(1)[0]
    if most in STRUCTURED:
        return most
    if _cells(lines, 0) >= LEAST_CELLS:
        return "table"
    structured = sum(kinds[kind] for kind in STRUCTURED)
    return "code" if 2 * structured >= count else "text"


def _structured(lines: Sequence[Line]) -> list[Material]:
    """Materials of lines that are no prose by themselves."""
    materials: list[Material] = []
    at = 0
    while at < len(lines):
        if lines[at].kind not in STRUCTURED:
            rows = _cells(lines, at)
            kind = "table"
            if rows < LEAST_CELLS:
                rows = _alike(lines, at)
            if not rows:
                kind, rows = "text", _spoken(lines, at)
            if rows:
                materials.append(Material(kind, lines[at].start, end_of(lines[at + rows - 1])))
            at += max(rows, 1)
            continue
        end = _run(lines, at)
        run = lines[at:end]
        kind = _kind_of_lines(run)
        if _is_enough(run, kind):
            materials.append(Material(kind, run[0].start, end_of(run[-1])))
        at = end
    return materials


def _run(lines: Sequence[Line], at: int) -> int:
    """Return the index after the last line of the run that begins at `at`. Lines of prose within a paragraph and blank
    ones belong to it where more of it follows."""
    last, index, kind = at, at + 1, lines[at].kind
    while index < len(lines) and index - last <= 3:
        line = lines[index]
        if line.kind == FENCE:
            break
        if line.kind in STRUCTURED:
            between = lines[last + 1 : index]
            blank = any(inner.kind == BLANK for inner in between)
            if blank and (line.kind != kind or any(inner.kind not in (BLANK, GAP) for inner in between)):
                break
            last = index
        elif line.kind == GAP or line.text.startswith(_CONTINUED.get(kind, ())):
            last = index
        index += 1
    return last + 1


def _is_enough(run: Sequence[Line], kind: str) -> bool:
    count = sum(line.kind in STRUCTURED for line in run)
    size = end_of(run[-1]) - run[0].start
    if count == 1:
        is_json = run[0].text.lstrip()[:1] in "{[<" and size >= 80
        return is_json if kind == "data" else kind in ("log", "quote") and size >= LEAST_MARKED
    if kind == "data" and not any(line.text.strip()[:1] in '{}[]"<' for line in run):
        return count >= LEAST_CELLS
    return count >= LEAST_LINES and size >= 40


def _cells(lines: Sequence[Line], start: int) -> int:
    """Return how many lines from `start` on are rows of a table by their separators, 0 for none."""
    rows, first, number = 0, "", 0
    for line in islice(lines, start, None):
        if line.kind == GAP and rows:
            rows += 1
            continue
        if line.kind != PROSE:
            break
        mark, count = separator_of(line.text)
        if not mark or (rows and (mark != first or abs(count - number) > (2 if number > 2 else 0))):
            break
        first, number, rows = mark, count, rows + 1
    return rows


def _alike(lines: Sequence[Line], start: int) -> int:
    """Return how many lines from `start` on have one form, as lines that a program wrote, 0 for few."""
    first = lines[start]
    form = form_of(first.text) if first.kind in (PROSE, LIST) else ""
    if not form:
        return 0
    end = start + 1
    while end < len(lines) and (lines[end].kind == GAP or form_of(lines[end].text) == form):
        end += 1
    return end - start if end - start >= (LEAST_ITEMS if first.kind == LIST else LEAST_ALIKE) else 0


def _spoken(lines: Sequence[Line], start: int) -> int:
    """Return how many lines from `start` on are of speakers in turn, 0 for few: settings have a name once."""
    if ":" not in lines[start].text[:LONGEST_NAME]:
        return 0
    names: list[str] = []
    end = last = start
    while end < len(lines) and (lines[end].kind in (BLANK, GAP) or (name := _speaker(lines[end]))):
        if lines[end].kind not in (BLANK, GAP):
            names.append(name)
            last = end
        end += 1
    return last + 1 - start if len(names) >= LEAST_SPOKEN and 2 * len(set(names)) <= len(names) else 0


def _speaker(line: Line) -> str:
    name, colon, _ = line.text[:LONGEST_NAME].partition(":")
    return name.strip() if colon and line.kind == PROSE and len(name.split()) <= 3 else ""


def _joined_over_gap(lines: Sequence[Line], materials: list[Material]) -> list[Material]:
    """Return the materials with those on both sides of the gap as one, and with the gap where one reaches it."""
    gap = next((index for index, line in enumerate(lines) if line.kind == GAP), None)
    if gap is None or not materials:
        return materials
    start, end = lines[gap].start, lines[gap + 1].start
    before = [material for material in materials if material.end < start]
    after = [material for material in materials if material.start > end]
    around = [material for material in materials if material not in before and material not in after]
    if not around:
        return materials
    whole = Material(around[0].kind, min(start, around[0].start), max(end, around[-1].end))
    return [*before, whole, *after]
