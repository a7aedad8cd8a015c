"""The form of a turn that the classifier reads: a task is the same whatever its white space, its typing errors and the
polite words around it. A tier gets the turn as it is.

Polite words are recognised by what they consist of: a sentence at an end of the turn whose every word is one of a few
hundred words of courtesy and grammar, one of them courteous; what leads in to a request ("could you please"); thanks
after it.

A word that is not frequent and is one edit away from a frequent one is misspelt and counts as that one: a letter is
another one, missing, too many, or exchanged with the next; what ends in one letter more, less or other is another form
of a word. Words of a text in another language would be taken for misspelt English ones: where two thirds of them are
unknown, none is changed. The frequent words are those of the shipped encoder, and words of courtesy.

Nor is a task another one by how its answer has to look. Sentences at the ends that only say that are recognised as
polite ones are, by what they consist of.
"""

import re
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from classifier.features.stray_text import Marks
from classifier.native import KERNELS

FREQUENT_WORDS = Path(__file__).with_name("frequent_words.txt")
# Shorter words are too near to each other, longer ones are no words.
LEAST, MOST = 5, 24
# Known words of which there must be one in three.
_ONE_OF = 3
# Words with digits, apostrophes or letters beyond ASCII are left as they are.
_RUN = re.compile("[0-9A-Za-z_'\x80-\U0010ffff]+")
_LETTERS = re.compile(f"[A-Za-z]{{{LEAST},{MOST}}}")
# Options of a question are counted by their lines; other lines are no part of the task.
_OPTION_LINE = re.compile(r"\s*\n\s*(\(?)([A-Ja-j])([.):] )")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COURTEOUS = _words(
    """please pls plz kindly thank thanks thx ty tia cheers appreciate appreciated grateful thankful obliged sorry
    apologies bother bothering trouble disturb disturbing excuse pardon hope mind wondering help assist hi hello
    hey greetings dear favor favour regards question ask great lovely wonderful amazing nice advance morning
    afternoon evening welcome bless owe star chance busy forward sincerely bitte danke gracias merci obrigado
    obrigada grazie hand hassle opinion helpful best asking"""
)
OF_COURTESY = _COURTEOUS | _words(
    """ok okay i we me my you your u it is d m ll ve re s t don didn hasn haven am are was were be been
    would could can may might will should must do does not no have has had having get got give to for the a an
    of on in at with about from by as and but or so very much really just quick brief little bit small big
    something anything this that these there here following below above if when while possible perhaps maybe
    kind enough one more time again good well fine day week weekend year assistant friend team everyone sir
    madam all lot million bunch many warm wishes effort need want like love also request issue problem task know
    how doing going today let any anyone hearing able take moment minute minutes second advice support guidance
    everything always find finds useful spare answer answering out ahead course patience attention new too sent
    late look looking into mean means meant reading read replying reply response ever mate pal buddy pretty
    yours truly basic simple silly dumb stupid long see soon back asks us ya some happy glad keep come count
    depend rely world everybody folks guys man work working hard job awesome super legend lifesaver expert
    experts using taking interrupt interrupting annoying annoy stuck lost confused struggling trying wanted
    needed tell sure who up thoughts side another yet being friends use clever brilliant wise part other
    questions few things thing stuff case"""
)
_WORD = re.compile(r"[^\W\d_]+")
_SENTENCE = re.compile(r"[^.!?:,]*[.!?:,]+[)\"'\s]*(?:(?<=,\s)(?:but|and|so)\s+)?")
_MOST_WORDS = 20
_ADVERBS = r"(?:(?:please|pls|plz|kindly|perhaps|possibly|maybe|just|quickly|briefly)\s+)*"
_HELP = r"(?:(?:help|assist)\s+me\s+(?:out\s+)?(?:to\s+|with\s+|by\s+)?)?"
# Words of requests, before which "can you" asks for nothing else.
_REQUESTS = (
    r"tell|explain|write|give|show|list|translate|summari[sz]e|describe|make|find|create|prove|solve|calculate|"
    r"compute|suggest|check|fix|name|draft|design|compare|provide|convert|derive|analy[sz]e|evaluate|plan|rewrite|"
    r"correct|turn|define|classify|extract|recommend|implement|build|add|spell|say|answer|state|discuss|develop|debug|"
    r"refactor|generate|outline|estimate|what|how|why|which|who|when|where"
)
_ASKED = rf"(?=(?:{_REQUESTS})\b)"
_LEAD = re.compile(
    r"(?:(?:ok|okay|so|well|and|hi|hello|hey|there|dear|all),?\s+)*(?:"
    r"(?:i['’]?m\s+|i\s+am\s+|so\s+|very\s+)*(?:sorry|apologies|excuse\s+me|pardon\s+me)\b[^.!?:,]{0,40},\s+(?:but\s+)?|"
    r"if\s+(?:you\s+(?:don['’]t|do\s+not)\s+mind|you\s+(?:can|could|would)|(?:it|that)(?:\s+is|['’]s)\s+(?:possible|ok|"
    r"okay|alright|all\s+right|not\s+too\s+much\s+trouble)|possible),\s+|"
    r"when\s+you\s+(?:have|get)\s+(?:a|the)\s+(?:time|moment|minute|second|chance),\s+|"
    r"(?:may|can|could)\s+i\s+(?:please\s+)?ask(?:\s+you)?,?\s+|by\s+the\s+way,\s+|"
    r"(?:i\s+|we\s+)?(?:was|am|were|are)?\s*(?:just\s+)?wondering\s+(?:if|whether)\s+you\s+(?:could|can|would|might)\s+"
    + _ADVERBS + _HELP +
    r"|(?:i|we)(?:\s+would|['’]d)\s+(?:really\s+|very\s+much\s+|greatly\s+)*(?:appreciate\s+it|be\s+(?:very\s+|so\s+|"
    r"really\s+|most\s+)?(?:grateful|thankful|glad|happy|obliged))\s+if\s+you\s+(?:could|can|would)\s+"
    + _ADVERBS + _HELP +
    r"|(?:i|we)(?:\s+would|['’]d)\s+(?:really\s+)?(?:like|love|want)\s+you\s+to\s+|(?:i|we)\s+need\s+(?:your\s+help|you)"
    r"\s+(?:to|with)\s+|would\s+(?:it\s+be\s+possible\s+(?:for\s+you\s+)?to|you\s+(?:be\s+so\s+kind\s+(?:as\s+)?to|be\s+"
    r"able\s+to|mind\s+telling\s+me))\s+|"
    r"(?:can|could|would|will)\s+(?:you|u)\s+(?:please|pls|plz|kindly)\s+" + _ADVERBS + _HELP +
    r"|(?:can|could|would|will)\s+(?:you|u)\s+" + _ADVERBS + r"(?:help|assist)\s+me\s+(?:out\s+)?(?:to\s+|with\s+)?|"
    r"(?:can|could|would|will)\s+(?:you|u)\s+" + _ADVERBS + _ASKED +
    r"|(?:please|pls|plz|kindly|hi|hello|hey|thanks|thank\s+you)(?:\s+there)?[,;:!\s]+(?:but\s+)?)",
    re.IGNORECASE,
)  # fmt: skip
# The words that such a lead begins with.
LEADS = _words(
    """ok okay so well and hi hello hey there dear all i very sorry apologies excuse pardon if when may can could by we
    was am were are just wondering would will please pls plz kindly thanks thank"""
)
# Words of thanks; what follows them may be courtesy.
_THANKING = re.compile(
    r"[\s,;.!?(]+(?:(?:many|much|so)\s+)?(?:please|pls|plz|thx|ty|tia|cheers|thanks|thank\s+you|appreciated|regards)\b",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(
    r"(?<=[.!?])\s*(?:(?:yours\s+)?(?:sincerely|truly|faithfully)|(?:(?:best|kind|warm|many)\s+)*(?:regards|wishes|best)|"
    r"cheers|love|yours|(?:many\s+|much\s+)?thanks|thank\s+you)(?:,|\s)\s*(?:-\s*)?\w+[.!]*\s*$",
    re.IGNORECASE,
)
# Only this much of an end is searched.
_WINDOW = 200
# What thanks and signatures have one of.
THANKS = Marks((
    " please", " pls", " plz", "thank", "thx", " ty", " tia", "cheers", "appreciated", "regards", "sincerely", " truly",
    "faithfully", "wishes", " best", " love", " yours",
))  # fmt: skip
# Polite sentences at an end of a turn; more are a letter.
_MOST_SENTENCES = 4


def plain_form(turn: str) -> str:
    """Return `turn` in plain form: one space between words, a line break only before an option of a question,
    misspelt words as those that they are near, and no polite words at its ends. Deterministic."""
    if KERNELS is not None and (plain := KERNELS.plain_words(_signs(), turn)) is not None:
        text, may_be_polite = plain
        return without_politeness(text) if may_be_polite else text
    if "\n" in turn and _OPTION_LINE.search(turn):
        lines = _OPTION_LINE.sub(_option, turn).split("\0")
        text = "\n".join(" ".join(line.split()) for line in lines)
    elif turn.isprintable() and "  " not in turn and turn == turn.strip():
        # As most turns are: of white space they have single spaces alone.
        text = turn
    else:
        text = " ".join(turn.split())
    return without_politeness(corrected(text))


@cache
def _signs() -> object:
    courtesy, leads = dict.fromkeys(OF_COURTESY, 0), dict.fromkeys(LEADS, 0)
    return KERNELS.make_signs((), THANKS.texts, {}, courtesy, leads, spelling())


def _option(match: re.Match[str]) -> str:
    return f"\0{match[1]}{match[2].upper()}{match[3]}"


def without_politeness(text: str) -> str:
    """Return `text`, which has single spaces, without polite words at its ends; the same string where there are none,
    or where nothing else is left."""
    rest = _without_thanks(_without_lead(text))
    return rest if rest is text or len(rest.split(None, 2)) > 2 else text


def _without_lead(text: str) -> str:
    at = 0
    for _ in range(_MOST_SENTENCES):
        if not _begins_politely(text, at):
            break
        sentence = _SENTENCE.match(text, at, at + _WINDOW)
        if sentence is not None and sentence.end() < len(text) and _is_polite(sentence[0]):
            at = sentence.end()
            continue
        lead = _LEAD.match(text, at, at + _WINDOW)
        if lead is None:
            break
        at = lead.end()
    return text[at:]


def _without_thanks(text: str) -> str:
    for _ in range(_MOST_SENTENCES):
        window = max(0, len(text) - _WINDOW)
        if THANKS.within(text[window:].lower()):
            end = _thanks_from(text, window)
            if end is not None:
                text = text[:end]
                continue
        before = len(text) - 1
        start = 1 + max(
            text.rfind(".", window, before), text.rfind("!", window, before), text.rfind("?", window, before)
        )
        if start <= window or not _begins_politely(text, start) or not _is_polite(text[start:]):
            break
        text = text[:start]
    return text


def _thanks_from(text: str, window: int) -> int | None:
    """Return where thanks or a signature begin that end `text`, None without any; a mark before them is kept."""
    signature = _SIGNATURE.search(text, window)
    if signature is not None:
        return signature.start()
    for thanks in _THANKING.finditer(text, window):
        if OF_COURTESY.issuperset(_WORD.findall(text[thanks.end() :].lower())):
            return thanks.start() + (text[thanks.start()] in ".!?")
    return None


def _begins_politely(text: str, at: int) -> bool:
    first = _WORD.search(text, at, at + _WINDOW)
    return first is not None and first[0].lower() in OF_COURTESY


def _is_polite(sentence: str) -> bool:
    words = _WORD.findall(sentence.lower())
    return len(words) <= _MOST_WORDS and not _COURTEOUS.isdisjoint(words) and OF_COURTESY.issuperset(words)


def corrected(text: str) -> str:
    """Return `text` with its misspelt words replaced, in lower case; the same string without any. Deterministic."""
    if KERNELS is not None:
        corrections = KERNELS.corrections(spelling(), text)
    else:
        corrections = list(_corrections(text))
    if not corrections:
        return text
    parts: list[str] = []
    at = 0
    for start, end, word in corrections:
        parts += (text[at:start], word)
        at = end
    return "".join((*parts, text[at:]))


@cache
def frequent_words() -> dict[str, int]:
    """Return the frequent words and their ranks, the most frequent first."""
    return {word: rank for rank, word in enumerate(FREQUENT_WORDS.read_text("ascii").split())}


@cache
def spelling() -> object:
    """Return the frequent words as the kernels have them."""
    return KERNELS.make_spelling(list(frequent_words()))


def _corrections(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, the word meant) of each misspelt word."""
    frequent = frequent_words()
    words = [run for run in _RUN.finditer(text) if _LETTERS.fullmatch(run[0])]
    unknown = [run for run in words if run[0].lower() not in frequent]
    if len(words) > _ONE_OF * (len(words) - len(unknown)):
        return
    for run in unknown:
        word = run[0].lower()
        near = (candidate for candidate in _edits(word) if candidate in frequent and not _other_form(candidate, word))
        meant = min(near, key=frequent.__getitem__, default=None)
        if meant is not None:
            yield run.start(), run.end(), meant


def _other_form(candidate: str, word: str) -> bool:
    shorter = min(len(candidate), len(word)) - (len(candidate) == len(word))
    return candidate[:shorter] == word[:shorter]


def _edits(word: str) -> Iterator[str]:
    """Yield what is one edit away from `word`."""
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        if len(after) > 1:
            yield f"{before}{after[1]}{after[0]}{after[2:]}"
        if after:
            yield before + after[1:]
        for letter in string.ascii_lowercase:
            if after:
                yield f"{before}{letter}{after[1:]}"
            yield f"{before}{letter}{after}"


# What begins a sentence that may only say how the answer has to look; in English, German, French, Spanish, Italian,
# Portuguese and Dutch, as all of these lists are.
_FORM_BEGINS = _words(
    """answer respond reply use format keep limit return output give be no do don't please max maximum in as with only
    present structure provide write put avoid your the just finish end start begin restrict without nothing not at
    about exactly skip wrap bold capitalise capitalize number plain one divide separate cite round omit style
    antworte antworten benutze verwende nutze schreibe gib halte höchstens maximal nur kein keine keinen ohne sei
    bitte fasse formatiere réponds répondez utilise utilisez présente donne seulement uniquement sans sois fais
    limite responde usa utiliza da devuelve solo sólo máximo sin sé pon limita presenta rispondi massimo senza sii
    metti responda use apenas sem seja só coloque antwoord gebruik alleen geen zonder wees"""
)
# Of the look of an answer: such a sentence has one of these words.
_LOOKS = _words(
    """table tables column columns row rows bullet bullets bulleted numbered list json yaml xml csv html markdown latex
    plain heading headings header section sections paragraph paragraphs sentence sentences word words line lines
    characters concise concisely brief briefly succinct succinctly short format formatted formatting output tone
    formal informal friendly neutral emoji emojis bold italics prose preamble introduction conclusion disclaimer
    disclaimers explanation explanations letter apologise apologize length answer answers reply response dashes
    jargon spelling capitals punctuation english german french spanish italian caveats warnings fences code
    stichpunkte stichpunkten stichworten satz sätze sätzen wörter wörtern worte wort tabelle spalten liste antwort
    erklärung einleitung kurz knapp absatz puces phrase phrases mots mot tableau colonnes réponse explication bref
    paragraphe viñetas frase frases palabras palabra tabla columnas lista respuesta explicación introducción breve
    párrafo punti parole tabella colonne elenco risposta spiegazione spiegazioni introduzione conciso palavras
    tabela colunas resposta explicação introdução tópicos zin zinnen woorden tabel kolommen lijst antwoord uitleg
    inleiding bondig"""
)
# What else may stand in such a sentence.
_OF_FORM = (
    _FORM_BEGINS
    | _LOOKS
    | _words(
        """a an the in as of with without and or no not only just at most least than more less fewer under over up to
        for your it its is are be do should must may can each every any all about around between from by on into per
        then if you i me my make include used using follow following below above minimum nothing else also so
        structured presented separated comma commas strictly always never new own clear clearly item items begins
        ends name called before after repeat question questions restate valid well again state add mention inside
        first second third last final two three four five six seven eight nine ten twelve fifteen twenty thirty
        fifty hundred single double blank text raw object key keys value values field fields array point points
        long longer language simple result results itself content title titles term terms important main numbers
        letters case lower upper uppercase lowercase quotes quotation marks quote block blocks snippet comments
        comment filler fluff apology apologies reasoning detail details ai model root element named dates units
        metric sources alphabetically spaces american british person voice active audience general einem einer
        eine ein der die das den mit von zwei drei vier fünf zehn und oder nicht mehr als auf unter über deine
        deiner sollen soll kurze kurzen deutsch sprache en un une le la les des de du au aux ta ton tes dans pas
        plus que moins cent deux trois quatre cinq dix ne et ou est una el los las del con más menos cien dos tres
        cuatro cinco diez y o es tu por favor uno il di non più che meno al cento due tre quattro cinque dieci e è
        per puntato em uma um os com não mais dez sua het van niet meer dan honderd twee drie vier vijf tien"""
    )
)
# These ask for a text, unless what they ask for is the answer.
_GIVES = _words("write give provide put present return output finish end start begin gib donne da pon")
_ANSWER = re.compile(
    r"\W*\w+ (?:only |just |me )?(?:(?:(?:your|the|each|la) )?(?:(?:final|whole|entire) )?(?:answers?|response|"
    r"reply|output|results?|antwort|réponse|respuesta)\b|"
    r"(?:it|in|as|with|no|only|at|json|yaml|csv|xml|a json|valid)\b)",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\"[^\"\n]{0,24}\"|`[^`\n]{0,24}`|<[^<>\n]{0,16}>")
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][a-z]+)?|\d+")
_FIRST_SENTENCE = re.compile(r"[^.!?:\n]{1,200}[.!\n]+\s*")
# Where a sentence begins though the one before it was not ended.
_UNENDED = re.compile(
    r"\s(?=[A-Z])(?=(?:Answer|Respond|Reply|Use|Format|Keep|Limit|Return|Output|Give|Be|No|Do|Please|Write|Provide|Present|Avoid|"
    r"Only|Antworte|Réponds|Responde|Rispondi|Responda|Antwoord)\b)"
)
_ASKS = re.compile(
    rf"\?|？|(?:^|[.!?:;,\n]\s*|\b(?:please|you|to|and|then)\s+)(?:{_REQUESTS})\s+\w|\b(?:what|how|why|need|want|help)\b",
    re.IGNORECASE,
)
_MOST_FORMS, _MOST_FORM_WORDS = 6, 20


def without_answer_form(text: str) -> str:
    """Return `text` without the sentences at its ends that only say how the answer has to look ("Answer in a table with
    two columns."); the same string where there are none, or where what is left asks for nothing. Deterministic."""
    rest = text
    for _ in range(_MOST_FORMS):
        cut = _last_form(rest)
        if cut is None:
            break
        rest = rest[:cut].rstrip()
    for _ in range(_MOST_FORMS):
        first = _FIRST_SENTENCE.match(rest) if _begins_as_form(rest) else None
        if first is None or first.end() >= len(rest) or not _says_form(first[0]):
            break
        rest = rest[first.end() :]
    if rest is text:
        return text
    return rest if len(rest.split(None, 2)) > 2 and _ASKS.search(rest) else text


def _last_form(text: str) -> int | None:
    """Return where the last sentence of `text` begins, None unless it only says how the answer has to look."""
    end = len(text.rstrip())
    window = max(0, end - _WINDOW)
    start = 1 + max(text.rfind(mark, window, end - 1) for mark in ".!?\n")
    if start and _says_form(text[start:end]):
        return start
    begins = [match.end() for match in _UNENDED.finditer(text, max(start, window), end)]
    return next((begin for begin in reversed(begins) if _says_form(text[begin:end])), None)


def _says_form(sentence: str) -> bool:
    if not _begins_as_form(sentence):
        return False
    words = [word.lower().replace("’", "'") for word in _TOKEN.findall(_NAMED.sub(" ", sentence))]
    if len(words) > _MOST_FORM_WORDS or _LOOKS.isdisjoint(words):
        return False
    if words[0] in _GIVES and not _ANSWER.match(sentence):
        return False
    return all(word in _OF_FORM or word.isdigit() for word in words)


def _begins_as_form(text: str) -> bool:
    first = _TOKEN.search(text)
    return first is not None and first[0].lower().replace("’", "'") in _FORM_BEGINS
