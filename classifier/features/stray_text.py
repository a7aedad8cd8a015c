"""Words of a turn, and text that changes nothing of its task: that is taken out of the classifier's input alone; the
tier gets every word.

Words are lower-case, without punctuation, digits masked; a few short texts are found in one pass where kernels are
built. What agents' clients put around the words of their users: reminders, environments, selections, maps of a
repository. Clients put it at the beginning or at the end of a turn: of one that begins and ends otherwise nothing
need be searched. Then greetings, thanks, and code or formulae that a request does not speak of. Rules, not a model: a
greeting opens the turn and a request follows, thanks end it; a sentence says of itself that it is to be ignored; a
run of code stands at an end of the turn, and the rest speaks neither of code nor of what stands next to it."""

import re
import string
from collections.abc import Iterable, Iterator, Sequence

from classifier.native import KERNELS

# On bytes, because translating non-ASCII text character by character is many times slower. Digits become "0": a
# number's length generalises to other prompts, its value does not. Punctuation separates words, apostrophes are dropped
# ("don't" → "dont").
_SEPARATORS = string.punctuation.encode()
_TABLE = bytes.maketrans(_SEPARATORS + string.digits.encode(), b" " * len(_SEPARATORS) + b"0" * 10)
_DROPPED = b"'`"
_TYPOGRAPHIC = {"’": "", "‘": " ", "“": " ", "”": " ", "–": " ", "—": " ", "…": " "}


def tokenise(turn: str) -> list[str]:
    """Return the lower-case words of `turn` in order; a number is "0" to "000…" by its length."""
    lower = turn.lower()
    if not lower.isascii():
        for mark, plain in _TYPOGRAPHIC.items():
            lower = lower.replace(mark, plain)
    return lower.encode(errors="replace").translate(_TABLE, _DROPPED).decode().split()


class Marks:
    """At most 64 ASCII texts of two characters or more, to be looked for together."""

    def __init__(self, marks: Iterable[str]) -> None:
        self.texts = tuple(marks)
        self._native = None if KERNELS is None else KERNELS.make_marks(self.texts)

    def within(self, text: str) -> list[str]:
        """Return the marks that occur in `text`, in their own order."""
        if KERNELS is not None:
            marks: list[str] = KERNELS.marks_in(self._native, text)
            return marks
        return [mark for mark in self.texts if mark in text]


# Elements whose content is the client's. Names that users write too, such as `file` or `context`, are not here.
_CLIENTS_OWN = (
    # Claude Code
    "system-reminder", "ide_selection", "ide_opened_file", "ide_diagnostics", "local-command-caveat",
    "local-command-stdout", "local-command-stderr", "command-name", "command-message", "bash-stdout", "bash-stderr",
    # Codex
    "environment_context", "user_instructions", "permissions instructions", "collaboration_mode", "turn_aborted",
    "skills_instructions", "apps_instructions", "plugins_instructions", "subagent_notification",
    # Cline, Roo Code
    "environment_details", "file_content", "folder_content", "workspace_diagnostics", "git_working_state",
    "explicit_instructions",
    # Cursor, Copilot
    "open_and_recently_viewed_files", "user_info", "project_layout", "environment_info", "workspace_info",
    "attached_files", "editorContext", "reminderInstructions",
)  # fmt: skip
# Elements whose content is the user's, without the tags. Unwrapped only next to elements of the client.
_USERS_OWN = ("command-args", "user_query", "user_message", "userRequest", "bash-input", "task", "feedback")
# A turn that begins so has nothing of the user: Codex's project rules, aider's maps and files.
_WHOLE_TURNS = (
    "# AGENTS.md instructions for ",
    "Here are summaries of some files present in my git repository",
    "Here are summaries of files in my git repository",
    "I have *added these files to the chat*",
    "Here are some READ ONLY files, provided for your reference",
    "Just tell me how to edit the files to make the changes",
)
# Aider writes its rules after the user's words in the same turn, and its examples as turns before this one.
CLIENTS_RULES = ("\n\n# *SEARCH/REPLACE block* Rules:", "\n\nTo suggest changes to a file you MUST return")
END_OF_EXAMPLES = "I switched to a new code base. Please don't consider the above files"
# A turn that has any text of a client begins so, or ends with ">".
CLIENTS_OPENINGS = ("<", *_WHOLE_TURNS)
_OPENING = re.compile(rf"<({'|'.join(map(re.escape, _CLIENTS_OWN))})(?:\s[^<>]{{0,256}})?>")
_TAGS = re.compile(rf"</?(?:{'|'.join(_USERS_OWN)})>")
# Of a longer turn only the ends are searched; the classifier reads fewer words.
WINDOW = 65_536


