"""Tests of the NPU backend that run on hardware and on the emulation alike."""
