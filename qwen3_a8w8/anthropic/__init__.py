"""Anthropic's Messages API: its bodies, and their conversion to chat requests and back."""
