"""Reads Hugging Face folders: config.json and safetensors files, quantised or not."""
