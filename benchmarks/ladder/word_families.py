"""Families of tasks about letters and days: counting letters, reversing, dates; initials."""

from benchmarks.ladder.wordings import Made, Wordings

_SHORT_TEXT = """
cat dog sun map pen cup hat bed box key egg arm leg car bus ant bee cow fox owl
"""
_MIDDLE_TEXT = """
lamp tree moon door ring milk ship bird fish leaf rope sand wool desk boat corn nest pond
"""
_LONG_TEXT = """
banana button carrot cotton dinner mirror ribbon kitten letter pepper rabbit yellow summer coffee
"""
_LONGEST_TEXT = """
tomorrow sentence notebook calendar mountain elephant umbrella password keyboard blackbird
"""
_SHORT, _MIDDLE, _LONG, _LONGEST = (text.split() for text in (_SHORT_TEXT, _MIDDLE_TEXT, _LONG_TEXT, _LONGEST_TEXT))
_LETTERS = "abcdefghiklmnoprstuvw"

_COUNT = (
    "How many times does the letter {letter} occur in {word}?",
    "Count the letter {letter} in {word}.",
    "How often is {letter} in {word}?",
    "In {word}, how many letters are {letter}?",
    "What is the number of {letter} in {word}?",
    "{word}: how many {letter} are there?",
    "Find how many times {letter} appears in {word}.",
    "How many {letter} does {word} have?",
    "Look at {word}. How many times is {letter} in it?",
    "Say how often the letter {letter} is in {word}.",
    "{word} has how many times the letter {letter}?",
    "Count how many {letter} are in {word}.",
    "In {word}, how often do you find {letter}?",
    "The letter {letter}: how many times is it in {word}?",
    "Tell how many {letter} you see in {word}.",
)


def letters(words: Wordings, level: int) -> Made:
    """How often a letter occurs: in a list of letters for levels 1 to 3, then in words of 3 to 9 letters."""
    if level <= 3:
        length = (4, 6, 9)[level - 1]
        few = words.some(_LETTERS, 3)
        spelled = [words.pick(few) for _ in range(length)]
        shown = ", ".join(spelled)
    else:
        word = words.pick((_SHORT + _MIDDLE, _LONG, _LONGEST)[level - 4])
        spelled, shown = list(word), f'"{word}"'
    letter = words.pick(spelled) if words.number(0, 3) else words.pick(_LETTERS)
    question = words.say(_COUNT, letter=letter, word=shown)
    count, steps = 0, []
    for character in spelled:
        count += character == letter
        steps.append(f"{character} {count}")
    brief = f"{'-'.join(spelled)}: {' '.join(character for character in spelled if character == letter) or 'none'}."
    return Made(question, (str(count),), "number", brief, f"{', '.join(steps)}.")


_BACKWARDS = (
    "Write this list backwards: {shown}.",
    "Reverse the order of {shown}.",
    "Give {shown} from last to first.",
    "Turn this list around: {shown}.",
    "List {shown} in reverse.",
    "Say {shown} backwards, item by item.",
    "Start at the end of {shown} and write the list.",
    "What is the reverse of {shown}?",
    "Here is a list: {shown}. Give it in the opposite order.",
    "Read {shown} from the back and write it down.",
    "Put {shown} the other way round.",
    "Begin with the last of {shown} and end with the first.",
    "Can you reverse {shown}?",
    "Repeat {shown} starting from the end.",
    "Which list do you get if you read {shown} from the end?",
)
_SPELL = (
    'Write the word "{word}" backwards.',
    'Reverse the letters of "{word}".',
    'Spell "{word}" from the end.',
    'What is "{word}" in reverse?',
    'Give the letters of "{word}" from last to first.',
    'Turn the word "{word}" around.',
    'Say "{word}" backwards, letter by letter.',
    'Start at the last letter of "{word}" and spell it.',
    'Read the word "{word}" from the back.',
    'Put the letters of "{word}" the other way round.',
    'Can you reverse "{word}"?',
    'Begin with the last letter of "{word}" and end with the first.',
    'Which letters do you get if you read "{word}" from the end?',
)


def reverse(words: Wordings, level: int) -> Made:
    """A list of three to six things; the letters of a word of three, then four letters."""
    if level <= 4:
        count = (3, 4, 5, 6)[level - 1]
        pool = [str(n) for n in range(1, 60)] if words.number(0, 1) else _SHORT + _MIDDLE
        listed = words.some(pool, count)
        question = words.say(_BACKWARDS, shown=", ".join(listed))
        answer = ", ".join(reversed(listed))
        numbered = [f"{number} {item}" for number, item in enumerate(listed, 1)]
        brief = f"Last {listed[-1]}, first {listed[0]}."
        return Made(question, (answer,), "contains", brief, f"{', '.join(numbered)}. {', '.join(reversed(numbered))}.")
    word = words.pick(_SHORT if level == 5 else _MIDDLE)
    numbered = [f"{number} {character}" for number, character in enumerate(word, 1)]
    answer = "-".join(reversed(word))
    detailed = f"{', '.join(numbered)}. {', '.join(reversed(numbered))}."
    return Made(words.say(_SPELL, word=word), (answer, word[::-1]), "contains", f"{'-'.join(word)}.", detailed)


_WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_YEAR = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_LONG_MONTHS = {"January", "March", "May", "July", "August", "October", "December"}
_AFTER = (
    "Today is {start}. Which {kind} is it in {n} {kind}s?",
    "Which {kind} is {n} {kind}s after {start}?",
    "It is {start} now. What {kind} comes {n} {kind}s later?",
    "{n} {kind}s after {start} is which {kind}?",
    "Count {n} {kind}s on from {start}. Where do you arrive?",
    "Name the {kind} that comes {n} {kind}s after {start}.",
    "Starting on {start}, which {kind} is it {n} {kind}s later?",
    "Go {n} {kind}s forward from {start}.",
    "What {kind} follows {start} by {n} {kind}s?",
    "{start} plus {n} {kind}s is which {kind}?",
    "Now it is {start}. In {n} {kind}s, which {kind} will it be?",
    "A visit is {n} {kind}s after {start}. On which {kind}?",
    "{n} {kind}s from {start}: what {kind} is it?",
    "Say the {kind} {n} {kind}s past {start}.",
    "If it is {start}, what {kind} will it be {n} {kind}s from now?",
)
_BEFORE = (
    "Which {kind} is {n} {kind}s before {start}?",
    "Today is {start}. Which {kind} was it {n} {kind}s ago?",
    "It is {start} now. What {kind} was {n} {kind}s earlier?",
    "Count {n} {kind}s back from {start}. Where do you arrive?",
    "Name the {kind} that was {n} {kind}s before {start}.",
    "Go {n} {kind}s back from {start}.",
    "What {kind} comes {n} {kind}s earlier than {start}?",
    "Starting on {start}, which {kind} was it {n} {kind}s earlier?",
    "{start} minus {n} {kind}s is which {kind}?",
    "{n} {kind}s before {start} was which {kind}?",
    "A visit was {n} {kind}s before {start}. On which {kind}?",
    "Say the {kind} {n} {kind}s prior to {start}.",
    "If it is {start}, what {kind} was it {n} {kind}s before?",
)
_DATE = (
    "Which date is {n} days after {month} {day}?",
    "Today is {month} {day}. What is the date in {n} days?",
    "Add {n} days to {month} {day}.",
    "What is {month} {day} plus {n} days?",
    "Count {n} days on from {month} {day}.",
    "Starting on {month} {day}, what date is it {n} days later?",
    "{n} days after {month} {day} is which date?",
    "A trip begins on {month} {day} and ends {n} days later. On which date?",
    "It is {month} {day}. Which date comes {n} days later?",
    "A letter of {month} {day} arrives after {n} days. On which date?",
    "Go {n} days forward from {month} {day}.",
    "Which date do you reach {n} days past {month} {day}?",
    "If it is {month} {day}, what date will it be {n} days from now?",
)


def dates(words: Wordings, level: int) -> Made:
    """A day or two later; three to six days later; days before; months later; whole weeks more; a date later."""
    if level == 6:
        month = words.pick(_YEAR[:-1])
        length = 31 if month in _LONG_MONTHS else 28 if month == "February" else 30
        day, n = words.number(length - 14, length), words.number(3, 12)
        question = words.say(_DATE, n=n, month=month, day=day)
        later = _YEAR[_YEAR.index(month) + 1]
        total = day + n
        brief = f"{day} + {n} = {total}."
        if total <= length:
            return Made(question, (f"{month} {total}", f"{total} {month}"), "contains", brief, brief)
        end = f"{month} has {length} days. {total} - {length} = {total - length}."
        answers = (f"{later} {total - length}", f"{total - length} {later}")
        return Made(question, answers, "contains", f"{brief} {end}", f"{brief} {end} The next month is {later}.")
    cycle, kind = (_YEAR, "month") if level == 4 else (_WEEK, "day")
    start = words.number(0, len(cycle) - 1)
    n = words.number(*((1, 2), (3, 6), (2, 5), (2, 7), (8, 16))[level - 1])
    back = level == 3
    step = -1 if back else 1
    left = n % 7 if level == 5 else n
    passed = [cycle[(start + step * i) % len(cycle)] for i in range(1, left + 1)]
    answer = cycle[(start + step * n) % len(cycle)]
    counted = ", ".join(f"{number} {name}" for number, name in enumerate(passed, 1))
    whole = f"{n} - {n - left} = {left}. " if level == 5 else ""
    question = words.say(_BEFORE if back else _AFTER, start=cycle[start], kind=kind, n=n)
    question = question.replace("1 days", "1 day").replace("1 months", "1 month")
    detailed = f"{whole}Start {cycle[start]}. {counted}." if counted else f"{whole}Start {cycle[start]}."
    brief = f"{whole}{cycle[start]} {'-' if back else '+'} {left} is {answer}."
    return Made(question, (answer,), "contains", brief, detailed, tuple(x for x in cycle if x != answer))


_INITIALS = (
    "Which word do the first letters of {shown} make?",
    "Write the first letter of each word, without spaces: {shown}.",
    "Take the first letters of {shown} and put them together.",
)


def initials(words: Wordings, level: int) -> Made:
    """The first letters of two to seven words."""
    chosen = words.some(_SHORT + _MIDDLE + _LONG, level + 1)
    answer = "".join(word[0] for word in chosen)
    detailed = ", ".join(f"{word} {word[0]}" for word in chosen)
    return Made(words.say(_INITIALS, shown=", ".join(chosen)), (answer,), "contains", answer, f"{detailed}.")
