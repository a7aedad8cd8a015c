"""Texts that users paste under a question, generated from a seed: logs, tables, configuration, code, mails, contracts.

`paste(kind, seed, lines)` is about `lines` long. The texts mean something to a reader (services that fail one after the
other, functions that share state), so that easy and hard questions about them make sense.
"""

import json
import random
from collections.abc import Callable

SERVICES = ("gateway", "orders", "billing", "stock", "search", "mailer", "auth", "reports")
TOWNS = ("Leeds", "Graz", "Porto", "Gdansk", "Lyon", "Izmir", "Osaka", "Quito", "Tampere", "Cork")
NAMES = ("Anna Weiss", "Tom Reed", "Li Wen", "Sara Haddad", "Pedro Cruz", "Ines Roy", "Jan Kowal", "Mia Holm")
GOODS = ("lamp", "desk", "chair", "kettle", "rug", "mirror", "shelf", "clock", "vase", "stool")
EVENTS = (
    "request completed status=200",
    "connection acquired from pool",
    "cache miss for key",
    "retrying after timeout attempt=2",
    "slow query took longer than 500ms",
    "lock wait exceeded, transaction rolled back",
    "connection pool exhausted (50/50 in use)",
    "health check ok",
    "message redelivered, already applied",
    "certificate expires in 9 days",
)


def _log(draw: random.Random, lines: int) -> list[str]:
    found, at = [], 8 * 3600 + draw.randrange(3600)
    for _ in range(lines):
        at += draw.randrange(1, 9)
        level = draw.choices(("INFO", "WARN", "ERROR"), (8, 2, 1))[0]
        clock = f"{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}.{draw.randrange(1000):03}"
        event = f"{draw.choice(EVENTS)} id={draw.randrange(16**6):06x}"
        found.append(f"2026-03-0{draw.randrange(1, 4)} {clock} {level:5} [{draw.choice(SERVICES)}] {event}")
    return found


def _csv(draw: random.Random, lines: int) -> list[str]:
    found = ["order_id,customer,town,item,quantity,unit_price,ordered_at,returned"]
    for n in range(lines - 1):
        price, day = draw.randrange(500, 20_000) / 100, draw.randrange(1, 29)
        found.append(
            f"{10_000 + n},{draw.choice(NAMES)},{draw.choice(TOWNS)},{draw.choice(GOODS)},{draw.randrange(1, 6)},"
            f"{price:.2f},2026-02-{day:02},{draw.choice(('', '', '', 'yes'))}"
        )
    return found


