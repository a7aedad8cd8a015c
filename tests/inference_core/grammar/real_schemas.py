"""Fifty JSON schemas like those of applications: extraction, classification, tool arguments, forms, configurations."""

from typing import Any

Schema = dict[str, Any]


def obj(required: list[str] | None = None, /, **properties: Schema) -> Schema:
    """A closed object; everything is required unless `required` says otherwise."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def text(most: int = 30, least: int = 0) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most}


def whole(low: int = 0, high: int = 1000) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def real(low: float = 0, high: float = 1) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high, "multipleOf": 0.01}


def one_of(*values: object) -> Schema:
    return {"enum": list(values)}


def some(items: Schema, most: int = 3, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


FLAG: Schema = {"type": "boolean"}
DATE: Schema = {"type": "string", "format": "date"}
TIME: Schema = {"type": "string", "format": "date-time"}
UUID: Schema = {"type": "string", "format": "uuid"}
IPV4: Schema = {"type": "string", "format": "ipv4"}


def like(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


ADDRESS = obj(street=text(), city=text(20), postcode=like("^[0-9]{5}$"), country=like("^[A-Z]{2}$"))
LINE = obj(sku=like("^[A-Z]{3}-[0-9]{4}$"), quantity=whole(1, 99), unit_price=real(0, 500))
TREE: Schema = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": text(10),
                "children": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        },
        "leaf": obj(name=text(10)),
    },
    "$ref": "#/$defs/node",
}

SCHEMAS: list[Schema] = [
    obj(sentiment=one_of("positive", "neutral", "negative")),
    obj(sentiment=one_of("positive", "neutral", "negative"), confidence=real(), reason=text(60)),
    obj(name=text(), age=whole(0, 120), email=like(r"^[a-z0-9.]{1,20}@[a-z]{2,12}\.(com|org)$")),
    obj(["name"], name=text(), nickname=text(15), age=whole(0, 120)),
    ADDRESS,
    obj(id=UUID, created=TIME, active=FLAG),
    obj(order_id=like("^ORD-[0-9]{6}$"), lines=some(LINE, 2, 1), ship_to=ADDRESS),
    obj(title=text(40), authors=some(text(20), 3, 1), year=whole(1800, 2030), abstract=text(80)),
    obj(languages=some(one_of("en", "de", "fr", "es", "zh"), 4, 1)),
    obj(intent=one_of("book", "cancel", "change", "ask"), slots=obj(date=maybe(DATE), seats=maybe(whole(1, 9)))),
    obj(steps=some(obj(explanation=text(50), output=text(30)), 3, 1), final_answer=text(20)),
    obj(city=text(20), unit=one_of("celsius", "fahrenheit"), days=whole(1, 14)),
    obj(
        query=text(40),
        limit=whole(1, 50),
        sort=one_of("asc", "desc"),
        filters=some(obj(field=text(10), value=text(10)), 2),
    ),
    obj(latitude=real(-90, 90), longitude=real(-180, 180)),
    obj(answer=one_of("A", "B", "C", "D")),
    obj(is_spam=FLAG, score=real()),
    some(obj(entity=text(20), kind=one_of("person", "place", "organisation")), 4, 1),
    some(whole(0, 9), 5, 5),
    some(text(8), 3, 2),
    obj(matrix=some(some(whole(0, 9), 2, 2), 2, 2)),
    TREE,
    obj(
        shape={
            "anyOf": [
                obj(kind={"const": "circle"}, radius=real(0, 10)),
                obj(kind={"const": "square"}, side=real(0, 10)),
            ]
        }
    ),
    obj(host=IPV4, port=whole(1, 65535), tls=FLAG),
    obj(cron=like(r"^([0-9]|[1-5][0-9]) ([0-9]|1[0-9]|2[0-3]) \* \* [0-6]$"), command=text(20)),
    obj(colour=like("^#[0-9a-f]{6}$"), opacity=real()),
    obj(version=like("^[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9]{1,2}$"), changelog=some(text(40), 3, 1)),
    obj(first=text(15), last=text(15), phone=like("^\\+[0-9]{1,3} [0-9]{6,10}$")),
    obj(invoice=like("^[0-9]{4}/[0-9]{3}$"), due=DATE, total=real(0, 9999), paid=FLAG),
    obj(question=text(60), options=some(text(20), 4, 4), correct=whole(0, 3)),
    obj(summary=text(100), keywords=some(text(12), 5, 1)),
    obj(["priority"], priority=one_of(1, 2, 3), assignee=text(15), labels=some(one_of("bug", "feature", "docs"), 2)),
    obj(symptom=text(30), severity=whole(1, 10), since=maybe(DATE), medication=some(text(15), 2)),
    obj(ticker=like("^[A-Z]{1,5}$"), action=one_of("buy", "sell", "hold"), shares=whole(1, 500)),
    obj(
        temperature=real(-30, 50),
        humidity=whole(0, 100),
        wind=obj(speed=real(0, 60), direction=one_of("N", "E", "S", "W")),
    ),
    obj(sql=text(80), explanation=text(60)),
    obj(package=text(20), licence=one_of("MIT", "Apache-2.0", "GPL-3.0", None), stars=whole(0, 99999)),
    obj(recipe=text(20), servings=whole(1, 12), ingredients=some(obj(item=text(15), grams=whole(1, 999)), 3, 1)),
    obj(vowels=some(one_of("a", "e", "i", "o", "u"), 5)),
    obj(translation=text(60), formal=FLAG),
    obj(speaker=text(15), lines=some(text(40), 2, 1), scene=maybe(text(20))),
    obj(**{"first name": text(10), "e-mail?": text(20), 'with "quotes"': FLAG}),
    obj(
        name={"type": ["string", "null"], "maxLength": 10},
        size={"type": ["integer", "string"], "maximum": 99, "minimum": 0, "maxLength": 4},
    ),
    obj(start=TIME, end=TIME, attendees=some(text(15), 3), location=maybe(text(20))),
    obj(move=like("^[a-h][1-8][a-h][1-8][qrbn]?$"), comment=text(40)),
    obj(ratio=real(), count=whole(0, 99), empty=obj()),
    {"type": "object", "additionalProperties": whole(0, 9), "minProperties": 1, "maxProperties": 1},
    {
        "type": "object",
        "properties": {"id": whole()},
        "required": ["id"],
        "additionalProperties": False,
        "description": "Ünïcode",
    },
    {"anyOf": [obj(ok={"const": True}, value=text(20)), obj(ok={"const": False}, error=text(20))]},
    {"allOf": [obj(["a"], a=whole(0, 9), b=text(5)), {"required": ["b"]}]},
    {"type": "string", "enum": ["yes", "no", "unknown"]},
]
