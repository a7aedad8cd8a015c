"""Endpoints for operators about answers, labels, versions of the classifier and experiments."""
