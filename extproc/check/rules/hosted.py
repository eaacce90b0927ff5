"""Pools that are hosted APIs (`server: other`, by TLS): their credential, their name, and who might
get the one or the other. envoy/hosted.yaml is how it should be."""

from collections.abc import Iterator

from extproc.check.bootstrap import Bootstrap, Cluster, Filter
from extproc.check.findings import RENEW, Finding, error, warning
from extproc.check.reading import Node, text, texts
from extproc.config.tree import dig, items, mapping

_INJECTOR = ".CredentialInjector"
_HOST_HEADER = "x-forebay-tier-host"
_TAKE = "Take it from envoy/hosted.yaml."


def _others(bootstrap: Bootstrap) -> Iterator[Cluster]:
    config = bootstrap.policy.config
    for name, cluster in bootstrap.pools:
        if config is not None and config.pools[name].server == "other":
            yield cluster


def _hosted(bootstrap: Bootstrap) -> Iterator[tuple[Cluster, Node]]:
    """With what it says of TLS."""
    for cluster in _others(bootstrap):
        tls = mapping(dig(cluster.raw, "transport_socket", "typed_config"))
        if text(tls.get("@type")).endswith(".UpstreamTlsContext"):
            yield cluster, tls


def credential(bootstrap: Bootstrap) -> Iterator[Finding]:
    for cluster in _others(bootstrap):
        place = cluster.options_spot.at("http_filters")
        found = [n for n, one in enumerate(cluster.filters) if one.is_a(_INJECTOR)]
        is_tls = cluster.raw.get("transport_socket") is not None
        if not found and is_tls:
            yield warning(
                "hosted-credential",
                place,
                "No credential is added: a client's own never goes there, so an API that wants one "
                "answers 401, and clients get the next tier or 502.",
                f"A credential_injector filter. {_TAKE}",
            )
        lua = [n for n, one in enumerate(cluster.filters) if _is_tiers(one)]
        if found and lua and found[0] < lua[0]:
            yield error(
                "hosted-credential-order",
                place,
                "The credential_injector stands before the Lua filter, which removes what a "
                "request carries of credentials: the API answers 401.",
                "List credential_injector after the Lua filter.",
            )
        if found and not is_tls:
            yield warning(
                "hosted-plain-text",
                cluster.spot.at("transport_socket"),
                "Its credential goes there unencrypted.",
                f"A transport_socket with TLS. {_TAKE}",
            )


def _is_tiers(one: Filter) -> bool:
    said = list(texts(one.raw))
    return one.is_a(".lua.v3.Lua") and any("x-forebay-tier" in word for word in said)


def key_in_file(bootstrap: Bootstrap) -> Iterator[Finding]:
    """A bootstrap is shown around; a key in it is no secret."""
    for number, secret in enumerate(items(dig(bootstrap.raw, "static_resources", "secrets"))):
        source = mapping(dig(secret, "generic_secret", "secret"))
        if source.keys() & {"inline_string", "inline_bytes"}:
            yield warning(
                "key-in-file",
                f"static_resources.secrets[{number}].generic_secret.secret",
                "The key itself stands in this file.",
                "environment_variable: HOSTED_API_KEY, or filename: /etc/forebay/hosted-key",
            )
    for cluster in _others(bootstrap):
        for one in cluster.filters:
            for header, value in _headers_set(one):
                if header == "authorization" and "%" not in value:
                    yield warning(
                        "key-in-file",
                        one.spot.at("typed_config.mutations.request_mutations"),
                        "The key itself stands in this file.",
                        f"A credential_injector filter instead. {_TAKE}",
                    )


def host(bootstrap: Bootstrap) -> Iterator[Finding]:
    for cluster, _ in _hosted(bootstrap):
        said = [header for one in cluster.filters for header, _ in _headers_set(one)]
        if _HOST_HEADER not in said:
            yield warning(
                "hosted-host",
                cluster.options_spot.at("http_filters"),
                "The API is sent the Host that the client used for this gateway: most answer 404 "
                "or 421 to that.",
                f"Let the filter that sets x-forebay-tier set {_HOST_HEADER} too.",
            )


def _headers_set(one: Filter) -> Iterator[tuple[str, str]]:
    if one.is_a(".header_mutation.v3.HeaderMutation"):
        for step in items(dig(one.raw, "mutations", "request_mutations")):
            header = mapping(dig(step, "append", "header"))
            yield text(header.get("key")).lower(), text(header.get("value"))


def tls(bootstrap: Bootstrap) -> Iterator[Finding]:
    for cluster, said in _hosted(bootstrap):
        common = mapping(said.get("common_tls_context"))
        place = cluster.spot.at("transport_socket.typed_config")
        by_sds = common.get("validation_context_sds_secret_config") is not None
        combined = mapping(common.get("combined_validation_context"))
        context = mapping(
            common.get("validation_context") or combined.get("default_validation_context")
        )
        whom = by_sds or "validation_context_sds_secret_config" in combined
        if not whom and not context.keys() & {"trusted_ca", "system_root_certs"}:
            yield error(
                "hosted-tls",
                place,
                "Any certificate is taken: whoever stands between gets the credential and all "
                "prompts.",
                "common_tls_context: {validation_context: {trusted_ca: {filename: "
                "/etc/ssl/certs/ca-certificates.crt}}}",
            )
            continue
        by_name = said.get("auto_sni_san_validation") or _auto(cluster, "auto_san_validation")
        names = context.keys() & {"match_typed_subject_alt_names", "match_subject_alt_names"}
        if not whom and not by_name and not names:
            yield error(
                "hosted-tls-name",
                place,
                "A certificate for any name is taken, if a known authority signed it: whoever "
                "stands between may have one, and gets the credential.",
                "sni: the API's host name; auto_sni_san_validation: true",
            )
        if not said.get("sni") and not said.get("auto_host_sni") and not _auto(cluster, "auto_sni"):
            yield warning(
                "hosted-sni",
                place,
                "The API is not told which name is asked for; behind a shared front it answers for "
                "another, or not at all.",
                "sni: the API's host name",
            )


def _auto(cluster: Cluster, key: str) -> bool:
    options = mapping(cluster.raw.get("typed_extension_protocol_options"))
    return any(dig(one, "upstream_http_protocol_options", key) is True for one in options.values())


def refusals(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, _ in bootstrap.gateways:
        for one in door.filters:
            if one.is_a(".lua.v3.Lua") and not one.elsewhere:
                said = list(texts(one.raw))
                if any("hide_usage" in word for word in said) and not any(
                    "upstream_refused" in word for word in said
                ):
                    yield warning(
                        "hosted-refusals",
                        one.spot,
                        "What a server or an API says of this gateway's credential, model name, "
                        "path or account reaches clients, as a 401 to 405 or 429 that looks like "
                        "theirs.",
                        f"{RENEW} or take the Lua filter from this version's envoy/envoy.yaml.",
                    )


RULES = (credential, key_in_file, host, tls, refusals)
