"""Families of tasks about numbers: sums in words, comparing, sorting, units, yes or no; sequences and numerals."""

from itertools import pairwise

from benchmarks.ladder.wordings import Made, Wordings, added, compared, multiplied, taken

_PEOPLE = ("Nora", "Otto", "Paul", "Rosa", "Sam", "Tina", "Uma", "Viktor", "Wanda", "Yusuf", "Zoe", "Lena")
_GOODS = ("marbles", "stickers", "nails", "buttons", "lemons", "candles", "bottles", "seeds", "bricks", "ribbons")

_ADD = (
    "{who} has {a} {what} and finds {b} more. How many {what} does {who} have?",
    "There are {a} {what} in a bag. {who} puts in {b} more. How many are in it now?",
    "What is {a} + {b}?",
    "{who} counts {a} {what} on one table and {b} on another. How many are there in all?",
    "Add {b} to {a}.",
    "What do {a} and {b} make together?",
    "{who} owns {a} {what}. Then {b} {what} arrive. How many are there?",
    "Calculate {a} plus {b}.",
    "In one jar are {a} {what}, in the other {b}. How many {what} are in both?",
    "{who} carries {a} {what} and picks up {b}. Say how many that makes.",
    "{who} had {a} {what} and was given {b}. How many {what} are that now?",
    "{a} {what} and {b} {what} are how many {what}?",
    "Give the sum of {a} and {b}.",
    "{who} saw {a} {what} in the morning and {b} in the evening. How many {what} did {who} see?",
    "How much is {a} and {b}?",
    "First {a} {what} came, then {b}. How many came altogether?",
    "{who} made {a} {what} today and {b} yesterday. What is the total?",
)
_TAKE = (
    "{who} has {a} {what} and sells {b}. How many {what} remain?",
    "A box holds {a} {what}. {who} takes out {b}. How many are still in it?",
    "What is {a} - {b}?",
    "Of {a} {what}, {b} broke. How many are whole?",
    "Subtract {b} from {a}.",
    "How much is {a} minus {b}?",
    "From {a} {what} {who} eats {b}. What is left?",
    "{who} had {a} {what} but lost {b}. How many does {who} have?",
    "Take {b} away from {a}.",
    "What is the difference between {a} and {b}?",
    "{who} gave away {b} of {a} {what}. How many does {who} still have?",
    "{a} less {b} is what?",
    "There were {a} {what}. {b} are gone. How many are there now?",
    "If you take {b} from {a}, what do you get?",
    "{who} bought {a} {what} and used {b}. How many are unused?",
    "How many more is {a} than {b}?",
    "{who} needs {a} {what} and has {b}. How many are missing?",
)
_TIMES = (
    "{who} packs {a} bags with {b} {what} each. How many {what} is that?",
    "What is {a} x {b}?",
    "There are {a} rows of {b} {what}. How many {what} are there?",
    "{b} times {a} is what?",
    "Multiply {a} by {b}.",
    "{who} fills {a} boxes, and {b} {what} go into each. How many {what} are packed?",
    "One set has {b} {what}. How many are in {a} sets?",
    "Calculate {a} times {b}.",
    "On {a} days {who} sells {b} {what} a day. How many are sold?",
    "{a} plates hold {b} {what} each. How many {what} are on them?",
    "What is the product of {a} and {b}?",
    "{who} buys {b} {what} {a} times. How many {what} does {who} buy?",
    "How much is {a} times {b}?",
    "Every one of {a} boxes contains {b} {what}. What is the number of {what}?",
    "Each of {a} children gets {b} {what}. How many {what} are needed?",
)
_TIMES_ADD = (
    "{who} has {a} bags of {b} {what} and {c} loose ones. How many {what} in all?",
    "What is {a} x {b} + {c}?",
    "There are {a} rows of {b} {what}, and {c} more on the floor. How many are there together?",
    "Calculate {a} times {b} plus {c}.",
    "{who} fills {a} trays with {b} {what} each and has {c} left over. How many {what} does {who} have?",
    "On {a} shelves are {b} {what} each. {c} more lie on a desk. What is the total?",
    "Add {c} to the product of {a} and {b}.",
    "{a} friends bring {b} {what} each, and {who} brings {c}. How many {what} are there?",
    "{who} carries {a} baskets with {b} {what} in each, and {c} in a pocket. How many {what} does {who} carry?",
    "Multiply {a} by {b} and add {c}.",
    "{a} times {b}, and {c} more: what is that?",
    "In {a} drawers are {b} {what} each, and {c} lie outside. How many {what} are there in all?",
    "{who} buys {a} packs of {b} {what} and finds {c} besides. How many {what} does {who} own?",
)
_ADD_TAKE = (
    "{who} has {a} {what}, gets {b} and then loses {c}. How many are left?",
    "What is {a} + {b} - {c}?",
    "A shelf has {a} {what}. {b} are added, then {c} are taken away. How many are on it?",
    "Add {b} to {a}, then subtract {c}.",
    "{who} owns {a} {what}, buys {b} and sells {c}. How many remain?",
    "In a store are {a} {what}. {b} come in and {c} go out. How many are there at the end?",
    "{a} plus {b} minus {c} is what?",
    "{who} picked {a} {what} and then {b} more, but {c} were bad. How many are good?",
    "{who} finds {a} {what}, then {b} more, and throws away {c}. How many does {who} have?",
    "Take {c} from the sum of {a} and {b}.",
    "How much is {a} plus {b} less {c}?",
    "A box gets {a} {what} and {b} {what}. Then {c} fall out. How many are in it?",
    "{who} starts with {a} {what}, wins {b} and gives away {c}. How many does {who} keep?",
)


