"""The config of the plain Envoys that Forebay is compared with: one listener, one cluster.

As plain as it can be and still take the same requests; with a processor, its socket and limits are
those of the reference config.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_HTTP2 = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {"max_concurrent_streams": 1000}},
    }
}
_BUFFER_BYTES = 16842752
_ENOUGH = {"max_connections": 1024, "max_pending_requests": 100000, "max_requests": 100000}
_TYPES = "type.googleapis.com/envoy.extensions.filters"

BUFFERED_REQUEST = {"request_header_mode": "SEND", "request_body_mode": "BUFFERED"} | {
    "response_header_mode": "SKIP",
    "response_body_mode": "NONE",
}
"""What a processor that decides by the request sees."""

BUFFERED_BOTH = BUFFERED_REQUEST | {
    "response_header_mode": "SEND",
    "response_body_mode": "BUFFERED",
}
"""What a processor that keeps answers sees of a short one."""

STREAMED_ANSWER = {"request_header_mode": "SKIP", "request_body_mode": "NONE"} | {
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
"""What a processor sees that all tokens pass through."""


def envoy_config(
    port: int,
    admin_port: int,
    upstream: str,
    processor: Path,
    processing_mode: dict[str, Any] | None,
) -> dict[str, Any]:
    """A bootstrap. `processing_mode`: that of the ext_proc filter; None: no processor at all."""
    filters: list[dict[str, Any]] = [
        {
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"},
        }
    ]
    host, upstream_port = urlsplit(upstream).hostname, urlsplit(upstream).port
    clusters = [_cluster("upstream", {"socket_address": _address(host, upstream_port)})]
    if processing_mode is not None:
        filters.insert(0, _ext_proc(processing_mode))
        cluster = _cluster("processor", {"pipe": {"path": str(processor)}})
        clusters.append(cluster | {"typed_extension_protocol_options": _HTTP2})
    manager = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "http_filters": filters,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "bench",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            "route": {"cluster": "upstream", "timeout": "0s"},
                        }
                    ],
                }
            ]
        },
    }
    listener = {
        "name": "bench",
        "address": {"socket_address": _address("127.0.0.1", port)},
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }
    return {
        "admin": {"address": {"socket_address": _address("127.0.0.1", admin_port)}},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def _ext_proc(processing_mode: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{_TYPES}.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "processor"}},
            "message_timeout": "15s",
            "processing_mode": processing_mode,
        },
    }


def _cluster(name: str, address: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [_ENOUGH]},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _address(host: str | None, port: int | None) -> dict[str, Any]:
    return {"address": host, "port_value": port}
