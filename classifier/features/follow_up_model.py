"""P(a turn of a user needs the earlier ones): a logistic regression over signs of the turn, of the end of the answer
before it, and of what the two and the user's turn before share.

Signs are texts, hashed into one table of weights: no vocabulary, any language. Case, and punctuation at the end of
a turn, are no signs. Trained by `classifier.training.fitting.follow_up`.
"""

import math
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from classifier.errors import ArtefactError

Float = npt.NDArray[np.float32]

SHIPPED = Path(__file__).with_name("follow_up.safetensors")
BITS = 16
ROWS = 1 << BITS
# Words of a turn that give signs, from its beginning; two characters of a script without spaces count as a word.
MOST_WORDS = 40
# Characters that are looked at: of a turn, of the turn before, and of the end of an answer.
LONGEST_TURN, LONGEST_BEFORE, LONGEST_END = 480, 1000, 400


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that stand for something said before.
REFERENCES = _words("""
    it its it's them they their theirs he she his her him one ones same other another others former latter above
    previous instead again too also more both either neither these those second third that this there
    better cheaper faster slower worse shorter longer simpler easier bigger smaller warmer formal nicer
    dies diese dieser dieses diesen damit davon dafür dazu daran darin ihn ihm nochmal beide besser ça cela ceci celui
    celle lui mieux eso esto ese esa mejor questo questa quello quella meglio isso isto esse essa это этот эта этого его
    её их тоже этом лучше deze dit dat इसे इसका यह वह उस das
""")
# Words of so many letters that two turns share say that they have a topic in common; these do not.
TOPIC_LETTERS = 5
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
    compare difference describe summarise summarize translate translation english french german spanish prove proof
    derive implement build design capital
""")
# Words around the object of a request, which name none themselves.
EMPTY = _words("""
    a an the of to in on for with and or by at from into as is are was were be do does did can could would will should
    i you me my we us your please some any what how why who when where which der die das ein eine und für mit von zu im
    in auf le la les un une des de du et en el los las una y del para con o da e il lo gli di per het een van voor
