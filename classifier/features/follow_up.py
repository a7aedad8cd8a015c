"""Whether a turn of a user goes on with earlier ones ("now in Rust", "yes"), and what is read then.

P(it needs them) is learned (`classifier.features.follow_up_model`). It is read alone, after up to two earlier turns,
or both ways where P is near neither 0 nor 1. A turn that accepts or chooses what an answer ended with is read as that.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from classifier.decision import FollowUp
from classifier.features.follow_up_model import asks, proposes, shipped_follow_up


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What closes a topic, in the languages of the sets of prompts; with `FILLERS` it is the whole turn.
CLOSING = _words("""
    thanks thank thx ty cheers bye goodbye goodnight cya perfect great awesome cool nice lovely excellent brilliant
    wonderful amazing works worked solved fixed merged lifesaver lol haha hahaha
    danke dank tschüss passt prima perfekt merci parfait gracias perfecto obrigado obrigada grazie perfetto bedankt
    dankjewel tchau adiós adios arrivederci tack dzięki
    dziękuję спасибо отлично пока शुक्रिया धन्यवाद شكرا teşekkürler teşekkür
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
# What accepts a proposal: a turn of these words alone. Texts in scripts without spaces are whole turns.
ACCEPTS = (FILLERS - {"no", "so", "and", "have", "help", "day", "evening", "night", "weekend"}) | _words("""
    yup sure okey okie absolutely definitely certainly course please do go ahead on continue proceed start right fine
    alright approved agreed deal lgtm great perfect nice cool excellent correct indeed make write want would like
    ja jawohl klar gern gerne bitte mach los genau natürlich einverstanden weiter oui ouais si d'accord accord vas-y vas
    y volontiers sûr fais-le fais le la plaît s'il te continue avec plaisir sí claro vale dale hazlo adelante por favor
    supuesto sim pode ser quero faça isso sì certo va bene fallo volentieri graag doe maar prima oké
    да давай конечно хорошо пожалуйста ок так tak proszę dobrze jasne evet lütfen tamam olur نعم حسنا تمام من فضلك أجل
    हाँ हां जी ठीक है करो कृपया
""")
ACCEPTING_TEXTS = _words("""
    はい うん ええ お願い お願いします はいお願いします はいお願い ぜひ ぜひお願いします いいよ いいです 了解
    是 是的 好 好的 可以 行 要 对 嗯 需要 写吧 好啊 当然 请 请继续 继续 没问题
    네 예 응 그래 좋아 좋아요 부탁해 부탁해요 부탁합니다 네부탁해요 ครับ ค่ะ ได้
""")
# What names one of several proposals, by its number; next to these words and those above.
ORDINALS = {
    word: number
    for number, words in enumerate(
        (
            "1 a one first erste ersten erstes premier première primero primera primo primeiro eerste первый 第一",
            "2 b two second zweite zweiten deuxième second seconde segundo segunda secondo seconda tweede второй 第二",
            "3 c three third dritte dritten troisième tercero tercera terzo terza terceiro derde третий 第三",
            "4 d four fourth vierte vierten quatrième cuarto cuarta quarto quarta vierde четвёртый 第四",
            "5 e five fifth fünfte fünften cinquième quinto quinta vijfde пятый 第五",
        ),
        start=1,
    )
    for word in words.split()
}
AROUND_CHOICES = _words("""
    option options choice variant variante plan number nummer idea proposal version opción opcao opção opzione optie
    вариант i'll take i'd prefer choose pick with let's i le la el il de die das den der o
""")

# Earlier turns of the user that count.
EARLIER_TURNS = 2
# Words of each earlier turn that are read, from its beginning and its end; of an answer, those at its end.
HEAD_WORDS, TAIL_WORDS, ANSWER_WORDS = 96, 32, 96
# A turn of more characters or words stands for itself.
LONGEST_FOLLOW_UP, MOST_WORDS = 800, 80
# Where P is less than this, or more than 1 less this, one reading decides.
SURE = 0.05

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f\uac00-\ud7a3]")
_CHOSEN_UNSPACED = re.compile(r"(?:我?选|方案|用)?(第[一二三四五])(?:个|种|项|方案)?[。！!.]?$")


class TurnText(NamedTuple):
    """What a turn says, or several that are read as one."""

    whole: str
    request: str
    """Without its material (`classifier.features.material`) and instructions on the form of the answer; the same text
    where it has none."""

    @property
    def has_material(self) -> bool:
        return self.request != self.whole


class UserTurn(NamedTuple):
    """A turn of the user as it came."""

    text: str
    answer: str
    """The end of the answer before it, "" without one."""
    number: int
    """Among the user's turns, from 1."""


class ReadTurn(NamedTuple):
    """A turn of the user as it is read; fields as in `UserTurn`."""

    text: TurnText
    answer: str
    number: int


