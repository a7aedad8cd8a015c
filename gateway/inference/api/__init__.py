"""The APIs of inference: endpoints, reading of requests, writing of answers."""