def sums(words: Wordings, level: int) -> Made:
    """Addition to 18; to 99; subtraction; products of digits; products with a sum; three numbers of two digits."""
    who, what = words.pick(_PEOPLE), words.pick(_GOODS)
    if level <= 3:
        low, high = ((1, 9), (11, 49), (21, 99))[level - 1]
        a, b = words.number(low, high), words.number(low, high)
        if level == 1 or (level == 2 and words.number(0, 1)):
            question = words.say(_ADD, a=a, b=b, who=who, what=what)
            return _number(question, a + b, f"{a} + {b} = {a + b}.", added(a, b))
        a, b = max(a, b), min(a, b)
        question = words.say(_TAKE, a=a, b=b, who=who, what=what)
        return _number(question, a - b, f"{a} - {b} = {a - b}.", taken(a, b))
    if level == 4:
        a, b = words.number(2, 9), words.number(2, 19)
        question = words.say(_TIMES, a=a, b=b, who=who, what=what)
        return _number(question, a * b, f"{a} x {b} = {a * b}.", multiplied(b, a))
    if level == 5:
        a, b, c = words.number(2, 9), words.number(3, 12), words.number(2, 29)
        question = words.say(_TIMES_ADD, a=a, b=b, c=c, who=who, what=what)
        brief = f"{a} x {b} = {a * b}. {a * b} + {c} = {a * b + c}."
        return _number(question, a * b + c, brief, f"{multiplied(b, a)} {added(a * b, c)}")
    a, b = words.number(21, 89), words.number(12, 79)
    c = words.number(11, a + b - 1)
    question = words.say(_ADD_TAKE, a=a, b=b, c=c, who=who, what=what)
    brief = f"{a} + {b} = {a + b}. {a + b} - {c} = {a + b - c}."
    return _number(question, a + b - c, brief, f"{added(a, b)} {taken(a + b, c)}")


_LARGER = (
    "Which is {wanted}: {numbers}?",
    "Name the {wanted} of these numbers: {numbers}.",
    "{numbers}. Which of them is the {wanted}?",
    "Find the {wanted} number: {numbers}.",
    "What is the {wanted} of {numbers}?",
    "Tell which is {wanted}: {numbers}.",
    "Look at {numbers}. Which one is the {wanted}?",
    "Pick the {wanted} number out of {numbers}.",
    "Of the numbers {numbers}, which is the {wanted}?",
    "Say which is the {wanted}: {numbers}.",
    "Here are numbers: {numbers}. Which is the {wanted}?",
    "Among {numbers}, what is the {wanted} number?",
    "Give me the {wanted} of {numbers}.",
    "Compare {numbers}. Which is {wanted}?",
    "From {numbers} choose the {wanted} one.",
)


def compare(words: Wordings, level: int) -> Made:
    """The largest or smallest of two to five numbers, of one to four digits that are more and more alike."""
    count = (2, 2, 2, 3, 4, 5)[level - 1]
    low, high = ((1, 9), (10, 99), (100, 999), (10, 99), (100, 999), (1000, 9999))[level - 1]
    base = words.number(low, max(high - 60, low))
    numbers = words.some(range(base, min(base + 60, high) + 1), count)
    largest = bool(words.number(0, 1))
    wanted = "largest" if largest else "smallest"
    if count == 2:
        wanted = "larger" if largest else "smaller"
    question = words.say(_LARGER, wanted=wanted, numbers=_listed(numbers, " or " if count == 2 else " and "))
    best, steps = numbers[0], []
    for other in numbers[1:]:
        kept = max(best, other) if largest else min(best, other)
        steps.append(f"{compared(best, other)} Keep {kept}.")
        best = kept
    brief = f"The {wanted} one is {best}."
    return Made(question, (str(best),), "number", brief, " ".join(steps))


