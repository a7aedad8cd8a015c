"""Words that change nothing of a task, put around and into prompts for training: code, formulae, greetings, asides,
and the noise of typing.

A copy of a prompt with them keeps the prompt's classes, so that a model learns which words say nothing by themselves.
"""

import keyword
import random
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

# Modules of the standard library whose text stands for code: thousands of names, and real lines.
_MODULES = ("argparse", "ast", "asyncio/events", "collections/__init__", "csv", "datetime", "decimal", "difflib",
            "email/message", "fractions", "heapq", "http/client", "inspect", "json/decoder", "logging/handlers",
            "mailbox", "pathlib", "pickle", "random", "shutil", "smtplib", "socket", "statistics", "subprocess",
            "tarfile", "threading", "typing", "unittest/case", "urllib/request", "zipfile")  # fmt: skip
_OTHER_CODE = (
    "const let var => async await function prototype undefined null === !== console.log() document.getElementById "
    "JSON.stringify(data) useState useEffect props.children export default require('fs') module.exports Promise.all "
    "addEventListener('click') npm install package.json tsconfig interface readonly #include <stdio.h> int main(void) "
    "printf(\"%d\\n\") malloc sizeof struct typedef void* uint8_t static inline std::vector<int> std::cout << endl; "
    "template<typename> nullptr public static void System.out.println() ArrayList<String> @Override extends implements "
    "throws IOException private final boolean new HashMap<>() #!/bin/bash echo $HOME grep -rn sudo apt-get chmod +x "
    "docker run kubectl apply git commit -m rebase --onto fmt.Println() func() error chan goroutine defer package main "
    "<div class=\"row\"> <?php $_POST foreach </body> margin: 0 auto; display: flex; @media INSERT INTO VALUES UPDATE "
    "SET DELETE CREATE TABLE PRIMARY KEY VARCHAR(255) segfault 0x7fff stderr errno O(n log n) TypeError KeyError "
    "kernel mutex semaphore deadlock malloc heap stack pointer regex compiler bytecode async socket api endpoint cron"
).split()
# Lines of other languages, with random names.
_LINES = (
    "const {a} = await {b}.{c}({{ {d}: [{e}] }});", "if ({a} !== null && {b}.{c} > {n}) {{ return {d}[{n}]; }}",
    "{a}.forEach(({b}, {c}) => {{ {d} += {b} * {n} }})", "for (int {a} = 0; {a} < {b}; {a}++) {{ {c}[{a}] = {d}({a}); }}",
    "std::map<{a}, std::vector<{b}>> {c}{{{n}}};", "public static {a}<{b}> {c}({d} {e}) throws {f} {{", "{a} := {b}.{c}(&{d}{{}})",
    "if err := {a}({b}); err != nil {{ return nil, err }}", "val {a} = {b}.filter {{ it.{c} >= {n} }}.map(::{d})",
    "$this->{a}[$key] = array_map('{b}', ${c});", "#define {A}({b}) (({b}) << {n} | 0x{n})", "{a} <- {b} %>% {c}({d} ~ {e}) %>% {f}()",
    "my ($self, %{a}) = @_; push @{{$self->{{{b}}}}}, $_;", ".{a} > li:hover {{ color: #{n}f; margin: {n}px auto }}",
    "local {a} = function({b}, ...) return {c}:{d}({b}) end", "{a} = [{b} for {b} in {c} if {b}.{d}(r'{e}')]", "@{a}({b}={n}) async def {c}(self, *{d}, **{e}):",
    "case class {a}({b}: Option[{c}], {d}: Seq[{e}]) extends {f}", "for {a} in $(ls /{b}/*.{c}); do {d} \"${a}\" | awk '{{print ${n}}}' >> {e}.log; done",
    "<{a} className=\"{b}\" onClick={{() => {c}({d})}}>{{{e}}}</{a}>", "{a} *{b} = ({a} *) {c}->{d}[{n}]; free({b});", "var {a} = {b}.Where(x => x.{c} == {n}).ToList();",
    "{{\"{a}\": {n}, \"{b}\": [true, {{\"{c}\": null}}]}}", "[{a}]\n{b} = \"{c}\"\n{d} = {n}", "- {a}: {b}\n  {c}: [{d}, {e}]", "{a}::{b}<{c}>(|{d}| {e} & !{f})",
    "{A}_{B} = ~{c} ^ {d} % {n} // {e}", "Traceback: File \"/{a}/{b}.py\", line {n}, in {c}: {d}", "{a}.{b}[{c}] @ {d}.T -> {e}?.{f} ?? {n}",
)  # fmt: skip
_COMMANDS = (
    "alpha beta gamma delta epsilon theta lambda mu pi sigma phi omega frac{a}{b} frac{1}{n} frac{dy}{dx} sqrt{x} "
    "sqrt{2} sum_{i=1}^{n} sum_{k=0}^{\\infty} prod_{i} int_0^1 int_{-\\infty}^{\\infty} lim_{x\\to0} infty partial "
    "mathbb{R} mathbb{Z} mathcal{L} mathrm{d}x vec{v} bar{x} tilde{y} cdot times leq geq neq approx in subset cup cap "
    "forall exists implies iff rightarrow left( right) begin{matrix} end{matrix} begin{equation} end{equation} "
    "begin{align} end{align} text{if} log sin\\theta cos\\theta exp(-x) binom{n}{k} ldots quad label{eq:1} ref{eq:1} "
    "textbf{x} emph{y} mathbf{A}^{-1} det(A) lVert\\cdot\\rVert operatorname{rank}"
).split()
_LETTERS = ("x", "y", "z", "n", "k", "f(x)", "a_i", "x^2", "x_1", "p(n)", "e^{x}", "A", "0", "1", "2n+1", "y'", "=", "+", "-", "<")
_HELLOS = ("hi", "hello", "hey", "hello there", "hi there", "hey there", "good morning", "good evening", "dear assistant",
           "hi ai", "hello chatgpt", "hey buddy", "hi friend", "hiya", "sup", "hola", "bonjour", "guten tag", "hallo",
           "ciao", "olá", "привет", "здравствуйте", "你好", "こんにちは", "안녕하세요", "नमस्ते", "مرحبا", "merhaba",
           "hej", "cześć", "ahoj", "xin chào", "sawubona", "γεια σου", "שלום", "hello everyone", "to whom it may concern")  # fmt: skip
