"""AIO past one machine: cores placed on a Ray cluster, found, balanced, scaled and replaced. Loaded only on demand."""
