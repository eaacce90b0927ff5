"""What one answer cost, and what each lever saved on it. Pure arithmetic, US dollars.

A lever's saving is what the same request would have cost more with this lever alone off: so it is
what a replay of the trace without the lever shows. What several levers save only together (a
discount on a discount) is no lever's alone and stands apart, as `together`: paid + all savings =
the cost with every lever off, and nothing is counted twice.
"""

from typing import Any, NamedTuple

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
    "prefix_cache": Lever("cached input tokens at the price of input"),
    "output_cap": Lever(
        "an answer cut at admission.shorter_tokens goes as far beyond it as the pool's uncut ones "
        "with a like max_tokens lately did on average",
        estimated=True,
    ),
    "batch": Lever("the full price, for requests of class batch"),
    "together": Lever(
        "where several acted on a request: all of them off, less what each saved alone"
    ),
}


class Case(NamedTuple):
    """What a request costs: its tokens at a price. A token count may be an estimate, so no whole
    number."""

    price: PriceConfig
    prompt: float
    cached: float
    """Of `prompt`; never more."""
    completion: float
    factor: float
    """On the whole: below 1 for batch."""

    def usd(self) -> float:
        price, prompt, cached, completion, factor = self
        micro = (
            (prompt - cached) * price.input
            + cached * price.cached_input
            + completion * price.output
        )
        return micro * factor / 1e6


Change = dict[str, Any]
"""Members of a Case as they would be without a lever; each lever changes one of its own."""


def without(
    paid: Case, *, instead_of: PriceConfig | None = None, cut_tokens: float = 0.0
) -> dict[str, Change]:
    """For each lever that acted, what would be otherwise without it. `instead_of`: the price of the
    pool to which the request would have gone but for the rules. `cut_tokens`: what the cap took off
    the answer."""
    changes: dict[str, Change] = {}
    if instead_of is not None:
        changes["routing"] = {"price": instead_of}
    if paid.cached:
        changes["prefix_cache"] = {"cached": 0}
    if cut_tokens:
        changes["output_cap"] = {"completion": paid.completion + cut_tokens}
    if paid.factor < 1:
        changes["batch"] = {"factor": 1.0}
    return changes


def all_off(paid: Case, changes: dict[str, Change]) -> Case:
    merged: Change = {}
    for change in changes.values():
        merged |= change
    return paid._replace(**merged)


def savings(paid: Case, changes: dict[str, Change]) -> dict[str, float]:
    """By lever, each above 0. `changes`: see `without`.

    In the order of `changes`, no lever gets more than what is left of the saving of all: with odd
    prices (a large pool without a discount for cached tokens) their sum would exceed it.
    """
    saved: dict[str, float] = {}
    if not changes:
        return saved
    paid_usd = paid.usd()
    left_usd = all_off(paid, changes).usd() - paid_usd
    for lever, change in changes.items():
        alone_usd = left_usd if len(changes) == 1 else paid._replace(**change).usd() - paid_usd
        usd = min(alone_usd, left_usd)
        if usd > 0:
            saved[lever] = usd
            left_usd -= usd
    if left_usd > _NOTHING_USD and len(changes) > 1:
        saved["together"] = left_usd
    return saved


def repeated(price: PriceConfig, prompt: int, completion: int, factor: float) -> Case:
    """What an answer out of the cache would have cost once more. A model that answers the same
    prompt again finds it in its prefix cache, but for the last token's block, if it still has it:
    the least that can have been saved."""
    cached = max(prompt - 1, 0) // _BLOCK_TOKENS * _BLOCK_TOKENS
    return Case(price, prompt, cached, completion, factor)