_SMALL_TALK = ("", "", "", "how are you?", "how are you doing today?", "I hope you are well.", "hope you're having a great day!",
               "nice to see you again", "it's me again", "I have a question.", "quick question for you:", "got a minute?",
               "sorry to bother you.", "you are the best", "I love talking to you!", "so excited!!", "it's raining here today.",
               "I just had coffee :)", "thanks for yesterday", "happy friday!", "what a day", "can you help me?", "ok so",
               "¿cómo estás?", "ça va ?", "wie geht's?", "как дела?", "haha", "lol")  # fmt: skip
_ASIDES = ("by the way", "um", "like", "well", "anyway", "thanks", "please", "ok", "haha", "so yeah", "I guess", "you see",
           "sorry", "nice weather today", "my dog is barking", "brb", "ahem", "yes yes", "bless you", "good stuff", "er",
           "just saying", "no worries", "wow", "sunshine", "apple", "blue car", "hello mum", "have a nice day", "pizza time",
           "how are you", "what time is it", "long story", "cool cool", "you rock", "oh no", "music is playing")  # fmt: skip
_IGNORED = ("Ignore this: {}.", "Please ignore the following: {}", "({} - not part of the question)", "Note: {} is irrelevant here.",
            "[noise] {} [/noise]", "Random words: {}.", "You can ignore everything after this. {}", "Off topic: {}",
            "P.S. {}", "-- {} --", "Unrelated: {}.", "Test test {}", "Do not answer this part: {}", "### {}", "Sent from my phone. {}",
            "{}", "Confidential e-mail footer: {}", "(the words {} mean nothing)")  # fmt: skip
_BEFORE = ("please ", "Please, ", "Could you please help me with this: ", "Can you ", "I would like you to answer this. ", "Kindly: ",
           "I need some help. ", "If you don't mind, ", "Hi, could you tell me: ", "I was wondering: ", "Help me, please. ",
           "Please be so nice. ", "May I ask you something? ", "", "")  # fmt: skip
_AFTER = (" Thanks!", " Thank you very much.", " thx", " please", " Thanks in advance!", " I appreciate your help.", " Please help.",
          " Best regards", " Cheers", " Thank you so much for your time, you're great.", " Any help is welcome.", " pls", "")  # fmt: skip

Change = Callable[[str, random.Random, Sequence[str]], str]


