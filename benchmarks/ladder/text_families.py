"""Families of tasks about short texts: who is first, tables, and finding what a text says."""

from itertools import pairwise

from benchmarks.ladder.wordings import Made, Wordings, added, taken

_PEOPLE = ("Nora", "Otto", "Paul", "Rosa", "Sam", "Tina", "Uma", "Viktor", "Wanda", "Yusuf", "Zoe", "Lena", "Karl")
_RELATIONS = (
    ("faster", "fastest", "slower", "slowest"),
    ("heavier", "heaviest", "lighter", "lightest"),
    ("richer", "richest", "poorer", "poorest"),
    ("stronger", "strongest", "weaker", "weakest"),
    ("louder", "loudest", "quieter", "quietest"),
)
_WHO = (
    "{told} Who is the {wanted}?",
    "{told} Which of them is the {wanted}?",
    "Read this. {told} Name the {wanted} person.",
    "{told} The {wanted} one is who?",
    "{told} Tell me who is the {wanted}.",
    "{told} Who of these people is the {wanted}?",
    "We know: {told} Which person is the {wanted}?",
    "{told} Pick the {wanted} person.",
    "{told} What is the name of the {wanted} person?",
    "{told} Say who is the {wanted}.",
    "People were compared. {told} Who is the {wanted} of them?",
    "{told} So who is the {wanted}?",
    "Think about this: {told} Name who is the {wanted}.",
    "{told} Which one is the {wanted}?",
    "Given: {told} Find the {wanted} person.",
)


def logic(words: Wordings, level: int) -> Made:
    """Two to five people in an order, given in order or not; the first, the last, then the second of them."""
    count = (2, 3, 3, 4, 4, 5)[level - 1]
    people = words.some(_PEOPLE, count)
    more, most, less, least = words.pick(_RELATIONS)
    told = [
        f"{a} is {more} than {b}." if level < 3 or words.number(0, 1) else f"{b} is {less} than {a}."
        for a, b in pairwise(people)
    ]
    if level >= 3:
        words.rng.shuffle(told)
    if level <= 4:
        rank = words.pick([0, count - 1])
        wanted = most if rank == 0 else least
        if count == 2:
            wanted = more if rank == 0 else less
    else:
        rank, wanted = 1, f"second {most}"
    answer = people[rank]
    question = words.say(_WHO, told=" ".join(told), wanted=wanted)
    order = " > ".join(people)
    chain = " ".join(f"{a} > {b}." for a, b in pairwise(people))
    numbered = ", ".join(f"{number} {name}" for number, name in enumerate(people, 1))
    detailed = f"{chain} Order: {numbered}. The {wanted} is {rank + 1}."
    return Made(question, (answer,), "contains", f"{order}.", detailed, tuple(p for p in people if p != answer))


