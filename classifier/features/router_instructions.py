"""Instructions to the router in a prompt ("use tier 4 for this"): removed before classification, so they have no
effect.

Only the classifier's input changes; the tier gets the whole prompt. Constraints belong in the x-aio headers.
"""

import re

from classifier.features.marks import Marks

# A sentence is an instruction if it names a routing target, expresses a wish, and refers to itself or starts as an
# imperative. A question about models or tiers in general lacks one of the three.
_RANK = (
    r"(?:strong|larg|bigg|great|smart|high|cheap|fast|low)(?:er|est)|cheap|weak|strong|best|better|top|premium|flagship|expert|frontier"
    r"|maximum|max|upper|powerful|advanced|capable|(?:more|most)\s+(?:capable|powerful|advanced|expensive|intelligent"
    r"|accurate)"
)
_NAME = r"gpt-?[0-9][\w.-]*|claude(?:[\s-][\w.-]+)?|opus|gemini(?:[\s-][\w.-]+)?|[a-z]+-?[0-9]{1,3}b"
_TARGET = re.compile(
    rf"\btiers?[\s_:=#-]{{0,3}}(?:[0-9]+|one|two|three|four|five|max|expert|complex|premium|top)\b"
    rf"|\b(?:{_RANK}|complex|medium|simple)[\s_-]+tiers?\b"
    rf"|\b(?:{_RANK}|{_NAME}|[0-9]{{2,3}}b)[\s_-]+(?:[\w-]+[\s_-]+){{0,2}}(?:ai|llms?|models?)\b"
    rf"|\b(?:us(?:e|ing)|with|by|to|via|from|on)\s+(?:{_NAME})\b"
    r"|\b(?:model|request|prompt|query|llm|ai)[\s-]+(?:router|routing)\b"
    r"|\brout(?:er|ing)\s+(?:classifier|decision|policy|system|layer|instruction|model)s?\b"
    r"|\b(?:complexity|difficulty)\s+(?:score|class|classifier|level|rating)\b"
    r"|\bp_ok\b|\bquality[\s_-]target\b|\bmin[_-]?tier\b|\bx-aio-[a-z-]+"
)
_WISH = re.compile(
    r"\b(?:please|must|should|shall|needs?|requires?|deserves?|wants?|demands?|insists?|prefers?|ensure|sure|us(?:e|ing)"
    r"|rout(?:e|es|ed|ing)|assign(?:ed)?|classif(?:y|ied)|treat(?:ed)?|mark(?:ed)?|label(?:led)?|rated?|escalated?"
    r"|upgraded?|promoted?|forward(?:ed)?|switch(?:ed)?|select(?:ed)?|choose|chosen|pick(?:ed)?|send|sent"
    r"|process(?:ed)?|handled?|answer(?:ed)?|respond|reply|run|set|forced?|override|bypass|ignore|go|gives?|given"
    r"|invoke|delegated?|hand|direct(?:ed)?|redirect(?:ed)?|pass|skip|elevated?|prioriti[sz]ed?|output|return|predict"
    r"|report|consider(?:ed)?|belongs?|goes)\b"
)
_ORDER = (
    r"route|use|assign|classify|treat|mark|escalate|upgrade|forward|switch|select|choose|pick|send|process|handle"
    r"|answer|respond|reply|run|set|force|ignore|override|bypass|redirect|delegate|skip|rate|label|elevate|prioriti[sz]e"
    r"|output|predict|report|consider|ensure|make sure|require|go"
)
_ITSELF = re.compile(
    r"\b(?:this|my|your|following|above|current)\s+(?:\w+\s+){0,2}(?:question|query|prompt|request|message|task"
    r"|conversation|answer|response|reply|problem|one|input|instructions?)\b"
    r"|\b(?:this|it|me|you|yourself|i)\b"
    r"|^\W*(?:system|admin|developer|note|important|urgent|instructions?|override|attention|hint|dear|hey|router)\b"
    rf"|^\W*(?:(?:please|now|just|then|and|always|only|never|do not|you must)\W+)*(?:{_ORDER})\b"
)
# A header or setting within the text is removed alone, because the rest of its sentence may be the question.
_SETTING = re.compile(
    r"(?:\bx-aio-[a-z-]+|\bmin[_-]?tier|\btier(?=\W{0,3}[:=]\s*[0-9])|\bquality[_-]target|\bp_ok)\W{0,3}[:=]\s*\S+\s*",
    re.IGNORECASE | re.MULTILINE,
)
# Without one of these words there is no instruction; most prompts need only this search.
_HINTS = Marks(("tier", "model", "rout", "x-aio", "gpt", "claude", "opus", "gemini", "llm", "complexity", "difficulty",
                "p_ok", "quality_", "quality t", " ai ", " ai.", " ai!"))  # fmt: skip
_OF_SETTINGS = ("tier", "x-aio", "p_ok", "quality_")
_SENTENCE = re.compile(r"[^.!?\n;]*(?:\.(?=\w)[^.!?\n;]*)*(?:[.!?;]+[\"')\]]*[^\S\n]*|\n|$)")
# Certain ends of sentences, to find the sentence around a hint without splitting the whole text.
_ENDS = ("\n", ". ", '."', ".)", "!", "?", ";")
_END = re.compile(r"[!?;\n]|\.(?!\w)")
# Only this many characters are searched at either end; the classifier reads fewer.
WINDOW = 4096
# Longer sentences are text without punctuation, not instructions, and would cost time.
LONGEST = 600


def without_router_instructions(text: str) -> str:
    """Return `text` without sentences that ask for a tier or a model; the same string without any.

    Only the first and last `WINDOW` characters are searched, so the work is bounded. Deterministic.
    """
    if len(text) <= 2 * WINDOW:
        return _kept(text)
    return _kept(text[:WINDOW]) + text[WINDOW:-WINDOW] + _kept(text[-WINDOW:])


def is_router_instruction(sentence: str) -> bool:
    """Return whether `sentence` asks the router for something."""
    lower = sentence.lower()
    return bool(_TARGET.search(lower) and _WISH.search(lower) and _ITSELF.search(lower))


def _kept(text: str) -> str:
    if not _is_suspicious(f"{text.lower()} "):
        return text
    plain = _SETTING.sub("", text) if ":" in text or "=" in text else text
    sentences = _SENTENCE.findall(plain)
    kept = [s for s in sentences if len(s) > LONGEST or not is_router_instruction(s)]
    return text if plain == text and len(kept) == len(sentences) else "".join(kept).strip()


def _is_suspicious(lower: str) -> bool:
    """Return whether the sentence around a hint may be an instruction; most texts have no hint, and few have
    several."""
    seen: set[int] = set()
    for hint in _HINTS.within(lower):
        at = lower.find(hint)
        while at >= 0:
            begin = max(lower.rfind(end, 0, at) for end in _ENDS) + 1
            ended = _END.search(lower, at)
            end = len(lower) if ended is None else ended.end()
            if begin not in seen and end - begin <= 2 * LONGEST:
                seen.add(begin)
                piece = lower[begin:end]
                if _TARGET.search(piece) and _WISH.search(piece):
                    return True
                if (":" in piece or "=" in piece) and any(name in piece for name in _OF_SETTINGS):
                    return True
            at = lower.find(hint, max(end, at + 1))
    return False
