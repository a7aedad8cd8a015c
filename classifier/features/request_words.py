"""Words that say whether a request is about a text that stands next to it, in the languages of the sets of prompts."""

import re

# A request that names a text, or what is done to texts.
TEXT = re.compile(
    r"\b(?:text|e-?mails?|mail|letter|article|paragraphs?|passage|"
    r"essay|notes?|recipe|messages?|transcript|thread|story|report|document|minutes|review|reviews|speech|abstract|"
    r"statement|contract|clause|summary|conversation|chat|logs?|file|excerpt|announcement|newsletter|tl;?dr|"
    r"summari[sz]e|summary|translate|proofread|correct|rewrite|rephrase|paraphrase|shorten|extract|classify|"
    r"text(?:es|o|e|u)?|brief|nachricht|artikel|absatz|aufsatz|zusammenfass\w*|fasse?|"
    r"übersetz\w*|korrigier\w*|correo|carta|artículo|párrafo|resum\w+|traduc\w+|traduz\w*|corrig\w+|"
    r"lettre|courriel|résum\w+|tradui\w+|testo|lettera|riassum\w+|"
    r"tekst\w*|samenvat\w*|metin|özetle\w*|çevir\w*|stre[sś][cć]\w*|przetłumacz\w*)\b",
    re.IGNORECASE,
)
# A request that points at what stands next to it.
POINTS = re.compile(
    r"\b(?:this|these|following|below|above|attached|pasted|based on|folgende[nrsm]?|diese[nrsm]?|siguiente|est[eao]s?|"
    r"suivante?s?|c(?:e|et|ette)|seguente|quest[oaie]|deze|dit|volgende)\b",
    re.IGNORECASE,
)
# A request for a text or a thing that is not there yet; what follows says what it is to be like.
MAKING = re.compile(
    r"\b(?:write|draft|compose|create|design|generate|develop|plan|build|implement|make|schreib\w*|erstell\w*|escrib\w*|"
    r"crea|écri\w+|rédige\w*|scrivi|escrev\w*|schrijf|напиши\w*)\b",
    re.IGNORECASE,
)
MYSELF = re.compile(
    r"\b(?:i|i'm|i've|my|me|we|our|ich|mein\w*|wir|unser\w*|je|j'|mon|ma|nous|notre|yo|mi|nuestr\w+|io|mio|eu|meu|"
    r"minha|ik|mijn|wij|я|мой|моя|мы|у меня)\b",
    re.IGNORECASE,
)
TEXT_ELSEWHERE = re.compile(
    "текст|письм|стать|перев|кратко|резюм|перескаж|исправ|以下|下面|上面|这段|这篇|文章|邮件|翻译|总结|概括|摘要|次の|以下の|"
    "この|要約|翻訳|다음|이 글|요약|번역|النص|لخص|ترجم|التالي|निम्न|इस|सारांश|अनुवाद"
)
# What a request on one line does to the text after its colon.
ON_TEXT = re.compile(
    r"\b(?:tl;?dr|summari[sz]\w*|summary|translat\w+|proofread|correct|rewrite|rephrase|paraphrase|shorten|extract|"
    r"zusammenfass\w*|fasse?|übersetz\w*|korrigier\w*|resum\w+|traduc\w+|traduz\w*|corrig\w+|résum\w+|tradui\w+|"
    r"riassum\w+|samenvat\w*|özetle\w*|çevir\w*|stre[sś][cć]\w*|przetłumacz\w*|перев\w+|перескаж\w*|исправ\w*)\b",
    re.IGNORECASE,
)
# A request whose text is itself what is to be solved or done.
TASK = re.compile(
    r"\b(?:problem|exercise|puzzle|riddle|requirements?|specs?|specification|challenge|theorem|lemma|proof|prove|solve|"
    r"scenario|case|instructions?|prompt|user stor(?:y|ies)|task|aufgabe|rätsel|problema|exercice|ejercicio|opgave)\b",
    re.IGNORECASE,
)
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
# What texts to be worked on rarely say, and requests say of what is to be done.
DOING = frozenset(
    ("you", "your", "should", "must", "shall", "please", "ensure", "implement", "generate", "return", "output")
)
