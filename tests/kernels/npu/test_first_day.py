"""tools/npu_first_day.py runs to its end on the emulation, and names what fails there."""

import json

import pytest

from tests.support.npu_emulation import run_python

pytestmark = [pytest.mark.npu_contract, pytest.mark.slow]


@pytest.fixture
def first_day(tmp_path):
    """Runs the tool with options of the emulation: (exit status, JSON, report)."""

    def run(options, *arguments):
        path = tmp_path / "report.md"
        common = ("--quick", "--report", str(path), "--work-dir", str(tmp_path), "--limit-s", "600")
        done = run_python("tools/npu_first_day.py", *common, *arguments, options=options)
        assert path.is_file(), done.stdout + done.stderr
        found = json.loads(path.with_suffix(".json").read_text())
        return done.returncode, found, path.read_text()

    return run


def test_first_day_runs_every_part_and_names_the_ops_that_fail(first_day):
    options = "vary=npu_swiglu,antiquant5=0,missing=npu_dequant_swiglu_quant"
    code, found, report = first_day(options, "--models", "demo")
    assert code == 1
    assert found["machine"]["hardware"] == "EMULATION on the CPU"
    not_ok = {op["op"] for op in found["ops"] if op["status"] != "ok"}
    assert not_ok == {
        "npu_dequant_swiglu_quant",
        "npu_fused_infer_attention_score: paged int8, antiquant mode 5",
        "NPUGraph: capture, update of lengths, replay",  # it captures that attention
    }
    varying = [op["op"] for op in found["ops"] if op.get("is_batch_invariant") is False]
    assert varying == ["npu_swiglu"]
    for name in (*not_ok, *varying):
        assert any(line.startswith(f"op {name}: ") for line in found["failed"])
    names = [part["name"] for part in found["parts"]]
    assert names == [
        "ops",
        "doctor",
        "kernel suite",
        "generate, demo model",
        "check, demo",
        "bench kernels, demo",
        "bench engine, demo, B1 at 16",
        "bench engine, demo, B16 at 16",
    ]
    # The product works around what fails alone.
    assert [part["name"] for part in found["parts"] if part["status"] != "ok"] == []
    assert "pypto-serving" in report
    assert report.index("## What failed") < report.index("## Machine")


def test_first_day_goes_on_in_a_fresh_process_after_a_lost_device(first_day):
    code, found, _ = first_day("lost_after=40", "--ops-only")
    assert code == 1
    statuses = [op["status"] for op in found["ops"]]
    assert statuses.count("failed") == sum("507035" in op["detail"] for op in found["ops"])
    assert 0 < statuses.count("failed") < statuses.count("ok")
    assert [part["name"] for part in found["parts"]].count("ops") > 1


def test_first_day_without_a_device_says_so_for_every_op(first_day):
    code, found, _ = first_day("devices=0", "--ops-only")
    assert code == 1
    assert "no device" in found["machine"]["error"]
    assert all(op["status"] == "failed" for op in found["ops"])