def users_text(turn: str) -> str:
    """Return what of a user's `turn` its client did not put there, "" if that is nothing; the same string where it has
    no text of a client. Deterministic; the work is bounded by the turn's length."""
    if turn.startswith(_WHOLE_TURNS):
        return ""
    if len(turn) > 2 * WINDOW:
        head, tail = _without_elements(turn[:WINDOW]), _without_elements(turn[-WINDOW:])
        kept = f"{head}{turn[WINDOW:-WINDOW]}{tail}"
    else:
        kept = _without_elements(turn)
    for rules in CLIENTS_RULES:
        kept = kept.partition(rules)[0]
    return turn if kept == turn else _TAGS.sub("", kept).strip()


def _without_elements(text: str) -> str:
    """Return `text` without the client's elements; one without an end is left."""
    kept: list[str] = []
    unended: set[str] = set()
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        name = opening[1]
        end = -1 if name in unended else text.find(f"</{name}>", opening.end())
        if end < 0:
            unended.add(name)
            kept.append(text[at : opening.end()])
            at = opening.end()
            continue
        kept.append(text[at : opening.start()])
        at = end + len(name) + 3
    return "".join((*kept, text[at:]))


# A greeting and the greeted, up to the end of the clause or of a sentence that asks for nothing; and sentences of
# small talk after it.
_GREETING = re.compile(
    r"(?:[^\s,.!?;:\n]+[ \t]*){1,3}[,!.;–—\n]+\s*|(?![^.!\n]*\b(?:can|could|would|will|write|make|explain|give|tell|"
    r"list|show|name|need|want|like|please|help|find|translate|summari[sz]e|is|are|do|does|what|who|where|when|why|how|which)\b)"
    r"[^.!?;:\n]{1,60}[.!\n]+[)\s]*",
    re.IGNORECASE,
)
_SMALL_TALK = re.compile(
    r"(?!(?:what|who|where|when|why|which|can|could|write|explain|give|tell)\b)[^.!?:\n]*\b(?:hop(?:e|ing)|trust|happy|"
    r"nice|lovely|great|wonderful|well|fine|excited|weekend|family|long time|first time|me again|thanks?|sorry|"
    r"disturb\w*|bother\w*|trouble|quick question|a question|how are (?:you|things)|how's (?:it|everything|your day)|"
    r"what's up|geht|va bien|va la|gaat|estás|como vai)\b[^.!?:\n]{0,50}[.!?:\n]+[)\s]*",
    re.IGNORECASE,
)
_PARTS_OF_DAY = re.compile(r"good\s+(?:morning|afternoon|evening|day)\b", re.IGNORECASE)
# Longer sentences are more than small talk.
_SMALL = 80
GREETS = frozenset(
    ("hi", "hii", "hello", "hey", "heya", "hiya", "howdy", "yo", "greetings", "good", "dear", "hallo", "hola",
     "bonjour", "bonsoir", "buongiorno", "ciao", "guten", "moin", "olá", "ola", "salut", "hej", "hoi", "g'day",
     "namaste", "merhaba")
)  # fmt: skip
# Thanks and regards after the request.
_THANKS = re.compile(
    r"(?<=[.!?\n])\s*(?:(?:many|much|kind|best|warm)\s+)?(?:thanks|thank\s+you|thx|cheers|obliged|appreciated|regards)\b"
    r"[^.!?\n]{0,60}[.!]*\s*$",
    re.IGNORECASE,
)
_THANKING = frozenset(("thank", "thx", "cheers", "obliged", "appreciated", "regards"))
# A sentence that says of itself, or of what follows in it, that it is not to be read.
_IGNORED = re.compile(
    r"\b(?:ignore|disregard|skip|pay no attention to)\b[^.!?\n]{0,30}\b(?:this|these|the (?:following|rest)|what "
    r"(?:comes|follows)|words?|line|sentence|part)\b|\b(?:not part of|irrelevant to) (?:the|my|this) (?:question|"
    r"request|task|prompt)\b|\bmeans? nothing\b|\b(?:is|are|only) (?:filler|noise|junk)\b|\bis being tested\b|"
    r"\bnothing to do with\b|^\W*(?:unrelated|off[- ]topic)\b|\bsent from my\b",
    re.IGNORECASE,
)
# What every sentence of that pattern has one of.
_HINTS = frozenset(
    ("ignore", "disregard", "skip", "pay no attention to", "not part of", "irrelevant to", "mean nothing",
     "means nothing", "filler", "noise", "junk", "is being tested", "nothing to do with", "unrelated", "off topic",
     "off-topic", "sent from my")
)  # fmt: skip
_SENTENCE = re.compile(r"[^.!?\n]*(?:[.](?=\w)[^.!?\n]*)*(?:[.!?]+[\"')\]]*[^\S\n]*|\n|$)")
# Names of code; those that are words of prose as well count as neither.
_NAMES = frozenset(
    ("def", "elif", "async", "await", "lambda", "const", "struct", "enum", "typedef", "printf", "println", "std",
     "nullptr", "char", "bool", "tuple", "malloc", "sizeof", "foreach", "instanceof", "numpy", "pandas", "kwargs",
     "args", "stdout", "stderr", "stdin", "boolean", "null", "fn", "impl", "mut", "elsif", "endif", "varchar",
     "sudo", "npm", "iterator", "regex", "json", "mutex", "namespace", "override", "inline", "uint64", "usize",
     "vec")
)  # fmt: skip
_NEITHER = frozenset(
    ("for", "if", "in", "is", "not", "and", "or", "as", "with", "from", "to", "by", "on", "end", "do", "then", "begin",
     "where", "new", "of", "let", "int", "str", "func", "return", "import", "class", "function", "public",
     "private", "static", "void", "while", "else", "try", "catch", "raise", "throw", "throws", "yield", "select",
     "join", "group", "having", "insert", "update", "delete", "true", "false", "none", "self", "this", "data",
     "match", "case", "break", "guard", "module", "print", "echo", "using", "package", "final", "extends",
     "implements", "default", "switch")
)  # fmt: skip
_CODE = re.compile(
    r"[{}\[\]\\$=<>_`|&@]|\w\(|\(\)|\w\)\)|\(\w\)$|::|->|\w;$|[a-z][A-Z]|^--?[a-z]|^#\w|^\w{1,6}\.\w{2,}|//|^\.[a-z]"
)
_MONEY = re.compile(r"\W*\$\d[\d,.]*\w?\W*")
# Fewer words of code may be a name that the request is about.
LEAST = 3
# What speaks of code or formulae: then the run may be what is asked about.
_OF_CODE = re.compile(
    r"\b(?:cod(?:e|es|ing)|scripts?|snippets?|programs?|programming|functions?|class(?:es)?|methods?|loops?|variables?|"
    r"arrays?|strings?|quer(?:y|ies)|sql|regex\w*|json|xml|html|css|yaml|python|java\w*|typescript|rust|golang|bash|shell|"
    r"kotlin|swift|ruby|php|haskell|errors?|exceptions?|traceback|stack|logs?|bugs?|fix\w*|debug\w*|refactor\w*|"
    r"compil\w*|crash\w*|implement\w*|algorithms?|schema|api|server|command|terminal|parse\w*|output|input|formulas?|"
    r"equations?|expressions?|integra[ln]?\w*|derivatives?|differentiate|matri\w+|vectors?|theorem|lemma|proofs?|prove|"
    r"solve|simplify|evaluate|comput\w+|calculat\w+|polynomials?|inverse|latex|math\w*|symbols?|notation|values?|"
    r"translat\w+|puzzles?|grids?|boards?|maze|inequalit\w+|integers?|coordinates|c[óo]digo|funci[óo]n|fonction|"
    r"funktion|fun[çc][ãa]o|fórmula|formel|code(?:zeile|n)?|fehler|erreur|options?)\b|c\+\+|c#",
    re.IGNORECASE,
)
# Words right before or after a run that point at it.
_POINTING = re.compile(
    r"\b(?:this|these|that|follow\w*|below|above|here|it|is|are|of|given|attached|dies\w*|folgend\w*|suivant\w*|est[aeo]|"
    r"cec?i|cette|siguiente\w*|seguinte\w*|the|a|an|and|or|to|for|in|let|if|when|where|with)[\s,(\"']*$|[:=]\W*$",
    re.IGNORECASE,
)
# Words that point at something shown, unless it is named as prose; then it is at hand.
_SHOWN = re.compile(
    r"\b(?:this|these|following|below|above|attached)\b(?!\s+(?:sentences?|notes?|texts?|e-?mails?|messages?|"
    r"paragraphs?|memos?|morning|week|month|year|time|stor(?:y|ies)|poems?|letters?|articles?|reviews?|plans?|argument|"
    r"claim|recipe|list|draft|word|phrase|question|person|man|woman|place|way|case|idea|situation|company|country|"
    r"city)\b)",
    re.IGNORECASE,
)
# Choices, and the marks of text that is shown.
_OPTION = re.compile(r"\n\s*\(?[A-J][.):]|```")
# The same in other scripts, without borders of words.
_OF_CODE_ELSEWHERE = re.compile(
    "代码|代碼|函数|函數|公式|方程|证明|證明|コード|関数|数式|証明|코드|함수|수식|방정식|증명|код|функци|формул|уравнен|докаж|"
    "программ|كود|شيفرة|دالة|معادلة|أثبت|कोड|फ़ंक्शन|समीकरण|सूत्र|सिद्ध|κώδικ|συνάρτησ|εξίσωσ|"
    "קוד|פונקציה|משוואה|โค้ด|ฟังก์ชัน|สมการ"
)
_SYMBOLS = frozenset(
    ("()", ");", "def ", "async", "lambda", "printf", "println", "numpy", "pandas", "stdout", "stderr", "nullptr",
     "foreach", "regex", "mutex", "varchar", "malloc", "boolean", "kwargs", "typedef")
)  # fmt: skip
# Most turns have none of them and need only this search.
MARKS = Marks((*_HINTS, *_THANKING, *_SYMBOLS))
# In longer turns such words have little weight.
LONGEST = 2048
# Words of prose in a row that end a run.
_PROSE = 4
# Words in which most runs end.
_FEW = 24


