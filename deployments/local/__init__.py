"""The whole application on one machine: `application.py`, and HAProxy in front of it."""
