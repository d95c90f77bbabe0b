"""Stored responses for `previous_response_id`: bounded, in the memory of this process only.

Other ingress processes don't have them, and a restart loses them; so an application with
several ingress processes has no store, and its errors say so.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from deployments.http.errors import ResponseNotFoundError
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.responses.items import Item


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response with its conversation.

    Attributes:
        body: as it was sent, JSON.
        items: the whole conversation, including the response's output.
        num_output: how many of them are the response's output.
        is_background: it is, or was, generated in the background.
    """

    body: str
    items: tuple[Item, ...]
    num_output: int = 0
    is_background: bool = False

    @property
    def input_items(self) -> tuple[Item, ...]:
        """The items that the response answers, in their order."""
        return self.items[: len(self.items) - self.num_output]


class ResponseStore:
    """The latest responses; the least recently used are evicted first."""

    def __init__(self, max_responses: int, *, max_bytes: int = 64 * 2**20) -> None:
        """Creates an empty store.

        Args:
            max_responses: most responses; 0: none is stored.
            max_bytes: most bytes of all bodies and conversations together, as JSON text.
        """
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._responses: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()

    @property
    def is_open(self) -> bool:
        """Whether responses are stored."""
        return self._max_responses > 0

    def put(self, response_id: str, response: StoredResponse) -> None:
        """Stores a response; one that alone exceeds the size limit isn't stored."""
        size = len(response.body) + sum(len(repr(item)) for item in response.items)
        if response_id in self._responses:
            self._num_bytes -= self._responses.pop(response_id)[1]
        self._responses[response_id] = (response, size)
        self._num_bytes += size
        while len(self._responses) > self._max_responses or self._num_bytes > self._max_bytes:
            _, (_, dropped) = self._responses.popitem(last=False)
            self._num_bytes -= dropped

    def get(self, response_id: str, param: str | None = None) -> StoredResponse:
        """A response by its id.

        Args:
            response_id: of the response.
            param: field of a request that names it; None: the route does.

        Raises:
            InvalidRequestError: this server has no store; or the response that a field names isn't
                stored.
            ResponseNotFoundError: it isn't stored, or no longer.
        """
        if not self.is_open:
            raise InvalidRequestError(
                "this server doesn't store responses (http.max_stored_responses is 0, or there are "
                "several ingress processes); send the whole conversation in input",
                param=param,
                code="responses_not_stored",
            )
        found = self._responses.get(response_id)
        if found is None:
            kind = ResponseNotFoundError if param is None else InvalidRequestError
            raise kind(
                f"the response {response_id[:80]!r} isn't stored; the server stores the latest "
                f"{self._max_responses} responses until it restarts. Send the whole "
                "conversation in input",
                param=param,
                code="previous_response_not_found",
            )
        self._responses.move_to_end(response_id)
        return found[0]

    def delete(self, response_id: str) -> None:
        """Deletes a response.

        Raises:
            InvalidRequestError: this server has no store.
            ResponseNotFoundError: it isn't stored, or no longer.
        """
        self.get(response_id)
        _, size = self._responses.pop(response_id)
        self._num_bytes -= size
