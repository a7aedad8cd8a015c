"""Configurations of LiteLLM, Portkey and Bifrost as a catalogue and settings of AIO, for `aio init --from`."""
