"""Steps that wait until a test lets them go on, in whatever process they run."""

import contextlib
import math
import time
from pathlib import Path

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import StepPlan, StepResult

GATED_MODEL = "tests.support.step_gate:load_gated_model"


class StepGate:
    """Open, or closed to sequences with a number of output tokens; a file that all processes see.

    A gate that is closed before requests are sent keeps them under way: they can't end before it
    opens, however fast the model is.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "gate"

    def close(self, num_tokens: int) -> None:
        """From now on no step begins with a sequence that has `num_tokens` of output or more."""
        beside = self._path.with_suffix(".new")
        beside.write_text(str(num_tokens))
        beside.replace(self._path)

    def open(self) -> None:
        """Lets all steps go on; may be called again."""
        self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def closed(self, num_tokens: int):
        """Closed at first, and open in any case at the end."""
        self.close(num_tokens)
        try:
            yield
        finally:
            self.open()

    def wait(self, num_tokens: int) -> None:
        """Returns once the gate is open to a sequence with that many tokens of output."""
        while num_tokens >= self._limit():
            time.sleep(0.001)

    def _limit(self) -> float:
        try:
            return int(self._path.read_text())
        except FileNotFoundError:
            return math.inf


class GatedRunner:
    """A runner each of whose steps waits at a gate first."""

    def __init__(self, runner, gate: StepGate) -> None:
        self.capabilities = runner.capabilities
        self.prepare_grammar = runner.prepare_grammar
        self.close = runner.close
        self._runner = runner
        self._gate = gate
        self._num_tokens: dict[int, int] = {}  # of output, by sequence

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step, once the gate is open to all its sequences."""
        for seq_id in plan.release:
            self._num_tokens.pop(seq_id, None)
        for start in plan.start:
            self._num_tokens[start.seq_id] = len(start.output_token_ids)
        rows = plan.decode.rows if plan.decode else ()
        seq_ids = [work.seq_id for work in (*plan.prefill, *rows)]
        self._gate.wait(max((self._num_tokens[seq_id] for seq_id in seq_ids), default=-1))
        result = self._runner.execute(plan)
        for token in result.sampled:
            self._num_tokens[token.seq_id] += 1
        return result


def load_gated_model(model: str, config: EngineConfig) -> GatedRunner:
    """A runner factory: the real model of a directory, whose gate lies there too."""
    # Imported here: fake runners need no torch.
    from qwen3_a8w8.runner.model_runner import ModelRunner

    return GatedRunner(ModelRunner.load(model, config), StepGate(Path(model)))
