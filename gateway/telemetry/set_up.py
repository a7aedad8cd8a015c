"""What a process tells of itself from its start on: the log, and reports of errors."""

from gateway.logs.log_format import configure_logging
from gateway.settings import Settings
from gateway.telemetry.error_reports import report_errors
from gateway.telemetry.sentry import sentry_sender


def set_up_telemetry(settings: Settings, role: str) -> None:
    """For a process that is `role`. Raises `SettingsError` for a DSN that nothing can be sent to."""
    configure_logging(settings.log_level, settings.log_format)
    report_errors(role, sentry_sender(settings.error_report_dsn) if settings.error_report_dsn else None)
