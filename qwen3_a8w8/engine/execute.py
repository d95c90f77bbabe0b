"""One plan on a runner, its failures told apart from the runner's death."""

from __future__ import annotations

import logging

from qwen3_a8w8.engine.plan import Runner, StepPlan, StepResult
from qwen3_a8w8.errors import StepFailedError

logger = logging.getLogger(__name__)


def execute_step(runner: Runner, plan: StepPlan) -> StepResult:
    """Runs one step.

    Raises:
        StepFailedError: the runner raised, whatever it was; the log has the traceback. What of
            the plan was carried out isn't known.
    """
    try:
        return runner.execute(plan)
    except Exception as error:
        logger.exception("step %d failed", plan.step_id)
        raise StepFailedError(f"step {plan.step_id}: {type(error).__name__}: {error}") from error
