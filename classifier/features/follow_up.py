"""A short turn that goes on with an earlier one ("now in Rust", "yes, do that") is read together with it.

Lists of words and forms, in the languages of the sets of prompts, not a model: what is recognised must be short, and
name or leave out what it speaks of. A turn that stands for itself, or that only closes ("thanks!"), is read alone.
"""

import re
from collections.abc import Iterator, Sequence


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> frozenset[str]:
    return frozenset(" ".join(phrase.split()) for phrase in text.split("|"))


# What closes a topic, in the languages of the sets of prompts; with `FILLERS` it is the whole turn.
CLOSING = _words("""
    thanks thank thx ty cheers bye goodbye goodnight cya perfect great awesome cool nice lovely excellent brilliant
    wonderful amazing works worked solved fixed merged lifesaver lol haha hahaha
    danke dank tschüss passt prima perfekt merci parfait gracias perfecto obrigado obrigada grazie perfetto bedankt
    dankjewel tack dzięki dziękuję спасибо отлично пока शुक्रिया धन्यवाद شكرا teşekkürler teşekkür
""")
CLOSING_TEXTS = (
    "ありがとう", "感谢", "谢谢", "謝謝", "再见", "감사", "고마워", "ขอบคุณ", "got it", "that's all", "thats all",
    "that is all", "makes sense", "no more questions", "never mind", "nevermind", "looks good", "sounds good",
    "au revoir", "auf wiedersehen",
)  # fmt: skip
FILLERS = _words("""
    a all am an and are for good have i is it it's just lot me my much no now ok okay oh so that that's thats the this
    to very well wow you your yes yeah yep again really everything help day evening night weekend one dir dich ihnen
    sehr viel vielen schön super top klar alles gut mit das ist un une beaucoup bien très c'est tout muchas muy todo
    muito molto mille tante большое вам тебе got sounds looks makes sense you're a love
""")
# What a turn begins with that continues another.
STARTS = _phrases("""
    and | but | also | now | then | so | or | plus | what about | how about | what if | yes | yep | yeah | yup | sure |
    ok | okay | no | nope | nah | go on | go ahead | continue | carry on | do it | do that | again | another | more |
    same | instead | actually | still | shorter | longer | make it | make them | can you also | could you also | try |
    looks good | nice | wait | hmm | hm | not | i did | i already | i tried | i meant | i mean | less | too | even |
    that | this one | these | those | it | its | why not | why so | why is that | why does | why would | which one |
    which of | are you sure | is that | is this | is it | does it | does that | can it | could it | would it | will it |
    und | aber | jetzt | nun | dann | oder | ja | nein | noch | auch | weiter | mach | nochmal | doch | statt | kürzer |
    länger | et | mais | maintenant | oui | non | ou | encore | aussi | y | pero | ahora | sí | otra | otro | también |
    mejor | e | ma | adesso | ora | sì | anche | ancora | mas | agora | sim | não | também | outra | outro | maar | nu |
    ook | nog | ale | teraz | tak | nie | а | и | но | теперь |
    да | нет | ещё | еще | также | тогда | और | अब | हाँ | लेकिन
""")
STARTS_UNSPACED = (
    "改", "那", "还", "再", "也", "继续", "为什么", "好", "可以", "是的", "不", "换", "それ", "では", "じゃ", "でも",
    "もう", "続", "はい", "いいえ", "なぜ", "同じ", "이제", "그리고", "그럼", "네", "계속", "왜", "다시",
)  # fmt: skip
# Words that stand for something said before, where they come early or the turn is short.
REFERENCES = _words("""
    it its it's them they their theirs he she his her him one ones same other another others former latter above
    previous instead again too also more both either neither these those second third
    better cheaper faster slower worse shorter longer simpler easier bigger smaller warmer formal nicer
    dies diese dieser dieses diesen damit davon dafür dazu daran darin ihn ihm nochmal beide besser ça cela ceci celui
    celle lui mieux eso esto ese esa mejor questo questa quello quella meglio isso isto esse essa это этот эта этого его
    её их тоже этом лучше deze dit इसे इसका यह वह उस
""")
EARLY_WORDS, SHORT_WORDS = 6, 12
NAMED = re.compile(
    r"\b(?:step|phase|part|option|point|number|section|chapter|question|item|version"
    r"|idea)\s+(?:\d|one|two|three|[a-d]\b)"
    r"|\b(?:the|your|my) (?:first|second|third|last|other|next|previous) \w+"
    r"|\b\d(?:st|nd|rd|th) (?:one|option|point|step)"
    r"|\byour (?:\w+ )?(?:answer|solution|code|proof|plan|list|draft|argument|version|response|reply|example"
    r"|explanation|suggestion|idea|story|poem|email|e-mail|letter|summary|query|function|test|tests|translation)\b"
    r"|\bthe (?:mistake|error|bug|issue|problem|difference|result|output)\b"
    r"|\b(?:earlier|previous|previously|above|aforementioned|mentioned|listed|similar|original|instead)\b"
    r"|\b(?:rewrite|rephrase|shorten|expand|extend|modify|alter|amend|revise|rearrange|reverse|simplify|elaborate"
    r"|summari[sz]e|translate|change|convert|fix|improve|refactor|adapt|update|repeat"
    r"|continue) (?:it|the|this|that|them|these|your)\b"
)
THAT = re.compile(
    r"\b(?:that|this)(?:['’]s)?(?=\s*(?:[?.!,;]|$))"
    r"|\b(?:than|like|of|about|all|why|do|did|after|with) (?:that|this)\b(?! the\b)"
)
# Words of so many letters that two turns share say that they have a topic in common; these do not.
TOPIC_LETTERS, LONGEST_BEFORE = 5, 2000
COMMON = _words("""
    about above after again against along already also always another around because before being below between both
    could different does doing during each either every everything example explain first found from going good great
    have having here into just know last later like little long looking made make makes making many maybe might more
    most much must need needs never next nothing number often only other others over part people please possible
    question quick really right same several shall should short show since small some something still such take tell
    text than thank thanks that their them then there these they thing things think this those three through time times
    today under until using very want wants ways week well were what when where which while will with within without
    word words would write written year years your yours whole give gives given briefly simple steps answer sentence
    sentences paragraph email message letter function python write years months month weeks hours minutes between
    compare difference describe summarise summarize translate translation english french german spanish
""")
# How a short turn begins that may well begin a topic.
STANDS_ALONE = re.compile(
    r"[¿¡\s]*(?:what(?:['’]?s| is| are| was| were| does| do| did| time| year)|who|how (?:many|much|do|does|did|old|far"
    r"|long|to|can|is|are|come|tall|big)|where(?:['’]?s| is| are| do| can)|when (?:is|was|did|do|does)"
    r"|which \w+ (?:is|are|was|has)"
    r"|(?:is|are|was|do|does|did|can|could|should|translate|convert|write|explain|prove|define|tell|give|name|list|spell"
    r"|calculate|compute|solve|summari[sz]e|compare|describe|design|implement|draft|create|show|find|let|let['’]s|suppose"
    r"|hello|hi|hey|good|unrelated|i|i['’]m|my|we|our|wie|was|wer|wo|wann|welche[rs]?|quel(?:le)?s?|qui|comment|combien"
    r"|qué|cuál|quién|cómo|cuánt[ao]s?|dónde|come|quanto|chi|dove|qual|quem|como|onde|hoe|wat|schreib(?:e)?|erklär(?:e)?"
    r"|übersetz(?:e)?|explica|escribe|explique|écris|traduis|scrivi|spiega|escreva|explique|напиши|объясни|что|как|кто"
    r"|сколько|где)\b)"
)
# A text that the turn brings along: what its words refer to.
BROUGHT = re.compile(r":\s*\S+\s+\S+|\n\s*\S|[\"“«`'‘]\s*\w+\W+\w+")


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


