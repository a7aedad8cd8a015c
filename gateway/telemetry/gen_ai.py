"""What OpenTelemetry's semantic conventions for generative AI call the things that traces and metrics both name."""

_OPERATIONS = {"completion": "text_completion"}


def operation_name(api: str) -> str:
    """`gen_ai.operation.name` of a record's `api`."""
    return _OPERATIONS.get(api, api)