_SORT = (
    "Sort these numbers from {first} to {last}: {numbers}.",
    "Put {numbers} in order, {first} first.",
    "Write {numbers} from {first} to {last}.",
    "Order the numbers {numbers}, beginning with the {first}.",
    "Bring {numbers} into order from {first} to {last}.",
    "Rearrange {numbers}: {first} to {last}.",
    "Start with the {first} and list {numbers} in order.",
    "List {numbers} beginning with the {first} and ending with the {last}.",
    "Here are numbers: {numbers}. Sort them, {first} first.",
    "Order {numbers} so that the {first} is at the front.",
    "Give {numbers} sorted, from {first} to {last}.",
    "Can you sort {numbers}, {first} first?",
    "Make a list of {numbers}, {first} to {last}.",
    "Line up {numbers} with the {first} in front and the {last} at the end.",
    "Arrange {numbers} so that the {first} comes first and the {last} last.",
)


def sort(words: Wordings, level: int) -> Made:
    """Three to six numbers of one or two digits, up or down."""
    count = (3, 3, 4, 4, 5, 6)[level - 1]
    numbers = words.some(range(1, 10) if level == 1 else range(10, 100), count)
    down = level % 2 == 0 and bool(words.number(0, 1))
    first, last = ("largest", "smallest") if down else ("smallest", "largest")
    question = words.say(_SORT, first=first, last=last, numbers=", ".join(map(str, numbers)))
    ordered = sorted(numbers, reverse=down)
    left, steps = list(numbers), []
    for number in ordered:
        steps.append(f"{', '.join(map(str, left))}: {number}.")
        left.remove(number)
    answer = ", ".join(map(str, ordered))
    brief = f"{first} {ordered[0]}, then {', '.join(map(str, ordered[1:]))}."
    return Made(question, (answer,), "contains", brief, " ".join(steps))


_UNITS = (
    ("metres", "centimetres", 100),
    ("hours", "minutes", 60),
    ("weeks", "days", 7),
    ("kilograms", "grams", 1000),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("kilometres", "metres", 1000),
    ("centimetres", "millimetres", 10),
)
_CONVERT = (
    "How many {small} are {n} {large}?",
    "Convert {n} {large} to {small}.",
    "{n} {large} are how many {small}?",
    "Express {n} {large} in {small}.",
    "{n} {large} is how much in {small}?",
    "Change {n} {large} into {small}.",
    "Give {n} {large} in {small}.",
    "If something takes {n} {large}, how many {small} is that?",
    "Write {n} {large} as {small}.",
    "How much is {n} {large} in {small}?",
    "Turn {n} {large} into {small}.",
    "{n} {large} last or measure how many {small}?",
    "A thing of {n} {large}: how many {small} is it?",
    "What do {n} {large} make in {small}?",
)
_MIXED = (
    "How many {small} are {n} {large} and {m} {small}?",
    "Convert {n} {large} {m} {small} to {small}.",
    "{n} {large} and {m} {small}: how many {small} is that?",
    "Express {n} {large} and {m} {small} in {small} alone.",
    "Change {n} {large} and {m} {small} into {small}.",
    "{n} {large} plus {m} {small} is how many {small}?",
    "Give {n} {large} {m} {small} in {small}.",
    "What is {n} {large} and {m} {small} altogether in {small}?",
    "Turn {n} {large} and {m} {small} into {small}.",
    "Someone counts {n} {large} and {m} {small}. How many {small} is it in all?",
    "How much are {n} {large} and {m} {small} together, in {small}?",
    "Write {n} {large} {m} {small} in {small} only.",
    "A total of {n} {large} and {m} {small} is how many {small}?",
)
_BACK = (
    "How many {large} are {m} {small}?",
    "Convert {m} {small} to {large}.",
    "{m} {small} are how many {large}?",
    "Express {m} {small} in {large}.",
    "Change {m} {small} into {large}.",
    "{m} {small} is how much in {large}?",
    "Give {m} {small} in {large}.",
    "If something has {m} {small}, how many {large} is that?",
    "Turn {m} {small} into {large}.",
    "How much is {m} {small} in {large}?",
    "Write {m} {small} as {large}.",
    "A thing of {m} {small}: how many {large} is it?",
    "What do {m} {small} make in {large}?",
)