def in_context(turns: Iterator[str]) -> str:
    """Return the newest of a user's `turns` (newest first), after those earlier ones that it goes on with, a line each.
    At most two of these count, and the second only where the first is a follow-up itself. "" without turns."""
    newest = next(turns, "")
    read, later = [newest], newest
    if is_closing(newest):
        return newest
    for text in turns:
        if is_closing(text):
            continue
        if not continues(later, text):
            break
        read.append(_cut(text))
        if len(read) > EARLIER_TURNS:
            break
        later = text
    return "\n".join(reversed(read))


def is_long(turn: str) -> bool:
    """Return whether a turn has more words than a follow-up has, before any of it is left out."""
    return len(turn) > 12 * MOST_WORDS or len(turn.split(None, MOST_WORDS)) > MOST_WORDS


def continues(turn: str, before: str) -> bool:
    """Return whether a turn is short and refers to something that it does not name, or that the turn `before` does."""
    lower = turn.strip().lower()
    if len(lower) > 12 * MOST_WORDS:
        return False
    words = _WORD.findall(lower)
    unspaced = len(_UNSPACED.findall(lower))
    count = len(words) if not unspaced else max(len(words), unspaced // CHARS_PER_WORD)
    if count > MOST_WORDS:
        return False
    if count <= FEW_WORDS or _begins(words) or lower.startswith(STARTS_UNSPACED) or NAMED.search(lower):
        return True
    if BROUGHT.search(lower):
        return False
    early = words if count <= SHORT_WORDS else words[:EARLY_WORDS]
    if not REFERENCES.isdisjoint(early) or THAT.search(lower) is not None:
        return True
    if count <= SHORT_WORDS and not STANDS_ALONE.match(lower):
        return True
    about = {word for word in words if len(word) >= TOPIC_LETTERS} - COMMON
    return not about.isdisjoint(_WORD.findall(before[:LONGEST_BEFORE].lower()))


def is_closing(turn: str) -> bool:
    """Return whether a turn only thanks, praises or takes leave."""
    lower = turn.strip().lower()
    if len(lower) > 80:
        return False
    words = set(_WORD.findall(lower))
    closing = any(text in lower for text in CLOSING_TEXTS) or not words.isdisjoint(CLOSING)
    if not closing:
        return not words  # a mark or a smiley
    return "?" not in lower and (words <= CLOSING | FILLERS or bool(_UNSPACED.search(lower)))


def _begins(words: Sequence[str]) -> bool:
    return any(" ".join(words[:n]) in STARTS for n in (1, 2, 3))


def _cut(text: str) -> str:
    words = text.split(None, HEAD_WORDS + TAIL_WORDS)
    if len(words) <= HEAD_WORDS + TAIL_WORDS:
        return text
    head = " ".join(words[:HEAD_WORDS])
    return f"{head} {' '.join(text.rsplit(None, TAIL_WORDS)[1:])}"