def distracted(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    """Return `prompt` with one or two random changes that leave the task as it is; `vocabulary`: words, such as those
    of other prompts, that asides are made of."""
    for change in rng.choices(*_CHANGES, k=1 if rng.random() < 0.75 else 2):
        prompt = change(prompt, rng, vocabulary)
    return prompt


def _placed(prompt: str, added: str, rng: random.Random) -> str:
    """Put `added` at the end, before the beginning, or seldom in the middle."""
    gap, place = rng.choice((" ", " ", "\n", "\n\n", ". ", "; ")), rng.random()
    if place < 0.5:
        return f"{prompt}{gap}{added}"
    if place < 0.9:
        return f"{added}{gap}{prompt}"
    return _inserted(prompt, added, rng)


def _inserted(prompt: str, added: str, rng: random.Random) -> str:
    words = prompt.split(" ")
    at = rng.randint(min(1, len(words)), max(len(words) - 1, 1))
    return " ".join((*words[:at], added, *words[at:]))


def _code(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    lines, names = _standard_library()
    kind, wanted = rng.random(), rng.randint(3, 40)
    if kind < 0.35:
        added = rng.choice((" ", "\n")).join(_line(rng, vocabulary) for _ in range(rng.choice((1, 2, 3, 4))))
    elif kind < 0.6:
        start = rng.randrange(len(lines))
        words = "\n".join(lines[start : start + 12]).split(" ")[: 2 * wanted]
        added = " ".join(words).strip()
    else:
        pools = (names, _OTHER_CODE, keyword.kwlist)
        added = " ".join(rng.choice(rng.choices(pools, (3, 3, 1))[0]) for _ in range(wanted))
    return _placed(prompt, f"```\n{added}\n```" if rng.random() < 0.1 else added, rng)


def _line(rng: random.Random, vocabulary: Sequence[str]) -> str:
    """Return a line of code of some language with random names."""
    named = {letter: _name(rng, vocabulary) for letter in "abcdef"}
    return rng.choice(_LINES).format(**named, A=named["a"].upper(), B=named["b"].upper(), n=rng.randint(0, 512))


def _name(rng: random.Random, vocabulary: Sequence[str]) -> str:
    word = rng.choice(vocabulary).lower()
    kind = rng.random()
    if kind < 0.3:
        return word[: rng.randint(1, 4)]
    if kind < 0.5:
        return f"{word}{rng.choice('_.')}{rng.choice(vocabulary).lower()}"
    return f"{word}{rng.choice(vocabulary).capitalize()}" if kind < 0.7 else word


def _formulae(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    added = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        parts = [f"\\{rng.choice(_COMMANDS)}" if rng.random() < 0.6 else rng.choice(_LETTERS) for _ in range(rng.randint(1, 8))]
        begin, end = rng.choice((("$", "$"), ("$", "$"), ("\\[", "\\]"), ("$$", "$$"), ("", ""), ("\\(", "\\)")))
        added.append(f"{begin}{rng.choice(('', ' ')).join(parts)}{end}")
    return _placed(prompt, " ".join(added), rng)


def _greeting(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    said = rng.choice(_HELLOS)
    said = said.capitalize() if rng.random() < 0.7 else said
    talk = " ".join(filter(None, rng.sample(_SMALL_TALK, rng.choice((1, 1, 2)))))
    return f"{said}{rng.choice((', ', '! ', '. ', ' ', chr(10)))}{talk}{' ' if talk else ''}{prompt}"


def _aside(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    for _ in range(rng.choice((1, 1, 2))):
        added = rng.choice(_ASIDES) if rng.random() < 0.5 else _words(rng, vocabulary, 1, 5)
        prompt = _inserted(prompt, rng.choice(("{}", ", {},", "({})", "{}", "- {} -")).format(added), rng)
    return prompt


def _ignored(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    return _placed(prompt, rng.choice(_IGNORED).format(_words(rng, vocabulary, 1, 12)), rng)


def _polite(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    return f"{rng.choice(_BEFORE)}{prompt}{rng.choice(_AFTER)}"


def _typos(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    share = rng.choice((0.02, 0.05, 0.15))
    letters = list(prompt)
    for at in range(len(letters) - 1):
        if letters[at].isalpha() and rng.random() < share / 3:
            kind = rng.randrange(4)
            if kind == 0:
                letters[at], letters[at + 1] = letters[at + 1], letters[at]
            else:
                letters[at] = ("", letters[at] * 2, rng.choice("abcdefghijklmnopqrstuvwxyz"))[kind - 1]
    return "".join(letters)


def _case(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    return rng.choice((str.lower, str.upper, str.capitalize, str.title, str.swapcase))(prompt)


def _space(prompt: str, rng: random.Random, vocabulary: Sequence[str]) -> str:
    share = rng.choice((0.05, 0.2, 0.5))
    gaps = ("  ", "\n", "\n\n", "\t", "   ", " \n")
    ends = ("", "", "\n", "  ", "\n\n\n")
    middle = "".join(rng.choice(gaps) if c == " " and rng.random() < share else c for c in prompt)
    return f"{rng.choice(ends)}{middle}{rng.choice(ends)}"


def _words(rng: random.Random, vocabulary: Sequence[str], least: int, most: int) -> str:
    return " ".join(rng.choices(vocabulary, k=rng.randint(least, most)))


@cache
def _standard_library() -> tuple[list[str], list[str]]:
    """Return lines of this Python's standard library, and the words in them."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = "\n".join((folder / f"{name}.py").read_text("utf-8") for name in _MODULES)
    return text.splitlines(), sorted(set(text.split()))


_CHANGES: tuple[list[Change], list[float]] = (
    [_code, _formulae, _greeting, _aside, _ignored, _polite, _typos, _case, _space],
    [4, 2.5, 1.5, 2, 2, 1.5, 1, 1, 1.5],
)
