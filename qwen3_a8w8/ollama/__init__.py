"""Ollama's API: its bodies, and their conversion to chat and text completions and back."""
