"""The whole application on this machine: `application.py`, and HAProxy before it."""
