"""Names for kinds of prompts: a description of their features, and characteristic words where texts may be stored.

A word is shown only if several different prompts have it, and prompts of several keys where the kind has several, so
that a name reveals no single prompt. Without texts the stored feature counts describe the prompts.
"""

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import likeliest
from classifier.features.routing_input import routing_input
from classifier.features.stray_text import tokenise
from classifier.features.surface_features import DOMAINS, FEATURE_NAMES
from migrations.tables.quality import training_rows
from migrations.tables.requests import requests, routing_decisions
from migrations.tables.tenancy import api_keys
from quality.estimates.verified_sample import Kind
from quality.records.record import predicted_of
from quality.verification.training_rows import vector_of

# Only the newest of each are read; longer conversations are left out.
_TEXTS, _ROWS, _MOST_CHARS = 500, 500, 8000
# The fewest different prompts that share a word of a name.
LEAST_PROMPTS = 5
_WORDS = 4
# About one standard error.
_LEAST_SCORE = 1.0
_SHORT, _LONG = 20, 120
_SECONDS = 60.0
_DOMAIN_NAMES = {"maths": "mathematics", "commonsense": "everyday life", "writing": "writing tasks"}
_STOP_WORDS = """a about above after again all also am an and any are as at be because been before being below between
both but by can could did do does doing done dont down during each every few for from further get give given go had has
have having he her here him his how i if in into is it its just know let like make many may me might more most much must
my need no nor not now of off on once one only or other our out over own please same she should show so some such take
tell than thank thanks that the their them then there these they this those through to too two under until up use used
using very want was we were what when where which while who whom why will with without would write yes you your
der die das und ist ein eine nicht wie mit für von den dem zu les des une est que qui dans pour pas los las una por para
con como del"""
_STOPPED = frozenset(_STOP_WORDS.split())


class _Seen(NamedTuple):
    """One prompt: its kinds, its key, and its distinct words."""

    kinds: tuple[Kind, ...]
    key: str | None
    words: frozenset[str]


