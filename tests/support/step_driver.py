"""Drives an engine core and a fake runner as the engine and the router do, failures included."""

from collections import deque

from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import execute_step
from qwen3_a8w8.errors import StepFailedError
from tests.support.fakes import FakeRunner


class StepDriver:
    """Collects what each sequence gives and how it ends."""

    def __init__(self, capabilities, config, **core_options):
        self.runner = FakeRunner(capabilities)
        self.core = EngineCore(capabilities, config, **core_options)
        self.in_flight = deque()
        self.tokens = {}
        self.ends = {}

    def add(self, request):
        (seq_id,) = self.core.add(request)
        self.tokens[seq_id] = []
        return seq_id

    def add_batch(self, requests):
        ids = self.core.add_batch(requests)
        self.tokens.update((i, []) for i in ids)
        return ids

    def abort(self, seq_id):
        event = self.core.abort(seq_id)
        if event is not None:
            self.take(event)

    def fail_all(self, error):
        self.in_flight.clear()
        for event in self.core.fail_all(error):
            self.take(event)

    def take(self, event):
        assert event.seq_id not in self.ends, "event of a sequence that has ended"
        self.tokens[event.seq_id] += event.token_ids
        if event.finish_reason is not None:
            self.ends[event.seq_id] = event

    def send(self):
        """Plans as many steps as may be in flight."""
        while plan := self.core.plan_step():
            self.in_flight.append(plan)

    def step(self):
        """Completes one step; whether there was anything to do."""
        self.send()
        if not self.in_flight:
            return False
        self.complete()
        return True

    def complete(self):
        """Carries out the oldest plan that is in flight."""
        plan = self.in_flight.popleft()
        try:
            answer = execute_step(self.runner, plan)
        except StepFailedError as error:
            answer = error
        for event in self.core.take(answer):
            self.take(event)

    def run(self, max_steps=2000):
        """Runs until there is no work."""
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError("the engine doesn't come to rest")
