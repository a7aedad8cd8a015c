"""Names of OpenTelemetry's semantic conventions for generative AI, used by traces and metrics."""

_OPERATIONS = {"completion": "text_completion"}


def operation_name(api: str) -> str:
    """Return `gen_ai.operation.name` of a record's `api`."""
    return _OPERATIONS.get(api, api)
