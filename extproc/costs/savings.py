"""What one answer cost, and what each lever saved on it. Pure arithmetic, US dollars.

A lever's saving is what the same request would have cost more with this lever alone off: so it is
what a replay of the trace without the lever shows. What several levers save only together (a
discount on a discount) is no lever's alone and stands apart, as `together`: paid + all savings =
the cost with every lever off, and nothing is counted twice.
"""

from typing import NamedTuple

from extproc.config import PriceConfig

# vLLM's default, in which it finds equal beginnings of prompts.
_BLOCK_TOKENS = 16
# Below it a difference of two costs is a rounding error.
_NOTHING_USD = 1e-12


class Lever(NamedTuple):
    counterfactual: str
    """What is compared with what was paid, for people."""
    estimated: bool = False


LEVERS = {
    "routing": Lever(
        "the same tokens at the large pool's price, where a rule sent auto to another one"
    ),
    "exact_hit": Lever(
        "the same answer once more from the pool that would have got the request, with all whole "
        "blocks of the prompt (16 tokens) in the prefix cache"
    ),
    "semantic_hit": Lever(
        "the same, where the stored answer was to a question that asks the same in other words"
    ),
    "prefix_cache": Lever("cached input tokens at the price of input"),
    "output_cap": Lever(
        "an answer cut at its tenant's max_output_tokens, or at shorter_tokens, goes as far beyond "
        "it as the pool's uncut ones with a like max_tokens lately did on average",
        estimated=True,
    ),
    "batch": Lever("the full price, for requests of class batch"),
    "together": Lever(
        "where several acted on a request: all of them off, less what each saved alone"
    ),
}


def cost_usd(
    price: PriceConfig, prompt: float, cached: float, completion: float, factor: float
) -> float:
    """What so many tokens cost. `cached`: of `prompt`, never more. `factor`: on the whole, below 1
    for batch. A count may be an estimate, so no whole number."""
    micro_usd = (
        (prompt - cached) * price.input + cached * price.cached_input + completion * price.output
    )
    return micro_usd * factor / 1e6


def savings(
    price: PriceConfig,
    prompt: float,
    cached: float,
    completion: float,
    factor: float,
    *,
    instead_of: PriceConfig | None = None,
    cut_tokens: float = 0.0,
) -> dict[str, float]:
    """By lever, each above 0, for an answer with the cost that `cost_usd` says. `instead_of`: the
    price of the pool to which the request would have gone but for the rules. `cut_tokens`: what the
    cap took off the answer.

    In the order below, no lever gets more than what is left of the saving of all: with odd prices
    (a large pool without a discount for cached tokens) their sum would exceed it.
    """
    without: dict[str, float] = {}
    if instead_of is not None:
        without["routing"] = cost_usd(instead_of, prompt, cached, completion, factor)
    if cached:
        without["prefix_cache"] = cost_usd(price, prompt, 0, completion, factor)
    if cut_tokens:
        without["output_cap"] = cost_usd(price, prompt, cached, completion + cut_tokens, factor)
    if factor < 1:
        without["batch"] = cost_usd(price, prompt, cached, completion, 1.0)
    if not without:
        return without
    paid_usd = cost_usd(price, prompt, cached, completion, factor)
    left_usd = cost_usd(instead_of or price, prompt, 0, completion + cut_tokens, 1.0) - paid_usd
    saved: dict[str, float] = {}
    for lever, usd in without.items():
        alone_usd = min(usd - paid_usd, left_usd)
        if alone_usd > 0:
            saved[lever] = alone_usd
            left_usd -= alone_usd
    if left_usd > _NOTHING_USD:
        saved["together"] = left_usd
    return saved


def repeated_usd(price: PriceConfig, prompt: int, completion: int, factor: float) -> float:
    """What an answer out of the cache would have cost once more. A model that answers the same
    prompt again finds it in its prefix cache, but for the last token's block, if it still has it:
    the least that can have been saved."""
    cached = max(prompt - 1, 0) // _BLOCK_TOKENS * _BLOCK_TOKENS
    return cost_usd(price, prompt, cached, completion, factor)