_WARES = ("bread", "cheese", "soap", "rice", "honey", "paper", "salt", "tea", "oil", "jam", "flour", "butter", "glue")
_PRICE = (
    "{table}\nWhat does {ware} cost?",
    "{table}\nGive the price of {ware}.",
    "Here are prices.\n{table}\nHow much is {ware}?",
    "{table}\nFind the number for {ware}.",
    "{table}\nWhat is the value of {ware}?",
    "This is a list.\n{table}\nWhich value has {ware}?",
    "{table}\nTell me the number next to {ware}.",
    "{table}\nWhat do you pay for {ware}?",
    "{table}\nWhich price does {ware} have?",
    "{table}\nHow much does {ware} cost?",
    "Look at this table.\n{table}\nSay the price of {ware}.",
    "{table}\nRead off the price of {ware}.",
    "A shop sells this.\n{table}\nWhat is the price of {ware}?",
    "{table}\nWhich number belongs to {ware}?",
)
_BOTH = (
    "{table}\nWhat do {ware} and {other} cost together?",
    "Here are prices.\n{table}\nAdd the prices of {ware} and {other}.",
    "{table}\nHow much are {ware} and {other} in all?",
    "{table}\nWhat is the price of {ware} plus that of {other}?",
    "{table}\nSum the prices of {ware} and {other}.",
    "This is a list.\n{table}\nHow much do you need for {ware} and {other}?",
    "{table}\nFind the total of {ware} and {other}.",
    "{table}\nSomeone buys {ware} and {other}. How much is it?",
    "{table}\nHow much is {ware} with {other}?",
    "A shop sells this.\n{table}\nWhat is the sum for {ware} and {other}?",
    "{table}\n{ware} plus {other}: what is it?",
    "Look at this table.\n{table}\nGive the cost of {ware} and {other} together.",
    "{table}\nYou buy {ware} and {other}. What do you pay?",
)
_APART = (
    "{table}\nHow much more does {ware} cost than {other}?",
    "Here are prices.\n{table}\nWhat is the difference in price of {ware} and {other}?",
    "{table}\nBy how much is {ware} dearer than {other}?",
    "{table}\nSubtract the price of {other} from that of {ware}.",
    "This is a list.\n{table}\nHow far apart are {ware} and {other}?",
    "{table}\nHow much cheaper is {other} than {ware}?",
    "{table}\nWhat is {ware} minus {other}?",
    "{table}\nFind the difference between {ware} and {other}.",
    "{table}\nHow much less is {other} than {ware}?",
    "A shop sells this.\n{table}\nTake the price of {other} from the price of {ware}.",
    "{table}\nWhat must you pay more for {ware} than for {other}?",
    "Look at this table.\n{table}\nWhat is the gap between {ware} and {other}?",
    "{table}\nCompare {ware} with {other}: what is the difference?",
)
_EXTREME = (
    "{table}\nWhich costs the {wanted}?",
    "Here are prices.\n{table}\nName the ware that costs the {wanted}.",
    "{table}\nWhat costs the {wanted}?",
    "{table}\nFor which ware do you pay the {wanted}?",
    "This is a list.\n{table}\nWhich one has the price that is the {wanted}?",
    "{table}\nTell me what costs the {wanted}.",
    "{table}\nPick the ware that costs the {wanted}.",
    "{table}\nOf these wares, which costs the {wanted}?",
    "{table}\nSay which ware costs the {wanted}.",
    "A shop sells this.\n{table}\nWhich ware costs the {wanted}?",
    "Look at this table.\n{table}\nGive the ware that costs the {wanted}.",
    "{table}\nOne of them costs the {wanted}. Which?",
    "{table}\nFind the ware for which you pay the {wanted}.",
)


def table(words: Wordings, level: int) -> Made:
    """A price among two, four or six rows; the dearest or cheapest of four; two prices added; their difference."""
    wares = words.some(_WARES, (2, 4, 6, 4, 4, 5)[level - 1])
    prices = words.some(range(2, 20) if level < 5 else range(11, 60), len(wares))
    rows = "\n".join(f"{ware}: {price}" for ware, price in zip(wares, prices, strict=True))
    at = dict(zip(wares, prices, strict=True))
    if level <= 3:
        ware = words.pick(wares)
        brief = f"{ware}: {at[ware]}."
        return _number(words.say(_PRICE, table=rows, ware=ware), at[ware], brief, f"Look for {ware}. {brief}")
    if level == 4:
        wanted = words.pick(["most", "least"])
        pick = max if wanted == "most" else min
        answer = pick(at, key=lambda ware: at[ware])
        best, steps = wares[0], []
        for other in wares[1:]:
            kept = pick(best, other, key=lambda ware: at[ware])
            steps.append(f"{best} {at[best]}, {other} {at[other]}: {kept}.")
            best = kept
        others = tuple(ware for ware in wares if ware != answer)
        question = words.say(_EXTREME, table=rows, wanted=wanted)
        return Made(question, (answer,), "contains", f"The {wanted} is {at[answer]}.", " ".join(steps), others)
    ware, other = words.some(wares, 2)
    if level == 5:
        a, b = at[ware], at[other]
        looked_up = f"{ware}: {a}. {other}: {b}."
        question = words.say(_BOTH, table=rows, ware=ware, other=other)
        return _number(question, a + b, f"{looked_up} {a} + {b} = {a + b}.", f"{looked_up} {added(a, b)}")
    ware, other = sorted((ware, other), key=lambda label: -at[label])
    a, b = at[ware], at[other]
    looked_up = f"{ware}: {a}. {other}: {b}."
    question = words.say(_APART, table=rows, ware=ware, other=other)
    return _number(question, a - b, f"{looked_up} {a} - {b} = {a - b}.", f"{looked_up} {taken(a, b)}")