def units(words: Wordings, level: int) -> Made:
    """A small number of a larger unit; a factor that is no power of ten; back; two units; two units of time; larger."""
    round_ones = [unit for unit in _UNITS if unit[2] % 10 == 0 and unit[2] != 60]
    others = [unit for unit in _UNITS if unit not in round_ones]
    large, small, factor = words.pick(round_ones if level in (1, 4) else others if level in (2, 5) else _UNITS)
    n = words.number(2, 9) if level < 6 else words.number(5, 20)
    rule = f"1 {large.removesuffix('s')} is {factor} {small}."
    brief = f"{rule} {n} x {factor} = {n * factor}."
    long = (
        f"{rule} {multiplied(factor, n) if n < 10 else multiplied(n, factor) if factor < 10 else _by_parts(n, factor)}"
    )
    if level == 3:
        question = words.say(_BACK, large=large, small=small, m=n * factor)
        return _number(question, n, f"{rule} {n * factor} / {factor} = {n}.", f"{rule} {n} x {factor} = {n * factor}.")
    if level < 4:
        return _number(words.say(_CONVERT, large=large, small=small, n=n), n * factor, brief, long)
    m = words.number(1, factor - 1)
    question = words.say(_MIXED, large=large, small=small, n=n, m=m)
    total = n * factor + m
    return _number(question, total, f"{brief} {n * factor} + {m} = {total}.", f"{long} {added(n * factor, m)}")


def _by_parts(n: int, factor: int) -> str:
    """The product of a number of two digits and a factor, by tens and ones."""
    tens, ones = n // 10 * 10, n % 10
    if not ones:
        return f"{tens} x {factor} = {tens * factor}."
    sums_ = f"{tens * factor} + {ones * factor} = {n * factor}."
    return f"{tens} x {factor} = {tens * factor}. {ones} x {factor} = {ones * factor}. {sums_}"


_IS_LARGER = (
    "Is {a} larger than {b}?",
    "Is the number {a} more than {b}?",
    "Yes or no: {a} is greater than {b}.",
    "Is it true that {a} is larger than {b}?",
    "Compare {a} and {b}: is the first one larger?",
    "Is {a} greater than {b}?",
    "Does {a} exceed {b}?",
    "Can you say that {a} is larger than {b}?",
    "Is {a} above {b}?",
    "Right or wrong, yes or no: {a} is more than {b}.",
    "Someone says {a} is larger than {b}. Is it so?",
    "Would you say that {a} is bigger than {b}?",
)
_IS_EVEN = (
    "Is {a} an even number?",
    "Is {a} even?",
    "Yes or no: {a} is even.",
    "Is it true that {a} is even?",
    "Does {a} belong to the even numbers?",
    "Is {a} divisible by 2?",
    "Someone says {a} is even. Is that true?",
    "Is the number {a} even?",
    "Can {a} be halved into whole numbers?",
    "Would you call {a} even?",
    "Check whether {a} is even. Yes or no?",
    "Can {a} be divided by 2 without a rest?",
)
_IS_SUM = (
    "Is {a} + {b} equal to {c}?",
    "Do {a} and {b} add up to {c}?",
    "Yes or no: {a} + {b} = {c}.",
    "Is it true that {a} + {b} = {c}?",
    "Is {c} the sum of {a} and {b}?",
    "{a} plus {b} is {c}. True?",
    "Check whether {a} + {b} gives {c}. Yes or no?",
    "Does {a} + {b} give {c}?",
    "Is the sum of {a} and {b} {c}?",
    "If you add {a} and {b}, do you get {c}?",
    "Someone says that {a} + {b} makes {c}. Is that right?",
)
_IS_PRODUCT = (
    "Is {a} x {b} equal to {c}?",
    "Yes or no: {a} x {b} = {c}.",
    "Does {a} times {b} make {c}?",
    "Is it true that {a} x {b} = {c}?",
    "Is {c} the product of {a} and {b}?",
    "{a} times {b} is {c}. True?",
    "Check whether {a} x {b} gives {c}. Yes or no?",
    "Does {a} x {b} give {c}?",
    "Is the product of {a} and {b} {c}?",
    "If you multiply {a} and {b}, do you get {c}?",
    "Someone says that {a} x {b} makes {c}. Is that right?",
)
_IN_LIST = (
    "Is {a} in this list: {numbers}?",
    "Does the list {numbers} contain {a}?",
    "Yes or no: {a} is one of {numbers}.",
    "Can you find {a} in {numbers}?",
    "Is the number {a} part of {numbers}?",
    "Is it true that {a} is in the list {numbers}?",
    "Here is a list: {numbers}. Does it have {a}?",
    "The list is {numbers}. Is {a} on it?",
    "Does {a} occur in {numbers}?",
    "Search {numbers} for {a}. Is it there?",
    "Is {a} one of the numbers {numbers}?",
    "Look at {numbers}. Is {a} among them?",
)


