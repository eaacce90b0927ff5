"""What the tests ask of the models; more than one module asks it."""

from typing import Any

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]

# More than any test waits for, and no end by itself; `large` answers it fast.
STORY: dict[str, Any] = {
    "model": "large-70b",
    "messages": [{"role": "user", "content": "Tell a long story"}],
    "max_tokens": 1900,
    "extra_body": {"ignore_eos": True},
}
