"""Sets up a process's telemetry at its start: the log, and error reports."""

from gateway.base.logs.log_format import configure_logging
from gateway.base.settings import Settings
from gateway.telemetry.error_reports import report_errors


def set_up_telemetry(settings: Settings, role: str) -> None:
    """Set up the process with this `role`. Raises `SettingsError` for an unusable DSN."""
    configure_logging(settings.log_level, settings.log_format)
    send = None
    if settings.error_report_dsn:
        from gateway.telemetry.sentry import sentry_sender

        send = sentry_sender(settings.error_report_dsn)
    report_errors(role, send)