""")
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
# A text that the turn brings along: what its words refer to.
BROUGHT = re.compile(r":\s*\S+\s+\S+|\n\s*\S|[\"“«`'‘]\s*\w+\W+\w+")
_SUM = re.compile(r"\d\s*[-+*/^×÷=]")
# How the end of an answer asks for leave to do what it names: each after a space, but for scripts without these.
PROPOSALS = (
    " shall i", " should i ", " may i ", " can i ", " could i ", " want me to", " like me to", " need me to",
    " would you like", " would you prefer", " do you want", " i can ", " i could ", " i propose", " i suggest",
    " i would ", " i'd ", " soll ich", " kann ich", " könnte ich", " möchtest du", " möchten sie", " voulez-vous",
    " veux-tu", " souhaites-tu", " veux que je", " je peux", " quieres que", "¿quieres", " desea que", " puedo ",
    " quer que", " posso ", " vuoi che", " zal ik", " wil je", " хотите", " хочешь", " могу", " czy mam",
    " ister misin", "هل تريد", "क्या मैं", "需要我", "要我", "要不要", "可以帮你", "ましょうか", "しますか",
    "할까요", "드릴까요",
)  # fmt: skip
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_IN_NUMBER = re.compile(r"(?<=\d)[.,](?=\d)")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")
_ENDS = re.compile(r"[.!?。！？؟।\n]+[\s\"')\]*_]*")


def last_sentence(text: str) -> str:
    """Return the last sentence of a text, of its last `LONGEST_END` characters."""
    end = text[-LONGEST_END:].rstrip()
    pieces = [piece for piece in _ENDS.split(end) if piece.strip()]
    return pieces[-1] if pieces else ""


def asks(text: str) -> bool:
    """Return whether an answer ends with a question."""
    return text.rstrip(" \t\n*_\"')").endswith(("?", "？", "؟"))


def proposes(text: str) -> bool:
    """Return whether an answer ends by proposing something or by asking which of several it is to do."""
    end = f" {' '.join(text[-LONGEST_END:].lower().split())}"
    return any(proposal in end for proposal in PROPOSALS)


def signs(turn: str, before: str, answer: str, *, closes: bool = False) -> list[str]:
    """Return the signs of a `turn` of the user after the turn `before` and its `answer`; `closes`: it only thanks,
    praises or takes leave."""
    lower = turn.strip().lower()[:LONGEST_TURN]
    words = _WORD.findall(_IN_NUMBER.sub("", lower))
    pairs = _pairs(lower) if _UNSPACED.search(lower) else []
    count = len(words) if not pairs else max(len(words), (len(pairs) + 1) // 2)
    words = words[:MOST_WORDS]
    if len(words) > 1:
        # Which number it is says nothing, but alone it may be a choice.
        words = ["0" if word.isdigit() else word for word in words]
    size = str(count) if count <= 6 else "7" if count <= 9 else "10" if count <= 14 else "15" if count <= 24 else "25"
    turn_signs = [f"n{size}", f"nl{'le4' if count <= 4 else 'le9' if count <= 9 else 'more'}"]
    turn_signs += _of_words(words)
    turn_signs += _of_pairs(pairs)
    turn_signs += _of_rules(lower, words, size)
    turn_signs += _of_answer(words, answer, size, closes)
    turn_signs += _shared(words, pairs, before, answer)
    return turn_signs


def _of_words(words: Sequence[str]) -> Iterator[str]:
    if not words:
        yield "none"
        return
    first = words[0]
    yield f"1 {first}"
    yield f"l {words[-1]}"
    yield f"s {first[-2:]}"
    yield f"s {first[-3:]}"
    if len(words) == 1:
        yield f"w {first}"
    else:
        yield f"2 {first} {words[1]}"
        yield f"e {words[-2]} {words[-1]}"
    if len(words) > 2:
        yield f"3 {first} {words[1]} {words[2]}"
    for word in words[:12]:
        yield f"b {word}"
    for left, right in pairwise(words[:12]):
        yield f"p {left} {right}"


def _pairs(lower: str) -> list[str]:
    text = "".join(_WORD.findall(lower))[: 2 * MOST_WORDS]
    return [text[at : at + 2] for at in range(max(len(text) - 1, 1))]


def _of_pairs(pairs: Sequence[str]) -> Iterator[str]:
    if not pairs:
        return
    yield f"c1 {pairs[0]}"
    yield f"c1 {pairs[0][0]}"
    yield f"cl {pairs[-1]}"
    for pair in pairs[:16]:
        yield f"c {pair}"
        yield f"h {pair[0]}"


def _of_rules(lower: str, words: Sequence[str], size: str) -> Iterator[str]:
    early = words if len(words) <= 12 else words[:6]
    refers = not REFERENCES.isdisjoint(early)
    if refers:
        yield "refers"
    if THAT.search(lower) is not None:
        yield "that"
    if NAMED.search(lower) is not None:
        yield "named"
    if BROUGHT.search(lower) is not None:
        yield "brought"
    if _SUM.search(lower) is not None:
        yield "sum"
    objects = sum(word not in EMPTY and word not in REFERENCES and len(word) > 3 for word in words[1:])
    yield f"o{min(objects, 4)}"
    yield f"o{min(objects, 4)} n{size} {'r' if refers else ''}"
    longest = max(map(len, words), default=0)
    yield f"long{min(longest, 12) // 3}"


def _of_answer(words: Sequence[str], answer: str, size: str, closes: bool) -> Iterator[str]:
    end = answer[-LONGEST_END:]
    state = ("a" if asks(end) else "") + ("p" if proposes(end) else "")
    short = "1" if len(words) <= 1 else "2" if len(words) <= 3 else "4" if len(words) <= 8 else "9"
    yield f"q{state}"
    yield f"q{state} n{short}"
    if closes:
        yield "closes"
        yield f"closes {state}"
    if words:
        yield f"q{state} {words[0]}"
    if state:
        for word in _WORD.findall(last_sentence(end).lower())[:3]:
            yield f"qw {word}"


def _shared(words: Sequence[str], pairs: Sequence[str], before: str, answer: str) -> Iterator[str]:
    said = before[:LONGEST_BEFORE].lower()
    size = "s" if len(words) <= 4 else "m" if len(words) <= 12 else "l"
    if pairs:
        yield f"t{int(4 * sum(pair in said for pair in pairs) / len(pairs))}"
        return
    if words:
        # A request like the one before, about something else.
        said_words = set(said.split())
        yield f"x{size}{int(4 * sum(word in said_words for word in words) / len(words))}"
        yield f"xb{words[0] in said_words}"
    about = {word[:TOPIC_LETTERS] for word in words if len(word) >= TOPIC_LETTERS} - COMMON_STEMS
    if not about:
        yield f"t no {size}"
        return
    yield f"t{size}{_overlap(about, said)}"
    yield f"ta{size}{_overlap(about, answer[-LONGEST_BEFORE:].lower())}"


COMMON_STEMS = {word[:TOPIC_LETTERS] for word in COMMON}


def _overlap(about: Collection[str], text: str) -> str:
    common = sum(stem in text for stem in about)
    return "0" if not common else "all" if common == len(about) else "1" if common == 1 else "some"


def rows_of(turn_signs: Sequence[str]) -> list[int]:
    """Return the rows of the table that signs are hashed to, each once."""
    return list({zlib.crc32(sign.encode(errors="replace")) & (ROWS - 1) for sign in turn_signs})


class FollowUpModel:
    """Immutable and thread-safe. `weights` float32 [ROWS]; `bias`: the logit without signs."""

    def __init__(self, weights: Float, bias: float) -> None:
        """Raises ValueError for another number of weights."""
        if weights.shape != (ROWS,):
            raise ValueError(f"follow-ups: weights of {weights.shape}, not of {(ROWS,)}")
        self.weights, self.bias = weights, bias
        self._weights: list[float] = weights.tolist()

    def p(self, turn: str, before: str, answer: str, *, closes: bool = False) -> float:
        """Return P(`turn` needs the earlier ones), after the user's turn `before` and its `answer`."""
        return self.p_of(rows_of(signs(turn, before, answer, closes=closes)))

    def p_of(self, rows: Sequence[int]) -> float:
        """Return P for the rows of a turn's signs."""
        weights = self._weights
        logit = self.bias + math.fsum(weights[row] for row in rows)
        return 1.0 / (1.0 + math.exp(-min(max(logit, -30.0), 30.0)))

    def save(self, path: Path) -> None:
        """Write the model as one safetensors file, in half precision."""
        save_file({"weights": self.weights.astype(np.float16), "bias": np.array([self.bias], np.float32)}, path)


def load_follow_up(path: Path = SHIPPED) -> FollowUpModel:
    """Load the model in `path`. Raises `ArtefactError` naming what is wrong with the file."""
    try:
        tensors = load_file(path)
        return FollowUpModel(tensors["weights"].astype(np.float32), float(tensors["bias"][0]))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ArtefactError(f"{path}: {error}. Install the package again, or train the file.") from error


@cache
def shipped_follow_up() -> FollowUpModel:
    """Return the model that ships with this package. Raises `ArtefactError`."""
    return load_follow_up()