def without_stray_text(text: str) -> str:
    """Return `text` without greetings before a request, sentences that are to be ignored, and stray code or formulae at
    an end; the same string where there are none. Deterministic; the work is bounded by `LONGEST`."""
    if len(text) > LONGEST:
        return text
    text = _without_greeting(text)
    # Tests one by one: half as long as a pattern of them takes, and every prompt is tested.
    symbols = "=" in text or "{" in text or "$" in text or "\\" in text or "_" in text or "<" in text or "[" in text
    marks = MARKS.within(text.lower())
    if not marks and not symbols:
        return text
    if not _HINTS.isdisjoint(marks):
        text = _without_ignored(text, [mark for mark in marks if mark in _HINTS])
    if not _THANKING.isdisjoint(marks):
        text = _at_least_a_request(_THANKS.sub("", text), text)
    # Choices, and text that is marked as shown, belong to the request.
    if (not symbols and _SYMBOLS.isdisjoint(marks)) or _OPTION.search(text):
        return text
    last, first = _run(_last_words(text)), _run(_first_words(text))
    for rest, pointing in ((_cut_last(text, last), True), (_cut_first(text, first), False)):
        if rest is not None and not _speaks_of(rest, pointing):
            return rest
    return text


def _without_greeting(text: str) -> str:
    first = text[:12].split(None, 1)[:1]
    if not first or first[0].strip(",.!?:;").lower() not in GREETS:
        return text
    if first[0] in ("good", "Good") and not _PARTS_OF_DAY.match(text):
        return text
    if first[0] in ("dear", "Dear") and "," not in text[:40]:
        return text
    greeting = _GREETING.match(text)
    end = 0 if greeting is None else greeting.end()
    for _ in range(2):
        talk = _SMALL_TALK.match(text, end) if end else None
        if talk is None or talk.end() - end > _SMALL:
            break
        end = talk.end()
    return _at_least_a_request(text[end:], text)


