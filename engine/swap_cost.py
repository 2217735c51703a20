"""`SwapCost`: whether a preempted sequence's pages are cheaper moved to host memory and back or computed again."""

from __future__ import annotations


class SwapCost:
    """page_move_s is measured once at start (out and in); the prefill's seconds a token follow the steps that ran."""

    def __init__(self, page_move_s: float) -> None:
        self._page_move_s = page_move_s
        self._prefill_s_per_token: float | None = None

    def note_step(self, prefill_tokens: int, num_tokens: int, seconds: float) -> None:
        """Steps that are mostly prefill tell what a prompt token costs."""
        if prefill_tokens * 10 < num_tokens * 9 or prefill_tokens < 16:
            return
        cost = seconds / num_tokens
        known = self._prefill_s_per_token
        self._prefill_s_per_token = cost if known is None else 0.9 * known + 0.1 * cost

    def swap_is_cheaper(self, num_tokens: int, num_pages: int) -> bool:
        """Before any prefill was timed the answer is swap: moving bytes is what it can put a figure on."""
        if self._page_move_s <= 0:
            return False
        if self._prefill_s_per_token is None:
            return True
        return num_pages * self._page_move_s < num_tokens * self._prefill_s_per_token