def yes_no(words: Wordings, level: int) -> Made:
    """Larger or not; even or not; in a list or not; a sum that is right or not; a product; a sum of larger numbers."""
    truth = bool(words.number(0, 1))
    if level == 1:
        low, high = sorted(words.some(range(1, 99), 2))
        a, b = (high, low) if truth else (low, high)
        return _verdict(words.say(_IS_LARGER, a=a, b=b), truth, f"{max(a, b)} is larger.", compared(a, b))
    if level == 2:
        a = words.number(5, 99) * 2 + (0 if truth else 1)
        kind = "even" if truth else "odd"
        return _verdict(
            words.say(_IS_EVEN, a=a), truth, f"{a} is {kind}.", f"{a} ends in {a % 10}. {a % 10} is {kind}."
        )
    if level == 3:
        numbers = words.some(range(10, 60), 5)
        a = words.pick(numbers) if truth else words.pick([n for n in range(10, 60) if n not in numbers])
        shown = ", ".join(map(str, numbers))
        checked = ", ".join(f"{n} {'yes' if n == a else 'no'}" for n in numbers)
        brief = f"{a} is {'there' if truth else 'not there'}."
        return _verdict(words.say(_IN_LIST, a=a, numbers=shown), truth, brief, f"Look for {a}: {checked}.")
    if level == 5:
        a, b = words.number(2, 9), words.number(2, 12)
        made, brief, detailed, templates = a * b, f"{a} x {b} = {a * b}.", multiplied(b, a), _IS_PRODUCT
    else:
        low, high = (2, 19) if level == 4 else (20, 79)
        a, b = words.number(low, high), words.number(low, high)
        made, brief, detailed, templates = a + b, f"{a} + {b} = {a + b}.", added(a, b), _IS_SUM
    c = made if truth else made + words.pick([-10, -2, -1, 1, 2, 10]) if made > 10 else made + (0 if truth else 1)
    end = f"{made} {'=' if truth else 'is not'} {c}."
    return _verdict(words.say(templates, a=a, b=b, c=c), truth, f"{brief} {end}", f"{detailed} {end}")


_NEXT = (
    "Which number comes next: {numbers}?",
    "Continue the sequence {numbers} with one number.",
    "What is the next number after {numbers}?",
)


def sequence(words: Wordings, level: int) -> Made:
    """The next number of a sequence with a constant step, which grows with the level."""
    step = words.number(1, 3) if level < 3 else words.number(3, 9) if level < 5 else words.number(7, 19)
    start = words.number(1, 10 * level)
    numbers = [start + step * index for index in range(4)]
    if level % 2 == 0:
        numbers = [n + 2 * step for n in reversed(numbers)]
        step = -step
    steps = ". ".join(f"{b} - {a} = {b - a}" for a, b in pairwise(numbers))
    answer = numbers[-1] + step
    question = words.say(_NEXT, numbers=", ".join(map(str, numbers)))
    return _number(question, answer, f"The step is {step}.", f"{steps}. {numbers[-1]} + {step} = {answer}.")


_ROMAN = (
    "Which number is the Roman numeral {numeral}?",
    "Write the Roman numeral {numeral} in digits.",
    "What does {numeral} mean as a number?",
)
_NUMERALS = ((100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def roman(words: Wordings, level: int) -> Made:
    """A Roman numeral up to ten; to 20, 40, 60, 100, 200."""
    number = words.number(1, (10, 20, 40, 60, 100, 200)[level - 1])
    left, parts = number, []
    for value, sign in _NUMERALS:
        while left >= value:
            parts.append((sign, value))
            left -= value
    numeral = "".join(sign for sign, _ in parts)
    detailed = ", ".join(f"{sign} is {value}" for sign, value in parts)
    return _number(words.say(_ROMAN, numeral=numeral), number, f"{numeral} is {number}.", f"{detailed}.")


def _listed(numbers: list[int], last: str) -> str:
    return last.join([", ".join(map(str, numbers[:-1])), str(numbers[-1])])


def _number(question: str, answer: int, brief: str, detailed: str) -> Made:
    return Made(question, (str(answer),), "number", brief, detailed)


def _verdict(question: str, truth: bool, brief: str, detailed: str) -> Made:
    return Made(question, ("yes" if truth else "no",), "yes-no", brief, detailed)