_JOBS = ("baker", "pilot", "nurse", "tailor", "farmer", "painter", "judge", "dentist", "driver", "singer")
_TOWNS = ("Porto", "Leeds", "Graz", "Bari", "Gdansk", "Malmo", "Basel", "Ghent", "Cork", "Split", "Trier")
_ROOMS = tuple(range(3, 40))
_TELL = (
    "{who} is a {job}, lives in {town} and works in room {room}.",
    "{who} from {town} works as a {job} in room {room}.",
    "In room {room} works {who}, a {job} from {town}.",
)
_ASK = {
    "job": (
        "{text} What is the job of {who}?",
        "{text} What does {who} do for a living?",
        "Text: {text} Name the job of {who}.",
        "{text} Which job has {who}?",
        "{text} Say what {who} works as.",
        "{text} Find the job of {who}.",
        "{text} What work does {who} do?",
        "{text} {who} works as what?",
        "{text} Tell me the job of {who}.",
        "{text} What is {who} by trade?",
        "{text} As what does {who} earn money?",
    ),
    "town": (
        "{text} Where does {who} live?",
        "{text} What is the home town of {who}?",
        "Text: {text} In which town is {who} at home?",
        "{text} In which town does {who} live?",
        "{text} Which town is {who} from?",
        "{text} Find the town of {who}.",
        "{text} Say where {who} lives.",
        "{text} {who} is at home in which town?",
        "{text} Tell me the town of {who}.",
        "{text} What town does {who} come from?",
        "{text} From where is {who}?",
    ),
    "room": (
        "{text} In which room does {who} work?",
        "{text} What is the room number of {who}?",
        "Text: {text} Where can {who} be found? Give the room.",
        "{text} Which room does {who} work in?",
        "{text} Find the room of {who}.",
        "{text} Say the room number of {who}.",
        "{text} Where does {who} work? Give the room number.",
        "{text} {who} works in which room?",
        "{text} Tell me the room of {who}.",
        "{text} What room is {who} in?",
        "{text} Which room belongs to {who}?",
    ),
    "who": (
        "{text} Who is the {job}?",
        "{text} What is the name of the {job}?",
        "Text: {text} Name the {job}.",
        "{text} Find the {job}. What is the name?",
        "{text} Who works as a {job}?",
        "{text} Say the name of the {job}.",
        "{text} Which of these people is the {job}?",
        "{text} The {job} is who?",
        "{text} Tell me who is the {job}.",
        "{text} What is the {job} called?",
        "{text} Which person works as a {job}?",
    ),
    "who-room": (
        "{text} In which room does the {job} work?",
        "{text} What is the room number of the {job}?",
        "Text: {text} Give the room of the {job}.",
        "{text} Find the room of the {job}.",
        "{text} Where does the {job} work? Give the room number.",
        "{text} Say the room number of the {job}.",
        "{text} Which room does the {job} work in?",
        "{text} The {job} works in which room?",
        "{text} Tell me the room of the {job}.",
        "{text} What room is the {job} in?",
        "{text} Which room belongs to the {job}?",
    ),
}


def extract(words: Wordings, level: int) -> Made:
    """One to five people, each in a sentence; asked for a job, a town, a room, and for the person by the job."""
    count = (1, 2, 3, 4, 4, 5)[level - 1]
    people = words.some(_PEOPLE, count)
    jobs, towns = words.some(_JOBS, count), words.some(_TOWNS, count)
    rooms = words.some(_ROOMS, count)
    told = [
        words.pick(_TELL).format(who=w, job=j, town=t, room=r)
        for w, j, t, r in zip(people, jobs, towns, rooms, strict=True)
    ]
    i = words.number(0, count - 1)
    asked = words.pick(["job", "town", "room"] if level < 3 else ["job", "town", "room", "who"])
    if level >= 5:
        asked = words.pick(["who", "who-room"])
    question = words.say(_ASK[asked], text=" ".join(told), who=people[i], job=jobs[i])
    numbers = [str(room) for room in rooms]
    values = {"job": jobs, "town": towns, "room": numbers, "who": people, "who-room": numbers}[asked]
    answer = values[i]
    brief = f"{people[i]}: {answer}." if asked not in ("who", "who-room") else f"{jobs[i]}: {answer}."
    others = tuple(value for value in values if value != answer)
    return Made(question, (answer,), "contains", brief, f"{told[i]} {brief}", others)


def _number(question: str, answer: int, brief: str, detailed: str) -> Made:
    return Made(question, (str(answer),), "number", brief, detailed)
