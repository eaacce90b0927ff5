"""Whether clients are told what is left of their limits, where there are any."""

from collections.abc import Iterator

from extproc.check.bootstrap import Bootstrap
from extproc.check.findings import RENEW, Finding, warning
from extproc.limits import rules_of
from extproc.limits.rules import HEADERS

_NAMESPACE = "forebay_limits"


def told(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    rules = [rules_of(tenant) for tenant in config.tenants.values()] if config else []
    if not any(one and (one.requests or one.tokens) for one in rules):
        return
    for _, processor in bootstrap.gateways:
        options = processor.message.metadata_options
        namespaces = options.receiving_namespaces if options else None
        if _NAMESPACE not in (namespaces.untyped if namespaces else []):
            yield warning(
                "limits-not-told",
                processor.spot.at("metadata_options.receiving_namespaces.untyped"),
                "Envoy drops what the processor tells of limits: no admitted answer has "
                "x-ratelimit headers, and clients meet their limits unwarned.",
                f"{RENEW} or add {_NAMESPACE} to untyped.",
            )
    for door in bootstrap.model_doors:
        for route in door.admit_routes:
            added = {
                option.header.key.lower()
                for place in (route.message, route.host.message)
                for option in place.response_headers_to_add
                if option.header
            }
            if missing := [name for name in HEADERS if f"x-ratelimit-{name}" not in added]:
                yield warning(
                    "limits-not-told",
                    route.spot.at("response_headers_to_add"),
                    "Tenants have limits, and answers of this route do not say what is left: no "
                    + ", ".join(f"x-ratelimit-{name}" for name in missing)
                    + ".",
                    f"{RENEW} or take them from the route admit_stream of envoy/envoy.yaml.",
                )


RULES = (told,)
