"""What Envoy's log tells of one exchange: LOG_LINES with these values."""

from extproc.accounting import LOG_LINES

_COMMANDS = {
    "kind": "forebay:kind",
    "tenant": "forebay:tenant",
    "request_id": "X-REQUEST-ID",
    "status": "RESPONSE_CODE%",
    "details": "RESPONSE_CODE_DETAILS",
    "flags": "RESPONSE_FLAGS",
    "body_bytes": "BYTES_SENT",
    "served_by": "UPSTREAM_CLUSTER",
    "upstream_host": "UPSTREAM_HOST",
    "attempts": "ATTEMPT_COUNT",
    "prompt_tokens": "llm:prompt_tokens",
    "cached_tokens": "llm:cached_tokens",
    "completion_tokens": "llm:completion_tokens",
    "failed": "llm:failed",
    "guarded": ":guarded",
    "alive_us": ":alive_us",
    "bill": ":bill",
    "refused": ":refused",
    "ttft_us": "DS_RX_BEG:US_RX_BODY_BEG",
    "server_ttft_us": "US_TX_BEG:US_RX_BODY_BEG",
    "generation_us": "US_RX_BODY_BEG:US_RX_END",
}


def logged(values: dict[str, str]) -> str:
    """Where it has no value Envoy writes "-"."""
    places = {name: _place(command) for name, command in _COMMANDS.items()}
    lines = ["-"] * len(LOG_LINES)
    for name, value in values.items():
        lines[places[name]] = value
    return "\n".join(lines)


def _place(command: str) -> int:
    (place,) = (index for index, line in enumerate(LOG_LINES) if command in line)
    return place