class Readings(NamedTuple):
    """How the newest turn is read: `alone`, `joined` to what it goes on with, or both. None where it is not read so."""

    alone: TurnText | None
    joined: TurnText | None = None
    follow_up: FollowUp | None = None


def in_context(turns: Iterator[ReadTurn]) -> Readings:
    """Return how the newest of a user's turns is read; `turns` is newest first.

    Joined, at most two earlier turns count, and the second only where the first is a follow-up itself. Turns that only
    close are passed over. The newest is not a long one. Their requests decide, whatever material they bring.
    """
    newest = next(turns, None)
    if newest is None:
        return Readings(TurnText("", ""))
    later, before = newest, _next_open(turns)
    if before is None:
        return Readings(newest.text)
    p = _p(newest, before)
    if p < SURE:
        return Readings(newest.text, None, FollowUp(p=p))
    accepted = accepted_part(newest.text.request, newest.answer)
    texts, numbers = [newest.text if accepted is None else TurnText(accepted, accepted)], []
    while before is not None:
        texts.append(TurnText(_cut(before.text.whole), _cut(before.text.request)))
        numbers.append(before.number)
        later, before = before, _next_open(turns) if len(numbers) < EARLIER_TURNS else None
        if before is not None and (is_long(later.text.request) or _p(later, before) < 0.5):
            break
    follow_up = FollowUp(p=p, turns=tuple(reversed(numbers)), answer=accepted is not None)
    # The words of a turn that accepts say nothing by themselves.
    alone = None if p > 1 - SURE or (accepted is not None and p >= 0.5) else newest.text
    return Readings(alone, _joined(texts[::-1]), follow_up)


def _joined(texts: Sequence[TurnText]) -> TurnText:
    return TurnText("\n".join(text.whole for text in texts), "\n".join(text.request for text in texts))


def is_long(turn: str) -> bool:
    """Return whether a turn has more words than a follow-up has, before any of it is left out."""
    return len(turn) > LONGEST_FOLLOW_UP or len(turn.split(None, MOST_WORDS)) > MOST_WORDS


def _p(turn: ReadTurn, before: ReadTurn) -> float:
    asked = turn.text.request
    p = shipped_follow_up().p(asked, before.text.request, turn.answer, closes=is_closing(asked))
    return int(p * 1e4 + 0.5) / 1e4


def _next_open(turns: Iterator[ReadTurn]) -> ReadTurn | None:
    return next((turn for turn in turns if not is_closing(turn.text.request)), None)


def accepted_part(turn: str, answer: str) -> str | None:
    """Return what `turn` accepts or chooses of what the `answer` before it ends by proposing: the item that it names,
    or the answer's end. None where it does neither."""
    if len(turn) > 80 or not (asks(answer) or proposes(answer)):
        return None
    lower = turn.strip().lower()
    words = _WORD.findall(lower)
    if _UNSPACED.search(lower):
        chosen = _CHOSEN_UNSPACED.match(lower)
        if chosen is not None:
            return _item(ORDINALS[chosen[1]], answer) or _end(answer)
        return _end(answer) if "".join(words) in ACCEPTING_TEXTS else None
    named = [word for word in words if word not in ACCEPTS and word not in AROUND_CHOICES]
    if not named and words:
        last = words[-1]
        # "plan a": a letter that is also an article.
        is_letter = last in ORDINALS and len(words) > 1 and not AROUND_CHOICES.isdisjoint(words)
        return (_item(ORDINALS[last], answer) if is_letter else None) or _end(answer)
    if len(named) == 1 and named[0] in ORDINALS:
        return _item(ORDINALS[named[0]], answer) or _end(answer)
    return None


def _item(number: int, answer: str) -> str | None:
    """Return the item of a list in the `answer` that has this number or its letter, None without one."""
    for label, following in ((str(number), str(number + 1)), (_LETTERS[number - 1], _LETTERS[number])):
        begin = re.search(rf"(?:^|[\s(\[*#]){label}\s?[.):：、]\**\s*(?=\S)", answer, re.IGNORECASE)
        if begin is not None:
            rest = answer[begin.end() :]
            end = re.search(rf"[\s(\[*#]{following}\s?[.):：、]|\n\s*\n", rest, re.IGNORECASE)
            return " ".join(rest[: end.start() if end else None].split()[:ANSWER_WORDS])
    return None


_LETTERS = "abcdef"


def _end(answer: str) -> str:
    return " ".join(answer.split()[-ANSWER_WORDS:])


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


def _cut(text: str) -> str:
    words = text.split(None, HEAD_WORDS + TAIL_WORDS)
    if len(words) <= HEAD_WORDS + TAIL_WORDS:
        return text
    head = " ".join(words[:HEAD_WORDS])
    return f"{head} {' '.join(text.rsplit(None, TAIL_WORDS)[1:])}"
