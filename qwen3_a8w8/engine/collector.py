"""Puts the events of a call's sequences together into whole outputs.

Passive: it is fed by `engine.py` and knows neither runner nor schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from qwen3_a8w8.engine.request import EngineRequest, SequenceOutput, TokenEvent

EventHook = Callable[[int, int, TokenEvent], bool]
"""Called as (request index, index of the sequence in it, event); True ends the sequence with
finish_reason "stop", as after a stop string."""


@dataclass(slots=True)
class _Partial:
    request_index: int
    index: int
    request: EngineRequest
    events: list[TokenEvent] = field(default_factory=list)


class Collector:
    """The sequences of one call.

    Attributes:
        active: ids of those that have not ended.
    """

    def __init__(self, on_event: EventHook | None = None) -> None:
        self._on_event = on_event
        self._partials: dict[int, _Partial] = {}
        self.active: set[int] = set()

    @property
    def seq_ids(self) -> list[int]:
        """All ids, in the order in which they were expected."""
        return list(self._partials)

    def expect(self, request_index: int, request: EngineRequest, seq_ids: list[int]) -> None:
        """Announces the sequences of a request, before their first event."""
        for index, seq_id in enumerate(seq_ids):
            self._partials[seq_id] = _Partial(request_index, index, request)
            self.active.add(seq_id)

    def take(self, event: TokenEvent) -> bool:
        """Adds an event to its sequence; events after the end are ignored.

        Returns:
            Whether the hook wants the sequence to end here.

        Raises:
            EngineDeadError: the event carries it.
            RequestFailedError: the event carries it.
        """
        if event.seq_id not in self.active:
            return False
        if event.error is not None:
            raise event.error
        partial = self._partials[event.seq_id]
        is_ended_by_hook = self._on_event is not None and self._on_event(
            partial.request_index, partial.index, event
        )
        if is_ended_by_hook:
            event = replace(event, finish_reason="stop")
        partial.events.append(event)
        if event.finish_reason is not None:
            self.active.discard(event.seq_id)
        return is_ended_by_hook

    def outputs(self) -> list[SequenceOutput]:
        """Everything collected, in the order of requests; all sequences must have ended."""
        outputs = []
        for partial in self._partials.values():
            whole = TokenEvent.merged(partial.events)
            if whole.finish_reason is not None:
                outputs.append(
                    SequenceOutput(
                        request_index=partial.request_index,
                        index=partial.index,
                        prompt_token_ids=tuple(partial.request.prompt_token_ids),
                        token_ids=(*partial.request.output_token_ids, *whole.token_ids),
                        logprobs=whole.logprobs,
                        finish_reason=whole.finish_reason,
                        stop_token_id=whole.stop_token_id,
                        num_cached_tokens=whole.num_cached_tokens,
                        prompt_tokens=whole.prompt_tokens,
                    )
                )
        return outputs