def _json(draw: random.Random, lines: int) -> list[str]:
    devices = [
        {
            "id": f"dev-{draw.randrange(10**5):05}",
            "town": draw.choice(TOWNS),
            "firmware": f"2.{draw.randrange(9)}.{draw.randrange(20)}",
            "battery": draw.randrange(5, 101),
            "alarms": draw.sample(("tilt", "heat", "door", "smoke"), draw.randrange(3)),
        }
        for _ in range(max(1, lines // 9))
    ]
    return json.dumps({"site": draw.choice(TOWNS), "devices": devices}, indent=2).splitlines()


def _yaml(draw: random.Random, lines: int) -> list[str]:
    found = ["apiVersion: apps/v1", "kind: List", "items:"]
    while len(found) < lines:
        name = draw.choice(SERVICES)
        found += [
            "- kind: Deployment",
            f"  metadata: {{name: {name}, namespace: {draw.choice(('prod', 'staging'))}}}",
            f"  spec: {{replicas: {draw.randrange(1, 9)}}}",
            f"  image: registry.example.com/{name}:1.{draw.randrange(40)}",
            f"  resources: {{limits: {{cpu: {draw.randrange(1, 8)}00m, memory: {2 ** draw.randrange(7, 12)}Mi}}}}",
            f"  livenessProbe: {{path: /health, periodSeconds: {draw.choice((5, 10, 30))}}}",
        ]
    return found


def _trace(draw: random.Random, lines: int) -> list[str]:
    found = ["Traceback (most recent call last):"]
    for _ in range(max(1, (lines - 2) // 2)):
        name = draw.choice(SERVICES)
        call = draw.choice(("load", "commit", "send", "merge", "parse"))
        found.append(f'  File "/srv/app/{name}/{call}.py", line {draw.randrange(10, 400)}, in {call}_{name}')
        found.append(f"    return self.{call}(session, {name}_id, retries={draw.randrange(4)})")
    errors = (
        "KeyError: 'customer_id'",
        "sqlalchemy.exc.OperationalError: (psycopg.errors.DeadlockDetected) deadlock detected",
        "TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    )
    return [*found, draw.choice(errors)]


def _code(draw: random.Random, lines: int) -> list[str]:
    found = [
        "import threading",
        "import time",
        "",
        "balances = {}",
        "lock_a, lock_b = threading.Lock(), threading.Lock()",
    ]
    while len(found) < lines:
        name, field = draw.choice(SERVICES), draw.choice(GOODS)
        first, second = draw.sample(("lock_a", "lock_b"), 2)
        found += [
            "",
            "",
            f"def {draw.choice(('move', 'add', 'take', 'sync'))}_{name}_{field}(source, target, amount):",
            f"    if balances.get(source, 0) < amount:  # {field}",
            "        return False",
            f"    with {first}:",
            f"        time.sleep({draw.randrange(1, 9) / 1000})",
            f"        with {second}:",
            "            balances[source] = balances.get(source, 0) - amount",
            "            balances[target] = balances.get(target, 0) + amount",
            "    return True",
        ]
    return found


def _mail(draw: random.Random, lines: int) -> list[str]:
    said = (
        "I can do the {} delivery on the {}th, not earlier.",
        "We agreed on {} pieces at the old price; the {} per cent rise was never accepted.",
        "Please confirm the {} before Friday, the customer waits since the {}th.",
        "The {} in the last lot were scratched; we want a credit of {} euros.",
        "Fine with me, as long as the {} leaves by the {}th.",
        "I was on leave: who approved the {} order of {} units?",
    )
    found: list[str] = []
    while len(found) < lines:
        sender, receiver = draw.sample(NAMES, 2)
        found += [
            f"From: {sender}",
            f"To: {receiver}",
            f"Date: {draw.randrange(1, 29)} Feb 2026 {draw.randrange(8, 18)}:{draw.randrange(10, 60)}",
            f"Subject: Re: {draw.choice(GOODS)}s for {draw.choice(TOWNS)}",
            "",
            f"Hi {receiver.split()[0]},",
            *(draw.choice(said).format(draw.choice(GOODS), draw.randrange(2, 29)) for _ in range(draw.randrange(1, 4))),
            f"{sender.split()[0]}",
            "",
        ]
    return found


def _contract(draw: random.Random, lines: int) -> list[str]:
    clauses = (
        "The Supplier shall deliver the Goods to {town} within {n} days of each Order.",
        "Invoices are payable within {n} days; late payment bears interest at {k} per cent above the base rate.",
        "Either Party may terminate this Agreement on {n} days' written notice, subject to clause {k}.",
        "The Supplier's aggregate liability is limited to {k} times the annual Charges, save for clause {m}.",
        "The Customer shall not resell the Goods outside {town} without prior written consent.",
        "Confidential Information shall be kept secret for {k} years after the end of this Agreement.",
        "Prices are fixed for {n} days and may thereafter be adjusted once a year as set out in clause {m}.",
        "Notwithstanding clause {m}, the Supplier may suspend deliveries where payment is {n} days overdue.",
    )
    found = ["SUPPLY AGREEMENT", f"between {draw.choice(TOWNS)} Goods Ltd and {draw.choice(TOWNS)} Trade GmbH", ""]
    for n in range(1, max(2, lines - 2)):
        numbers = {"n": draw.choice((7, 14, 30, 60, 90)), "k": draw.randrange(2, 9), "m": draw.randrange(1, 20)}
        found.append(f"{n}. {draw.choice(clauses).format(town=draw.choice(TOWNS), **numbers)}")
    return found


def _article(draw: random.Random, lines: int) -> list[str]:
    sentences = (
        "The council of {town} has voted to close {n} of its {m} bus routes by spring.",
        "Residents say that the {goods} market brought {n} new jobs, although many of them are seasonal.",
        "A study of {m} households found that heating costs fell by {n} per cent after insulation.",
        "Critics point out that the figures from {town} count each visitor twice.",
        "The mayor, {name}, called the plan a first step and promised a review in {n} months.",
        "Similar schemes in {town} were abandoned when the subsidies ended.",
    )
    found = [f"{draw.choice(TOWNS)} rethinks its streets", ""]
    for _ in range(lines - 2):
        words = {"town": draw.choice(TOWNS), "goods": draw.choice(GOODS), "name": draw.choice(NAMES)}
        two = (draw.choice(sentences).format(n=draw.randrange(2, 40), m=draw.randrange(41, 900), **words) for _ in "ab")
        found.append(" ".join(two))
    return found


def _sql(draw: random.Random, lines: int) -> list[str]:
    found: list[str] = []
    tables: list[str] = []
    while len(found) < lines:
        table = f"{draw.choice(SERVICES)}_{draw.choice(GOODS)}{len(tables)}"
        found += [
            f"CREATE TABLE {table} (",
            "  id bigserial PRIMARY KEY,",
            f"  {draw.choice(GOODS)}_code varchar({draw.choice((8, 16, 64))}) NOT NULL,",
            f"  amount numeric({draw.randrange(8, 14)}, 2),",
            "  created_at timestamp without time zone DEFAULT now(),",
            *([f"  parent_id bigint REFERENCES {draw.choice(tables)} (id)"] if tables else ["  note text"]),
            ");",
        ]
        tables.append(table)
        if draw.random() < 0.5:
            found.append(f"CREATE INDEX ON {table} (created_at, amount);")
    return found


def _diff(draw: random.Random, lines: int) -> list[str]:
    found: list[str] = []
    while len(found) < lines:
        name, value = draw.choice(SERVICES), draw.randrange(2, 60)
        found += [
            f"diff --git a/src/{name}.py b/src/{name}.py",
            f"--- a/src/{name}.py",
            f"+++ b/src/{name}.py",
            f"@@ -{value},6 +{value},7 @@ def load_{name}(session):",
            "     rows = session.query(Order).filter(Order.open)",
            f"-    for row in rows.limit({value}):",
            f"+    for row in rows.limit({value * 10}).all():",
            f"+        row.seen += {draw.randrange(1, 3)}",
            "         yield row",
        ]
    return found


KINDS: dict[str, Callable[[random.Random, int], list[str]]] = {
    "log": _log,
    "csv": _csv,
    "json": _json,
    "yaml": _yaml,
    "trace": _trace,
    "code": _code,
    "mail": _mail,
    "contract": _contract,
    "article": _article,
    "sql": _sql,
    "diff": _diff,
}


def paste(kind: str, seed: int, lines: int) -> str:
    """Return the text of a kind of `KINDS` for a seed; the same text on every machine."""
    return "\n".join(KINDS[kind](random.Random(seed), lines))
