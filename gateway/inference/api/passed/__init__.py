"""Endpoints of OpenAI's and Cohere's that are passed through to a server which has them."""
