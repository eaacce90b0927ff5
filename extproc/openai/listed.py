"""Reads the list of models that a server answers to GET /v1/models.

What is no such list is a ValueError, never a list that is short of something.
"""

from typing import Any, cast

import orjson


def listed_models(body: bytes) -> dict[str, int | None]:
    """By name, in the server's order: the tokens that fit (vLLM's `max_model_len`), None where it
    does not say. vLLM lists every name it serves, those of LoRA adapters too. ValueError: this is
    not OpenAI's list of models."""
    try:
        entries = cast("list[dict[str, Any]]", orjson.loads(body)["data"])
        limits: dict[object, object] = {one["id"]: one.get("max_model_len") for one in entries}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError("not OpenAI's list of models") from error
    models: dict[str, int | None] = {}
    for name, limit in limits.items():
        if not isinstance(name, str):
            raise ValueError("not OpenAI's list of models: a name is no text")
        models[name] = limit if isinstance(limit, int) else None
    return models
