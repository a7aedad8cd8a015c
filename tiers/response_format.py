"""The form of an answer that a chat asks for, `response_format`: requests, jobs and records keep it as it was given."""

from typing import Any

Format = dict[str, Any]


def schema_format(name: str, schema: dict[str, Any]) -> Format:
    """Return the form of an answer that follows a schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def schema_of(form: Format | None) -> dict[str, Any] | None:
    """Return the JSON schema of a form, also of one without its envelope; None if it has none."""
    if not isinstance(form, dict):
        return None
    envelope = form.get("json_schema")
    if isinstance(envelope, dict):
        schema = envelope.get("schema")
        return schema if isinstance(schema, dict) else None
    is_schema = any(key in form for key in ("properties", "$ref", "items", "enum", "anyOf"))
    return form if is_schema else None


def is_strict(form: Format | None) -> bool:
    """Whether the caller asks that its schema is obeyed exactly."""
    envelope = None if form is None else form.get("json_schema")
    return isinstance(envelope, dict) and bool(envelope.get("strict"))


def follows_schema(form: Format | None) -> bool:
    return form is not None and form.get("type") == "json_schema"


def is_object(form: Format | None) -> bool:
    """Whether any JSON object is asked for."""
    return form is not None and form.get("type") == "json_object"


def is_text(form: Format | None) -> bool:
    """Whether nothing is asked of the text."""
    return form is None or form.get("type") == "text"
