"""The door: what Envoy's connection manager makes of a request before any filter sees it, and what
stands between the client and the processor."""

from collections.abc import Iterator

from extproc.check.bootstrap import Bootstrap, Filter
from extproc.check.findings import Finding, warning
from extproc.check.reading import texts
from extproc.check.rules.headers import is_stripped

_KEYS = ".api_key_auth.v3.ApiKeyAuth"
_AUTH = (
    _KEYS,
    ".jwt_authn.v3.JwtAuthentication",
    ".ext_authz.v3.ExtAuthz",
    ".basic_auth.v3.BasicAuth",
    ".oauth2.v3.OAuth2",
)


def tenant_header_believed(bootstrap: Bootstrap) -> Iterator[Finding]:
    header = bootstrap.policy.tenant_header
    for door, processor in bootstrap.gateways:
        before = door.filters[: processor.position]
        auth = [one for one in before if _is_auth(one)]
        if any(_sets(one, header) for one in auth):
            continue
        if auth:
            reason = f"{auth[0].name} stands before the processor but does not set {header}"
        else:
            reason = f"No auth filter stands before the processor to set {header}"
        yield warning(
            "tenant-header-believed",
            processor.spot,
            f"{reason}: a client's own is believed, so it chooses whose limits and pools it uses.",
            "Put api_key_auth (forwarding.header), jwt_authn (claim_to_headers) or ext_authz "
            f"before ext_proc and let it write {header}.",
        )


def user_header_believed(bootstrap: Bootstrap) -> Iterator[Finding]:
    header = bootstrap.policy.user_header
    for door, processor in bootstrap.gateways if header else ():
        auth = [one for one in door.filters[: processor.position] if _is_auth(one)]
        keys = _unseen_keys(auth, bootstrap.policy.tenant_header)
        if any(_sets(one, header) for one in auth if one is not keys):
            continue
        if is_stripped(door, header):
            yield warning(
                "user-header-unset",
                processor.spot,
                f"No auth filter before the processor sets {header}: what is to be cached by user "
                "is not cached at all, and no question of scope user is compared.",
                f"Let jwt_authn (claim_to_headers) or ext_authz write {header}, or take another "
                "scope than user in cache.exact and cache.semantic.",
            )
        else:
            yield warning(
                "user-header-believed",
                processor.spot,
                f"No auth filter before the processor sets {header}: a client's own is believed, "
                "so it can read what was answered to any user of its tenant.",
                f"Let jwt_authn (claim_to_headers) or ext_authz write {header}, and remove the "
                "client's own in early_header_mutation_extensions.",
            )


def auth_fails_open(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, processor in bootstrap.gateways:
        kept = [name for name in bootstrap.policy.identity if not is_stripped(door, name)]
        if not kept:
            continue
        header = " and ".join(kept)
        for one in door.filters[: processor.position]:
            if way := _lets_pass(one):
                yield warning(
                    "auth-fails-open",
                    one.spot,
                    f"{way} lets requests pass unauthenticated, with the {header} that the client "
                    "wrote itself.",
                    f"Remove {header} in early_header_mutation_extensions; the filter sets them "
                    "anew for whom it knows.",
                )


def _is_auth(one: Filter) -> bool:
    return any(one.is_a(kind) for kind in _AUTH)


def _sets(one: Filter, header: str) -> bool:
    """Whether its config names the header; where the config is not seen, it is trusted to."""
    if one.elsewhere or (one.is_a(".ext_authz.v3.ExtAuthz") and "grpc_service" in one.raw):
        return True
    return header in (value.lower() for value in texts(one.raw))


def _unseen_keys(auth: list[Filter], tenant_header: str) -> Filter | None:
    """An api_key_auth writes one header. Where its config is not seen, and no other filter can
    write the tenant's, it is that one."""
    keys = [one for one in auth if one.elsewhere and one.is_a(_KEYS)]
    others = any(_sets(one, tenant_header) for one in auth if one not in keys)
    return keys[0] if len(keys) == 1 and not others else None


def _lets_pass(one: Filter) -> str:
    if one.is_a(".ext_authz.v3.ExtAuthz") and one.raw.get("failure_mode_allow") is True:
        return "failure_mode_allow"
    if one.is_a(".jwt_authn.v3.JwtAuthentication"):
        keys = set(texts(one.raw))
        return next((k for k in ("allow_missing_or_failed", "allow_missing") if k in keys), "")
    return ""


def local_ratelimit(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, processor in bootstrap.gateways:
        if not any(".local_ratelimit." in kind for one in door.filters for kind in one.types):
            yield warning(
                "no-local-ratelimit",
                door.spot.at("http_filters"),
                "Nothing guards the gateway itself: even a request that is refused at once costs "
                "the processor a stream.",
                "Put envoy.filters.http.local_ratelimit before "
                f"{processor.name}, well above what the pools can serve.",
            )


def local_reply(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, _ in bootstrap.gateways:
        if door.message.local_reply_config is None:
            yield warning(
                "local-reply",
                door.spot.at("local_reply_config"),
                "What Envoy itself answers (408, 413, 503, 504) is plain text: an OpenAI client "
                "finds no error object in it.",
                "Take local_reply_config from envoy/envoy.yaml.",
            )


def remote_address(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.model_doors:
        if not door.message.use_remote_address:
            yield warning(
                "use-remote-address",
                door.spot.at("use_remote_address"),
                "Envoy believes the client's X-Forwarded-For and takes it for an internal caller, "
                "from which it keeps x-envoy headers.",
                "use_remote_address: true (behind another proxy, with xff_num_trusted_hops).",
            )


def normalize_path(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.model_doors:
        if not door.message.normalize_path:
            yield warning(
                "normalize-path",
                door.spot.at("normalize_path"),
                "A path such as /x/../v1/completions is matched as it stands, while a server "
                "behind may read it as /v1/completions: rules by path can be walked around.",
                "normalize_path: true",
            )


def escaped_slashes(bootstrap: Bootstrap) -> Iterator[Finding]:
    safe = ("REJECT_REQUEST", "UNESCAPE_AND_REDIRECT", "UNESCAPE_AND_FORWARD")
    for door in bootstrap.model_doors:
        if door.message.path_with_escaped_slashes_action.name not in safe:
            yield warning(
                "escaped-slashes",
                door.spot.at("path_with_escaped_slashes_action"),
                "A path with %2F is matched as it stands, while a server behind may read it as a "
                "slash: rules by path can be walked around.",
                "path_with_escaped_slashes_action: REJECT_REQUEST",
            )


def request_timeout(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, _ in bootstrap.gateways:
        if not door.message.request_timeout:
            yield warning(
                "request-timeout",
                door.spot.at("request_timeout"),
                "A client that sends its body a byte at a time keeps a stream of the processor's "
                "open for as long as it likes.",
                "request_timeout: 60s (to receive the whole request; it does not limit the answer)",
            )


RULES = (
    tenant_header_believed,
    user_header_believed,
    auth_fails_open,
    local_ratelimit,
    local_reply,
    remote_address,
    normalize_path,
    escaped_slashes,
    request_timeout,
)
