"""Clients of other projects, run against one server."""
