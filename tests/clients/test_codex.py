"""The Codex CLI runs a task with an edit against this server."""

import json

import pytest

from tests.clients.codex_support import codex_binary, run_codex, transcript_server

pytestmark = [pytest.mark.clients, pytest.mark.slow]

PATCH = """*** Begin Patch
*** Update File: calc.py
@@
 def add(a, b):
-    return a - b
+    return a + b
*** End Patch
"""
CHECK = "python3 -c 'import calc; print(calc.add(2, 3))'"


def call(name, **arguments):
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


TURNS = [
    "<think>\nI read the file first.\n</think>\n\nI look.\n"
    + call("exec_command", cmd="cat calc.py"),
    "<think>\nA sign is wrong.\n</think>\n\n" + call("apply_patch", input=PATCH),
    call("exec_command", cmd=CHECK),
    "add adds now.",
]


def test_codex_reads_edits_checks_and_reports(tmp_path):
    codex_binary()
    project = tmp_path / "project"
    project.mkdir()
    (project / "calc.py").write_text("def add(a, b):\n    return a - b\n", encoding="utf-8")
    with transcript_server(TURNS) as (base_url, runner):
        events = run_codex(base_url, tmp_path / "home", project, "Fix add in calc.py.")
    assert (project / "calc.py").read_text(encoding="utf-8") == (
        "def add(a, b):\n    return a + b\n"
    )
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    commands = [item for item in items if item["type"] == "command_execution"]
    assert [item["exit_code"] for item in commands] == [0, 0]
    assert commands[1]["aggregated_output"].strip() == "5"
    (change,) = (item for item in items if item["type"] == "file_change")
    assert change["status"] == "completed"
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [
        "I look.",
        "add adds now.",
    ]
    assert events[-1]["type"] == "turn.completed"
    assert len(runner.prompts) == len(TURNS)
    last = runner.prompts[-1]
    assert '"name": "apply_patch"' in last
    assert json.dumps({"input": PATCH}) in last
    assert "web_search" not in last.partition("</tools>")[0]
