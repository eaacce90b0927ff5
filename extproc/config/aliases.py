"""What else clients may call a model: `routing.aliases`, as far as it has to fit the pools.

Lines that name a path, as all mistakes of the policy. Nothing is resolved here: the router does.
"""

from collections.abc import Iterator

from extproc.config.policy import Config


def alias_mistakes(config: Config) -> Iterator[str]:
    """An alias leads to a pool or to `auto_model`, never to another alias, and takes no name that
    means something else already."""
    routing, pools = config.routing, config.pools
    auto = routing.auto_model
    meanings = {pool.model: name for name, pool in reversed(pools.items())} | {auto: auto}
    for alias, target in routing.aliases.items():
        where = f"forebay.routing.aliases.{alias}"
        if target != auto and target not in pools:
            yield (
                f"{where}: {target!r} is neither a pool nor auto_model; there are "
                f"{', '.join((*pools, auto))}"
            )
        elif target == auto and target in pools:
            yield f"{where}: {target!r} is a pool and routing.auto_model; rename one of them"
        elif meanings.get(alias, target) != target:
            what = "routing.auto_model" if alias == auto else f"the model of {meanings[alias]}"
            yield f"{where}: this name is {what} already; choose another, or lead it there"
