"""The gist of a prompt: its text without what says nothing. One answer does for two prompts only if theirs are equal.

Vectors of whole prompts do not tell "speed doubles the momentum" from "momentum doubles the speed", nor one unknown
name from another. So what may differ is listed here; all else has to be the same to the letter, in the same order.
"""

import re

# Code, quotations, what follows a colon, and prompts about a text: there the very form may be what is asked about.
_FORM_COUNTS = re.compile(
    r"[`\"“”„«»:{}\[\]<>=|\\_~^$#@\t]|^[ ]+\S|(?<!\w)['‘’]"
    r"|\b(?:translat|spell|pronounc|proofread|punctuat|capitali[sz]|contract|abbreviat|grammar|rewrit|rephras|paraphras"
    r"|correct|word|letter|character|sentence|line|paragraph|comma|apostrophe|space)",
    re.IGNORECASE | re.MULTILINE,
)
_COURTESY = re.compile(
    r"\A(?:(?:hi|hello|hey)[,!.]\s+)?(?:(?:please|kindly|(?:can|could|would) you please)\s+)?", re.IGNORECASE
)
_THANKS = re.compile(r"(?:(?<=[.?!])|,)\s+(?:please|thanks|thank you)[.!]?\Z|\s+please(?=[.?]?\Z)", re.IGNORECASE)
_CONTRACTIONS = (
    (re.compile(r"\b(can)(?:'t|not)\b", re.IGNORECASE), r"\1 not"),
    (re.compile(r"\b(w)on't\b", re.IGNORECASE), r"\1ill not"),
    (
        re.compile(r"\b(are|could|did|does|do|had|has|have|is|must|should|was|were|would)n't\b", re.IGNORECASE),
        r"\1 not",
    ),
    (re.compile(r"\b(what|who|where|when|how|that|there|it|he|she)'s\b", re.IGNORECASE), r"\1 is"),
    (re.compile(r"\b(we|you|they|who|what)'re\b", re.IGNORECASE), r"\1 are"),
    (re.compile(r"\b(i)'m\b", re.IGNORECASE), r"\1 am"),
    (re.compile(r"\b(i|we|you|they)'ve\b", re.IGNORECASE), r"\1 have"),
)
# A line break after the end of a sentence is a space; elsewhere it may part what a space does not.
_SPACE = re.compile(r"(?<=[.?!])\s+|[^\S\n]+")
_BREAK = re.compile(r"\s*\n\s*")
_ASKS = re.compile(
    r"(?:what|who|whom|whose|when|where|why|which|how|is|are|was|were|do|does|did|has|have|should)\b", re.IGNORECASE
)
_LAST_STOP = re.compile(r"(?<=[^\W\d_]{2})\.\Z")
_LAST_QUESTION_MARK = re.compile(r"(?<=[^\W\d_]{2})\?\Z")


def gist(text: str) -> str:
    """`text` without a courtesy at its ends, without the mark that ends it where the words tell it too, contractions
    written out, white space between words as one space, and its first letter small; where the form of the text may
    count, only without the white space around it. Pure."""
    text = text.strip()
    if _FORM_COUNTS.search(text):
        return text
    text = _BREAK.sub("\n", _SPACE.sub(" ", text)).replace("’", "'")
    text = _THANKS.sub("", _COURTESY.sub("", text))
    if "'" in text or "annot" in text:
        for contracted, written_out in _CONTRACTIONS:
            text = contracted.sub(written_out, text)
    text = (_LAST_QUESTION_MARK if _ASKS.match(text) else _LAST_STOP).sub("", text)
    # A capital alone, or one of several, is more than the beginning of a sentence.
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
