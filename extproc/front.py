"""What the request line and the headers say, before a body is read: refusals, and what the client
wants of the gateway; and which servers understand a body. Knows nothing of pools that are full, and
nothing of whose request it is."""

import time
from collections.abc import Collection

from extproc import openai, wire
from extproc.admission import CLASSES
from extproc.config import Config
from extproc.costs import OTHER
from extproc.refusals import Answered, refused
from extproc.routing import Plan, without
from extproc.tenants import Tenant

_SERVED = frozenset((openai.CHAT, openai.COMPLETIONS, openai.EMBEDDINGS, openai.MODELS))
_STARTED_AT = int(time.time())


def answer_without_body(
    headers: wire.RequestHeaders, path: str, tenant: Tenant, config: Config
) -> None:
    """Raises Answered, with the list of models or a refusal; returns where the body decides."""
    if path not in _SERVED:
        error = openai.no_such_path()
        raise Answered(error.code, error.status, error.body())
    method = headers.values.get(":method", "")
    allowed = "GET" if path == openai.MODELS else "POST"
    if method != allowed:
        message = f"Use {allowed} for {path}."
        raise refused(405, "method_not_allowed", message, headers=(("allow", allowed),))
    if path == openai.MODELS:
        pools = (*tenant.pools, *(tenant.embeddings.pools if tenant.embeddings else ()))
        models = (config.pools[pool].model for pool in pools)
        auto, aliases = config.routing.auto_model, config.routing.aliases
        mine = (alias for alias, of in aliases.items() if of == auto or of in pools)
        names = dict.fromkeys((auto, *models, *mine))
        raise Answered("models", 200, openai.models_body(list(names), _STARTED_AT))
    if headers.values.get("content-encoding", "identity") != "identity":
        message = "Send the body uncompressed, without Content-Encoding."
        raise refused(415, "unsupported_encoding", message)
    if headers.end_of_stream:
        raise no_body()


def tenant_at(path: str, tenant: Tenant, config: Config) -> Tenant:
    """The tenant as it is at this endpoint. Raises Answered where no pool serves it for that."""
    if path == openai.EMBEDDINGS:
        found, kind, what = tenant.embeddings, "embeddings", "a model that makes embeddings"
    else:
        found, kind, what = tenant if tenant.pools else None, "generate", "a model that generates"
    if found is not None:
        return found
    if any(pool.serves == kind for pool in config.pools.values()):
        raise refused(403, "model_not_allowed", f"Your account may not use {what}.", "model")
    raise refused(404, "model_not_found", f"There is no {what.removeprefix('a ')} here.", "model")


def understood(plan: Plan, others: Collection[str], contract: str) -> Plan:
    """Without the pools that are not vLLM, `others`, for a request with a member that only vLLM
    keeps, `contract` (empty: it has none). Raises Answered where no pool is left."""
    if not contract:
        return plan
    narrowed = without(plan, others, f"{contract} is for vLLM only")
    if narrowed is None:
        message = f"The servers of this model do not know `{contract}`: leave it out."
        raise refused(400, "invalid_request", message, contract)
    return narrowed


def no_body() -> Answered:
    return refused(400, "invalid_request", "The request has no body. Send a JSON object.")


def latency_budget_ms(headers: wire.RequestHeaders) -> float | None:
    text = headers.values.get("x-latency-budget-ms")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        message = "x-latency-budget-ms must be a whole number of milliseconds."
        raise refused(400, "invalid_request", message)
    return float(text)


def class_index_of(headers: wire.RequestHeaders, tenant: Tenant) -> int:
    """That of the tenant, or batch for a request that says so itself."""
    asked = headers.values.get("x-request-class")
    if asked is None:
        return tenant.class_index
    if asked not in CLASSES:
        message = f"x-request-class must be one of {', '.join(CLASSES)}."
        raise refused(400, "invalid_request", message)
    return max(tenant.class_index, CLASSES.index(asked))


def feature_of(headers: wire.RequestHeaders, config: Config) -> str:
    """One that the config names, or `other`."""
    feature = headers.values.get("x-feature", OTHER)
    return feature if feature in config.features else OTHER
