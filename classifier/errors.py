"""Errors of the classifier, one type per thing the caller can do about it."""

from classifier.decision import Exclusion


class ClassifierError(Exception):
    """Base of all errors raised by `classifier`."""


class ArtefactError(ClassifierError):
    """An artefact folder is missing, corrupt, of another schema or too large. Use another version or train one."""


class PolicyInputsError(ClassifierError, ValueError):
    """The inputs of the policy are invalid (lengths, ranges, order of costs). Fix the caller."""


class NoTierAllowedError(ClassifierError):
    """Every tier is excluded for this request; `exclusions` has the reasons, `why` has them as a text. Relax one."""

    def __init__(self, exclusions: list[Exclusion]) -> None:
        self.why = "; ".join(f"tier {e.tier}: {e.reason}" for e in exclusions)
        super().__init__(f"No tier may answer this request ({self.why}). Relax one of these constraints.")
        self.exclusions = exclusions


class TrainingDataError(ClassifierError):
    """Training rows are missing or inconsistent; the message names the file or field. Fix the data."""


class CheckpointError(ArtefactError):
    """A checkpoint folder lacks a file, has weights that are not safetensors, or has another hash than expected."""


class PromptFileError(ClassifierError):
    """A file of prompts cannot be read; the message names the line and what it must be. Fix the file."""