class KindNames:
    """The current names, cached for a minute."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._names: dict[Kind, str] = {}
        self._read_at = -math.inf

    async def now(self) -> Mapping[Kind, str]:
        """Return the names by kind; a kind without one has `plain_name`."""
        at = time.monotonic()
        if not self._names or at - self._read_at >= _SECONDS:
            self._names, self._read_at = await kind_names(self._engine), at
        return self._names


async def kind_names(engine: AsyncEngine) -> dict[Kind, str]:
    """Return names of the kinds of the newest texts and labels."""
    decided, length = routing_decisions.c, func.length(cast(requests.c.messages, Text))
    texts = (
        select(requests.c.key_id, cast(requests.c.messages, Text), decided.decision)
        .join(routing_decisions, decided.request_id == requests.c.request_id)
        .where(requests.c.messages.is_not(None), length <= _MOST_CHARS)
        .order_by(requests.c.created_at.desc())
        .limit(_TEXTS)
    )
    row = training_rows.c
    labels = (
        select(row.key_id, row.app, row.classes, row.features)
        .where(row.features.is_not(None))
        .order_by(row.training_row_id.desc())
        .limit(_ROWS)
    )
    async with engine.connect() as connection:
        asked = (await connection.execute(texts)).all()
        labelled = (await connection.execute(labels)).all()
        keys = {str(key) for key, *_ in (*asked, *labelled) if key is not None}
        known = await connection.execute(select(api_keys.c.key_id, api_keys.c.name).where(api_keys.c.key_id.in_(keys)))
        owners = {str(key): str(name) for key, name in known}
    return await asyncio.to_thread(_named, asked, labelled, owners)


def plain_name(kind: Kind, owners: Mapping[str, str] | None = None) -> str:
    """Return a name for a kind without any prompt of it; `owners` maps keys to names."""
    if kind.by == "all":
        return "all prompts"
    if kind.complexity is not None:
        return f"{kind.complexity.name} prompts"
    whose = "requests without a key" if kind.key_id is None else (owners or {}).get(kind.key_id, kind.key_id)
    return f"{whose}, {'with a system prompt' if kind.app else 'no system prompt'}"


def characteristic_words(seen: Sequence[_Seen], kind: Kind) -> list[str]:
    """Return the words that distinguish the prompts of `kind` from those of other kinds of its sort, by the z-score of
    the log odds (Monroe, Colaresi and Quinn 2008, section 3.3)."""
    mine = [one for one in seen if kind in one.kinds]
    others = [one for one in seen if kind not in one.kinds]
    here, there = _counts(mine), _counts(others)
    several_keys = len({one.key for one in mine}) > 1
    scores: dict[str, float] = {}
    for word, count in here.items():
        if count < LEAST_PROMPTS:
            continue
        if several_keys and len({one.key for one in mine if word in one.words}) < 2:
            continue
        if not others:
            # Without other prompts to compare with, use the most common words.
            if 2 * count >= len(mine):
                scores[word] = float(count)
            continue
        a, b = count + 0.5, there[word] + 0.5
        odds = math.log(a / (len(mine) - count + 0.5)) - math.log(b / (len(others) - there[word] + 0.5))
        score = odds / math.sqrt(1 / a + 1 / b)
        if score >= _LEAST_SCORE:
            scores[word] = score
    return sorted(scores, key=lambda word: (-scores[word], word))[:_WORDS]


def words_of(turn: str) -> frozenset[str]:
    """Return the words of a turn that a name may have: letters only, no stop words."""
    return frozenset(
        word for word in tokenise(turn) if word.isalpha() and 3 <= len(word) <= 20 and word not in _STOPPED
    )


def look_of(features: np.ndarray) -> str:
    """Describe in words what prompts with `features` [n, f] look like."""
    value = {name: features[:, place] for place, name in enumerate(FEATURE_NAMES) if place < features.shape[1]}
    words = float(np.median(np.expm1(value["log_words"])))
    size = "short" if words < _SHORT else "long" if words >= _LONG else "medium-length"
    asks = value["question_marks"] + value["starts_with_what"] + value["starts_with_how"] + value["starts_with_why"] > 0
    if (value["code_markers"] > 0).mean() >= 0.5:
        what = "prompts with code"
    elif (value["multiple_choice_options"] > 0).mean() >= 0.5:
        what = "multiple-choice questions"
    else:
        what = "questions" if asks.mean() >= 0.5 else "instructions"
    shares = {domain: float(value[f"has_{domain}"].mean()) for domain in DOMAINS}
    most = max(shares, key=lambda domain: shares[domain])
    about = f", often on {_DOMAIN_NAMES.get(most, most)}" if shares[most] >= 0.3 else ""
    return f"{size} {what}{about}"


def _named(
    asked: Iterable[Sequence[Any]], labelled: Iterable[Sequence[object]], owners: Mapping[str, str]
) -> dict[Kind, str]:
    seen = _seen(asked)
    features: defaultdict[Kind, list[np.ndarray]] = defaultdict(list)
    for key, app, classes, vector in labelled:
        if isinstance(vector, bytes) and len(vector_of(vector)) >= len(FEATURE_NAMES):
            for kind in _kinds(classes if isinstance(classes, list) else [], _text(key), _text(app) or ""):
                features[kind].append(vector_of(vector)[: len(FEATURE_NAMES)])
    found = {}
    for kind in {*features, *(kind for one in seen for kind in one.kinds)}:
        look = look_of(np.stack(features[kind])) if len(features[kind]) >= LEAST_PROMPTS else ""
        words = ", ".join(characteristic_words(seen, kind))
        said = f"{look} ({words})" if look and words else look or words
        found[kind] = plain_name(kind, owners) + (f": {said}" if said else "")
    return found


def _seen(asked: Iterable[Sequence[Any]]) -> list[_Seen]:
    """Return each distinct turn once, from the newest request with it."""
    turns: set[str] = set()
    found = []
    for key, messages, decision in asked:
        try:
            given = routing_input(_messages(str(messages)))
            classes = predicted_of(decision).classes
        except msgspec.ValidationError:
            # The message has parts that are not text, or another release wrote it.
            continue
        request = given.request.turn
        if request not in turns:
            turns.add(request)
            owner = _text(key)
            found.append(_Seen(_kinds(classes, owner, given.app), owner, words_of(request)))
    return found


def _kinds(classes: Sequence[float], key: str | None, app: str) -> tuple[Kind, ...]:
    application = Kind(by="application", key_id=key, app=app)
    if not classes:
        return (application,)
    return Kind(by="class", complexity=likeliest(classes)), application


def _counts(seen: Iterable[_Seen]) -> Counter[str]:
    return Counter(word for one in seen for word in one.words)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


_messages = msgspec.json.Decoder(list[dict[str, str]]).decode
