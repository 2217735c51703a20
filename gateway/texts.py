"""Which tokenizer and template belong to a route: its first local model's; upstreams elsewhere borrow one to count."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import Unavailable
from gateway.prompts import TextModel
from gateway.routing import Route


class Texts:
    """Text sides by model name. `fallback` counts for models whose tokenizer is not here (an upstream's)."""

    def __init__(self, models: Mapping[str, TextModel], fallback: TextModel | None = None) -> None:
        self._models = dict(models)
        self._fallback = fallback

    def of(self, route: Route) -> TextModel:
        """Raises: Unavailable when no tokenizer is loaded at all."""
        for target in route.targets:
            if (found := self._models.get(target.upstream.model)) is not None:
                return found
        if self._fallback is None:
            raise Unavailable(f"No tokenizer is loaded that could count tokens for `{route.name}`.")
        return self._fallback

    def named(self, model: str) -> TextModel | None:
        return self._models.get(model)

    def close(self) -> None:
        """Ends their threads."""
        for model in (*self._models.values(), *([self._fallback] if self._fallback else [])):
            model.close()
