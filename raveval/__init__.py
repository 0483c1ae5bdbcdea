"""Distributed batch evaluation of language models on Ray."""

__version__ = "0.1.0"
