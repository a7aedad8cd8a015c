"""A short turn that goes on with an earlier one ("now in Rust", "yes, do that") is read together with it.

A list of words, not a model: what is recognised must be short, and name or leave out what it speaks of. A turn that
stands for itself, or that only closes ("thanks!"), is read alone.
"""

import re
from collections.abc import Iterable, Sequence

# Earlier turns of the user that count.
EARLIER_TURNS = 2
# Words of each earlier turn that are read, from its beginning and its end.
HEAD_WORDS, TAIL_WORDS = 96, 32
# A turn of so many words may need an earlier one if it refers to something; of so few it does without a sign of that.
MOST_WORDS, FEW_WORDS = 40, 4
# Scripts without spaces: so many characters count as a word.
CHARS_PER_WORD = 2

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What closes a topic, in the languages of the sets of prompts; with `_FILLERS` it is the whole turn.
_CLOSING = _words("""
    thanks thank thx ty cheers bye goodbye goodnight cya perfect great awesome cool nice lovely excellent brilliant
    wonderful amazing works worked solved fixed lol haha hahaha
    danke dank tschüss prima perfekt merci parfait gracias perfecto obrigado obrigada grazie perfetto bedankt
    dankjewel tack dzięki dziękuję спасибо отлично пока शुक्रिया धन्यवाद شكرا teşekkürler teşekkür
""")
_CLOSING_TEXTS = (
    "ありがとう", "感谢", "谢谢", "謝謝", "再见", "감사", "고마워", "ขอบคุณ", "got it", "that's all", "thats all",
    "that is all", "no more questions", "never mind", "nevermind", "looks good", "sounds good", "au revoir",
    "auf wiedersehen",
)  # fmt: skip
_FILLERS = _words("""
    a all am an and are for good have i is it it's just lot me my much no now ok okay oh so that that's thats the this
    to very well wow you your yes yeah yep again really everything help day evening night weekend one dir dich ihnen
    sehr viel vielen schön super top klar alles gut mit das ist un une beaucoup bien très c'est tout muchas muy todo
    muito molto mille tante большое вам тебе got sounds looks love
""")
# What a turn begins with that continues another.
_STARTS = (
    "and", "but", "also", "now", "then", "so", "or", "plus", "what about", "how about", "what if", "why", "yes", "yep",
    "yeah", "sure", "ok", "okay", "no", "nope", "please", "go on", "go ahead", "continue", "do", "again", "another",
    "more", "same", "instead", "actually", "still", "which", "when", "shorter", "longer", "make it", "can you also",
    "try", "looks", "nice", "great", "good", "wait", "hmm", "not", "i did", "i already", "i tried", "less", "too",
    "und", "aber", "jetzt", "nun", "dann", "oder", "ja", "nein", "noch", "auch", "weiter", "warum", "wieso", "bitte",
    "kürzer", "länger", "et", "mais", "maintenant", "oui", "non", "ou", "pourquoi", "encore", "aussi", "y", "pero",
    "ahora", "sí", "si", "o", "por qué", "otra", "otro", "también", "e", "ma", "adesso", "ora", "anche", "ancora",
    "mas", "agora", "sim", "não", "também", "outra", "outro", "en", "maar", "nu", "a", "i", "ale", "teraz", "а", "и",
    "но", "теперь", "да", "нет", "ещё", "еще", "почему", "также", "और", "अब", "हाँ", "लेकिन",
)  # fmt: skip
_STARTS_UNSPACED = (
    "改", "那", "还", "再", "也", "继续", "为什么", "好", "可以", "是的", "不", "换", "それ", "では", "じゃ", "でも",
    "もう", "続", "はい", "いいえ", "なぜ", "同じ", "이제", "그리고", "그럼", "네", "계속", "왜", "다시",
)  # fmt: skip
# Words that stand for something said before.
_REFERENCES = _words("""
    it its it's this that that's these those them they their he she his her him one ones same other another others
    second third former latter above previous last instead again too also more both either neither there step phase
    part option version yours your you
    dies diese dieser dieses diesen damit davon dafür dazu ihn ihm dort nochmal beide ça cela ceci celui celle lui
    eso esto ese esa questo questa quello quella isso isto esse essa это этот эта этого его её их там тоже этом deze
    dit इसे इसका यह वह उस
""")


def in_context(turn: str, earlier: Iterable[str]) -> str:
    """Return `turn`, which `continues` another, after those of the `earlier` turns (newest first) that it goes on with,
    a line each. At most two turns count, and the second only where the first is a follow-up itself."""
    read = [turn]
    for text in earlier:
        if is_closing(text):
            continue
        read.append(_cut(text))
        if len(read) > EARLIER_TURNS or not continues(text):
            break
    return "\n".join(reversed(read))


def continues(turn: str) -> bool:
    """Return whether a turn is short and refers to something that it does not name."""
    lower = turn.strip().lower()
    if len(lower) > 12 * MOST_WORDS or is_closing(lower):
        return False
    words = _WORD.findall(lower)
    unspaced = len(_UNSPACED.findall(lower))
    count = len(words) if not unspaced else max(len(words), unspaced // CHARS_PER_WORD)
    if count > MOST_WORDS:
        return False
    if count <= FEW_WORDS or lower.lstrip("¿¡ ").startswith(_STARTS_UNSPACED):
        return True
    return _begins(words) or not _REFERENCES.isdisjoint(words)


def is_closing(turn: str) -> bool:
    """Return whether a turn only thanks, praises or takes leave."""
    lower = turn.strip().lower()
    if len(lower) > 80:
        return False
    words = set(_WORD.findall(lower))
    closing = any(text in lower for text in _CLOSING_TEXTS) or not words.isdisjoint(_CLOSING)
    if not closing:
        return not words  # a mark or a smiley
    return "?" not in lower and (words <= _CLOSING | _FILLERS or bool(_UNSPACED.search(lower)))


def _begins(words: Sequence[str]) -> bool:
    return any(" ".join(words[:n]) in _STARTS for n in (1, 2, 3))


def _cut(text: str) -> str:
    words = text.split(None, HEAD_WORDS + TAIL_WORDS)
    if len(words) <= HEAD_WORDS + TAIL_WORDS:
        return text
    head = " ".join(words[:HEAD_WORDS])
    return f"{head} {' '.join(text.rsplit(None, TAIL_WORDS)[1:])}"
