"""The closed-loop laboratory: recorded outcomes replayed through the real router, monitor and retrainer."""
