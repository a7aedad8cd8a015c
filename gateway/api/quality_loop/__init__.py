"""Endpoints for operators about answers, labels, classifier versions and experiments."""
