"""Which errors a user can fix: their messages say how, so they are shown without a traceback."""

from inference_core.extras import extra_of, install_command

# By name, so that `--help` and click's own errors import none of the packages below.
_EXPECTED = {
    "gateway.base.settings": {"SettingsError"},
    "tiers.errors": {"CatalogError", "TierUnavailableError"},
    "inference_core.errors": {"ModelFileError", "MemoryPlanError", "CoreGoneError", "CoreError", "InvalidRequestError"},
    "classifier.errors": {"ClassifierError"},
    "quality.store.database": {"DatabaseUrlError", "SchemaError", "DatabaseAwayError"},
    "quality.rollout.experiments": {"ExperimentError"},
    "quality.retraining.schedule": {"CronError"},
    "quality.records.redaction": {"RedactionError"},
    "quality.distillation.examples": {"ExampleFileError"},
    "quality.distillation.train": {"DistillationError", "NoGainError"},
    "quality.evaluation.tier_accuracy": {"TierMeasurementError", "ReportFileError"},
    "quality.evaluation.everyday_outcomes": {"EverydayOutcomesError"},
    "quality.learning.outcome_import": {"OutcomeFileError"},
    "gateway.operations.setup.found_tiers": {"SetupError"},
    "quality.retraining.training_process": {"TrainingProcessError"},
    "gateway.planning.backtests.log": {"BacktestLogError"},
    "gateway.tenancy.changes": {"TenancyError"},
    "gateway.base.errors": {"ApiError"},
    "gateway.planning.capacity.workload": {"PlanError", "TraceError"},
    "gateway.runtime.cluster.placement": {"ClusterError"},
    "gateway.processes.announcement": {"ServerStartError", "ServerStoppedError"},
}


def expected_error(error: Exception) -> bool:
    """Return whether the message of `error`'s type (or a base class) is meant for the user."""
    return any(kind.__name__ in _EXPECTED.get(kind.__module__, ()) for kind in type(error).__mro__)


def missing_extra(error: Exception) -> str | None:
    """Return what to install, if `error` is the import of a package that belongs to an extra; else None."""
    if not isinstance(error, ModuleNotFoundError) or (extra := extra_of(error.name)) is None:
        return None
    return f"this command needs {error.name}: {install_command(extra)}"
