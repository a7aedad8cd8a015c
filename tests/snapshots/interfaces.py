"""What programs and people outside rely on, as sorted lines: one line per parameter, field, metric, setting or column.

Descriptions are left out: texts may change, interfaces may not.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection, inspect

from gateway.base.configuration import variable_of
from gateway.base.settings import Settings
from gateway.cli import main

Json = dict[str, Any]
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


class OpenApiLines:
    """Lines of an OpenAPI document. A schema with a title is shown once, and named where it is used."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self._schemas: dict[str, list[str]] = {}

    def lines(self) -> list[str]:
        """Operations with their parameters, bodies and responses; then the fields of every schema."""
        operations = list(self._operations())
        return sorted(operations) + sorted(line for lines in self._schemas.values() for line in lines)

    def _operations(self) -> Iterator[str]:
        for path, item in self._document["paths"].items():
            for method in METHODS:
                if (operation := item.get(method)) is None:
                    continue
                name = f"{path} {method.upper()}"
                yield f"{name} = {operation['operationId']}"
                for parameter in operation.get("parameters", []):
                    required = " required" if parameter.get("required") else ""
                    kind = self._type(parameter["schema"])
                    yield f"{name} {parameter['in']} {parameter['name']}: {kind}{required}"
                yield from self._contents(f"{name} body", operation.get("requestBody", {}))
                for status, response in operation["responses"].items():
                    yield from self._contents(f"{name} {status}", response)

    def _contents(self, name: str, holder: Json) -> Iterator[str]:
        for header, value in holder.get("headers", {}).items():
            yield f"{name} header {header}: {self._type(value.get('schema', {}))}"
        for media_type, content in holder.get("content", {}).items():
            yield f"{name} {media_type}: {self._type(content.get('schema', {}))}"

    def _type(self, schema: Json) -> str:
        if "$ref" in schema:
            return self._type(self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema:
                joined = f" {'&' if word == 'allOf' else '|'} ".join(map(self._type, schema[word]))
                return joined + self._details(schema, word)
        if schema.get("type") == "array":
            return f"[{self._type(schema.get('items', {}))}]" + self._details(schema, "type", "items")
        if "properties" in schema:
            return self._named(schema)
        if isinstance(schema.get("additionalProperties"), dict):
            return f"{{{self._type(schema['additionalProperties'])}}}"
        return str(schema.get("type", "any")) + self._details(schema, "type")

    def _named(self, schema: Json) -> str:
        required = schema.get("required", [])
        fields = [
            f"{field}: {self._type(value)}{' required' if field in required else ''}"
            for field, value in sorted(schema["properties"].items())
        ]
        title, number = schema.get("title", "object"), 1
        name = title
        # Two schemas of one title: the later is numbered.
        while self._schemas.setdefault(name, [f"{name}.{field}" for field in fields]) != [
            f"{name}.{field}" for field in fields
        ]:
            number += 1
            name = f"{title}#{number}"
        return name

    @staticmethod
    def _details(schema: Json, *shown: str) -> str:
        rest = {key: value for key, value in schema.items() if key not in (*shown, *_PROSE)}
        return f" {json.dumps(rest, sort_keys=True)}" if rest else ""


_PROSE = ("description", "summary", "title", "examples", "example")


def command_lines(command: click.Command = main, path: str = "aio") -> Iterator[str]:
    """Every command, at all levels, with its arguments and options."""
    context = click.Context(command, info_name=path.rpartition(" ")[2])
    yield path
    for parameter in command.params:
        names = "/".join([*parameter.opts, *parameter.secondary_opts])
        facts = {
            "required": parameter.required,
            "multiple": parameter.nargs != 1 or getattr(parameter, "multiple", False),
            "flag": getattr(parameter, "is_flag", False),
            "env": parameter.envvar,
            "hidden": getattr(parameter, "hidden", False),
        }
        shown = "".join(f" {fact}={value}" for fact, value in facts.items() if value)
        kind = "argument" if isinstance(parameter, click.Argument) else "option"
        yield f"{path} {kind} {names}: {_kind(parameter.type)}{shown}{_default(parameter, context)}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from command_lines(child, f"{path} {name}")


def _kind(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return f"choice({', '.join(map(str, kind.choices))})"
    return repr(kind) if isinstance(kind, (click.types._NumberRangeBase, click.Tuple)) else kind.name


def _default(parameter: click.Parameter, context: click.Context) -> str:
    default = parameter.to_info_dict().get("default")
    return "" if default in (None, False, ()) or callable(parameter.default) else f" default={default!r}"


def metric_lines(registry: CollectorRegistry) -> Iterator[str]:
    """Every family of `registry`, whether it has samples yet or not, with its type and labels."""
    for collector in registry._collector_to_names:
        for family in collector.collect():
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
            yield f"{family.name} {family.type} {{{', '.join(labels)}}}"


def settings_lines() -> Iterator[str]:
    """Every setting: its variable, its field, its type with limits, its default."""
    [schema] = msgspec.json.schema(Settings)["$defs"].values()
    for name, field in schema["properties"].items():
        limits = {key: value for key, value in field.items() if key != "default"}
        yield f"{variable_of(name)} {name} {json.dumps(limits, sort_keys=True)} default {json.dumps(field['default'])}"


def schema_lines(connection: Connection) -> Iterator[str]:
    """Every table with its columns, keys and indexes."""
    found = inspect(connection)
    for table in found.get_table_names():
        for column in found.get_columns(table):
            facts = f"{column['type']}{'' if column['nullable'] else ' not null'}"
            default = f" default {column['default']}" if column["default"] is not None else ""
            yield f"{table}.{column['name']}: {facts}{default}"
        yield f"{table} primary key ({', '.join(found.get_pk_constraint(table)['constrained_columns'])})"
        for key in found.get_foreign_keys(table):
            there = f"{key['referred_table']}({', '.join(key['referred_columns'])})"
            yield f"{table} foreign key ({', '.join(key['constrained_columns'])}) -> {there} {_sorted(key['options'])}"
        for constraint in found.get_unique_constraints(table):
            yield f"{table} unique ({', '.join(constraint['column_names'])})"
        for check in found.get_check_constraints(table):
            yield f"{table} check {' '.join(str(check['sqltext']).split())}"
        for index in found.get_indexes(table):
            columns = ", ".join(column or "expression" for column in index["column_names"])
            unique = " unique" if index["unique"] else ""
            yield f"{table} index {index['name']} ({columns}){unique} {_sorted(index.get('dialect_options', {}))}"


def _sorted(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={options[key]}" for key in sorted(options))
