"""What every room stands on: settings, errors, ids, logs, stores, knobs, the request and its caller."""
