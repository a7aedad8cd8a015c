"""Words that say whether a request is about a text that stands next to it, in the languages of the sets of prompts.

A word may end in "*", any letters, or in "+", at least one; "_" stands for a space."""

import re


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.replace("_", " ") for word in text.split())


def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    any_of = "|".join(word.replace("*", r"\w*").replace("+", r"\w+") for word in words)
    return re.compile(rf"\b(?:{any_of})\b", re.IGNORECASE)


# A request that names a text, or what is done to texts.
OF_TEXT = _words(
    """text texte textes texto textu e-mail e-mails email emails mail letter article paragraph paragraphs passage
    essay note notes recipe message messages transcript thread story report document minutes review reviews speech
    abstract statement contract clause summary conversation chat log logs file excerpt announcement newsletter tldr
    tl;dr summarise summarize translate proofread correct rewrite rephrase paraphrase shorten extract classify
    brief nachricht artikel absatz aufsatz zusammenfass* fass fasse übersetz* korrigier* correo carta artículo
    párrafo resum+ traduc+ traduz* corrig+ lettre courriel résum+ tradui+ testo lettera riassum+ tekst* samenvat*
    metin özetle* çevir* stresc* stresć* streśc* streść* przetłumacz*"""
)
TEXT = _pattern(OF_TEXT)
# A request that points at what stands next to it.
POINTING = _words(
    """this these following below above attached pasted based_on folgende folgenden folgender folgendes folgendem
    diese diesen dieser dieses diesem siguiente esta estas este estes esto estos suivant suivante suivants suivantes
    ce cet cette seguente questo questa questi queste deze dit volgende"""
)
POINTS = _pattern(POINTING)
# A request for a text or a thing that is not there yet; what follows says what it is to be like.
OF_MAKING = _words(
    """write draft compose create design generate develop plan build implement make schreib* erstell* escrib* crea
    écri+ rédige* scrivi escrev* schrijf напиши*"""
)
MAKING = _pattern(OF_MAKING)
OF_MYSELF = _words(
    """i i'm i've my me we our ich mein* wir unser* je j' mon ma nous notre yo mi nuestr+ io mio eu meu minha ik mijn
    wij я мой моя мы у_меня"""
)
MYSELF = _pattern(OF_MYSELF)
TEXT_ELSEWHERE = re.compile(
    "текст|письм|стать|перев|кратко|резюм|перескаж|исправ|以下|下面|上面|这段|这篇|文章|邮件|翻译|总结|概括|摘要|次の|以下の|"
    "この|要約|翻訳|다음|이 글|요약|번역|النص|لخص|ترجم|التالي|निम्न|इस|सारांश|अनुवाद"
)
# What a request on one line does to the text after its colon.
DONE_TO_TEXT = _words(
    """tldr tl;dr summaris* summariz* summary translat+ proofread correct rewrite rephrase paraphrase shorten extract
    zusammenfass* fass fasse übersetz* korrigier* resum+ traduc+ traduz* corrig+ résum+ tradui+ riassum+ samenvat*
    özetle* çevir* stresc* stresć* streśc* streść* przetłumacz* перев+ перескаж* исправ*"""
)
ON_TEXT = _pattern(DONE_TO_TEXT)
# A request whose text is itself what is to be solved or done.
OF_TASKS = _words(
    """problem exercise puzzle riddle requirement requirements spec specs specification challenge theorem lemma proof
    prove solve scenario case instruction instructions prompt user_story user_stories task aufgabe rätsel problema
    exercice ejercicio opgave"""
)
TASK = _pattern(OF_TASKS)
# A request about code that is no harder for what the code does: it is counted, named, found or retold.
LOOK_UP = re.compile(
    r"\b(?:how many|how long|which (?:line|file|language|function|class|method|version|port)|what "
    r"(?:language|is the name|version|port|file|line)|is there|are there|does (?:it|this) (?:contain|use|have|import)|"
    r"(?:list|count|rename|(?:re)?format|indent) (?:the|all|every|each|this|how)|name the|names? of|"
    r"one (?:sentence|line|word)|tl;?dr|summari[sz]e|summary|wie viele|cuánt[ao]s|combien|quant[ei]|hoeveel|ile)\b",
    re.IGNORECASE,
)
# How a letter begins.
SALUTATION = re.compile(
    r"(?:(?:to|from|subject|betreff|von|an|de|para|asunto|objet|oggetto): ?\S[^\n]{0,200}|"
    r"(?:dear|hi|hello|hey|sehr geehrte\w*|"
    r"liebe[rs]?|hallo|estimad[oa]s?|hola|cher|chère|madame|bonjour|gentile|caro|beste|geachte|caro|prezad[oa]s?)\b"
    r"[^.?!:\n]{0,60}[,:!.]?[ \t]*)\n|dear [^.?!:\n]{1,60}, ",
    re.IGNORECASE,
)
# The first words of these.
SALUTES = _words(
    """to from subject betreff von an de para asunto objet oggetto dear hi hello hey sehr liebe lieber liebes hallo
    estimado estimada estimados estimadas hola cher chère madame bonjour gentile caro beste geachte prezado prezada
    prezados prezadas"""
)
# What texts to be worked on rarely say, and requests say of what is to be done.
DOING = frozenset(
    ("you", "your", "should", "must", "shall", "please", "ensure", "implement", "generate", "return", "output")
)


def words_by_bit() -> dict[str, int]:
    """Return the words as the kernels have them, by a bit for each kind, in the order of the bits of
    `classifier/native/material.cpp`. A word that speaks for a material is found wherever it may be: of one with other
    characters than letters, its first letters. What speaks against one counts only where it is certain."""
    kinds = (
        map(_first_letters, OF_TEXT),
        map(_first_letters, POINTING),
        filter(_is_certain, OF_MAKING),
        filter(_is_certain, OF_MYSELF),
        map(_first_letters, DONE_TO_TEXT),
        filter(_is_certain, OF_TASKS),
        SALUTES,
        DOING,
    )
    bits_by_word: dict[str, int] = {}
    for bit, words in enumerate(kinds):
        for word in words:
            bits_by_word[word] = bits_by_word.get(word, 0) | 1 << bit
    return bits_by_word


def _first_letters(word: str) -> str:
    return re.split(r"[^\w*+]", word)[0]


def _is_certain(word: str) -> bool:
    return word.isascii() and re.fullmatch(r"\w+[*+]?", word) is not None