def _at_least_a_request(rest: str, text: str) -> str:
    """Return `rest`, or `text` where so little is left that it may be no request."""
    return rest if len(rest.split(None, 3)) > 3 else text


def _without_ignored(text: str, hints: Sequence[str]) -> str:
    kept = [sentence for sentence in _SENTENCE.findall(text) if not _is_ignored(sentence, hints)]
    return _at_least_a_request("".join(kept).strip(), text)


def _is_ignored(sentence: str, hints: Sequence[str]) -> bool:
    lower = sentence.lower()
    return any(hint in lower for hint in hints) and _IGNORED.search(sentence) is not None


def _first_words(text: str) -> Iterator[str]:
    """Return the words from the first on; most runs end within a few, so that the others need not be split."""
    parts = text.split(None, _FEW)
    yield from parts[:_FEW]
    if len(parts) > _FEW:
        yield from parts[_FEW].split()


def _last_words(text: str) -> Iterator[str]:
    """Return the words from the last on."""
    parts = text.rsplit(None, _FEW)
    if len(parts) <= _FEW:
        yield from reversed(parts)
        return
    yield from reversed(parts[1:])
    yield from reversed(parts[0].split())


def _run(words: Iterable[str]) -> int:
    """Return how many of the first words are a run of code, 0 without one."""
    length = code = prose = 0
    for position, word in enumerate(words, start=1):
        if word.isalpha() and (word.islower() or word.istitle()):
            # As most words; in other words of letters alone a capital after a small letter is code.
            bare = word.lower()
            is_code = bare in _NAMES
        else:
            bare = word.strip("()[]{},.;:\"'").lower()
            is_code = bool(_CODE.search(word) or bare in _NAMES) and not _MONEY.fullmatch(word)
        if is_code:
            length, code, prose = position, code + 1, 0
        elif bare.isalpha() and len(bare) > 1 and bare not in _NEITHER:
            prose += 1
            if prose == _PROSE:
                break
    return length if code >= max(LEAST, length / 4) else 0


def _cut_last(text: str, count: int) -> str | None:
    """Return `text` without its last `count` words; None if too little is left, or nothing is cut."""
    parts = text.rsplit(None, count)
    return parts[0] if 0 < count < len(parts) and len(parts[0].split(None, 2)) > 2 else None


def _cut_first(text: str, count: int) -> str | None:
    parts = text.split(None, count)
    return parts[-1] if 0 < count < len(parts) and len(parts[-1].split(None, 2)) > 2 else None


def _speaks_of(rest: str, pointing: bool) -> bool:
    points = pointing and _POINTING.search(rest[-40:])
    return bool(points or _OF_CODE.search(rest) or _SHOWN.search(rest)) or (
        not rest.isascii() and _OF_CODE_ELSEWHERE.search(rest) is not None
    )
