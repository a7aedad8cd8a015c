"""Record, sample, verify, label, retrain, promote: the loop that keeps routing honest."""
