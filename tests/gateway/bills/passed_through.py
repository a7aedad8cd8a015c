"""Endpoints whose answers are passed through: images, speech, transcriptions, reranking, embeddings."""

from tests.gateway.bills.row import Row

ROWS: list[Row] = []
