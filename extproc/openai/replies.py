"""What Forebay itself answers, in OpenAI's shape: errors and the list of models."""

from collections.abc import Sequence

import orjson


class ApiError(Exception):
    """An answer other than the one asked for, as the client is told it, in OpenAI's shape."""

    def __init__(
        self, status: int, message: str, type: str, code: str, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param

    def body(self) -> bytes:
        return error_body(self.message, self.type, self.code, self.param)


def error_body(message: str, type: str, code: str, param: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


def models_body(names: Sequence[str], created: int) -> bytes:
    """The answer to GET /v1/models; `created` in seconds since the epoch."""
    data = [
        {"id": name, "object": "model", "created": created, "owned_by": "forebay"} for name in names
    ]
    return orjson.dumps({"object": "list", "data": data})
