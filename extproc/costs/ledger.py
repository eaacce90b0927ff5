"""The sums: what finished exchanges cost and what the levers saved on them, since the start.

In this process's memory alone: a restart begins anew. Keys are names from the config, so their
number is bounded.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, datetime

from extproc.accounting import WORKED, Account, Bill, Estimate
from extproc.config import Config
from extproc.costs.report import Cost, Report, Saving, Share, Tokens, report
from extproc.costs.savings import LEVERS, cost_usd, repeated_usd, savings

OTHER = "other"
"""The feature of a request that names none, or one that the config does not."""

_LARGEST_POWER = 20
_LENGTHS = 100  # of answers, remembered by pool and limit


def _last_lengths() -> "deque[float]":
    return deque(maxlen=_LENGTHS)


class _Line:
    __slots__ = (
        *("cached", "completion", "completion_estimated", "prompt", "prompt_estimated"),
        *("requests", "uncounted", "unpriced", "usd"),
    )

    def __init__(self) -> None:
        self.requests = self.uncounted = self.unpriced = 0
        self.prompt = self.cached = self.completion = 0
        self.prompt_estimated = self.completion_estimated = 0
        self.usd = 0.0


class _Saved:
    __slots__ = ("requests", "usd")

    def __init__(self) -> None:
        self.requests = 0
        self.usd = 0.0


class Ledger:
    """`began`: seconds since the epoch."""

    def __init__(self, began: float) -> None:
        self._since = datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds")
        self._lines: defaultdict[tuple[str, str, str, str], _Line] = defaultdict(_Line)
        """By tenant, feature, model, pool."""
        self._saved: defaultdict[tuple[str, str], _Saved] = defaultdict(_Saved)
        """By tenant, lever."""
        self._uncapped: defaultdict[tuple[str, int], deque[float]] = defaultdict(_last_lengths)
        """By pool and the client's own limit (its power of two, since that limits answers, too):
        the tokens of the last answers without a cap of ours."""

    def answered(
        self,
        config: Config,
        *,
        pool: str,
        tenant: str,
        status: int,
        account: Account,
        estimate: Estimate,
    ) -> float:
        """One exchange that `pool` answered last; what it cost in USD. `tenant`: its label.
        `estimate`: what is billed where nobody counted its tokens."""
        bill, served = account.bill, config.pools[pool]
        feature = bill.feature if bill.feature in config.features else OTHER
        line = self._lines[tenant, feature, served.model, pool]
        line.requests += 1
        line.unpriced += served.price is None
        completion = account.completion_tokens
        if completion is None:
            line.uncounted += status in WORKED
            line.prompt_estimated += estimate.prompt
            line.completion_estimated += estimate.completion
            if served.price is None:
                return 0.0
            factor = config.costs.batch_price if bill.batch else 1.0
            usd = cost_usd(served.price, *estimate, factor)
            line.usd += usd
            return usd
        prompt = account.prompt_tokens or 0
        cached = min(account.cached_tokens or 0, prompt)
        line.prompt += prompt
        line.cached += cached
        line.completion += completion
        cut = self._cut_tokens(pool, bill, completion)
        if served.price is None:
            return 0.0
        factor = config.costs.batch_price if bill.batch else 1.0
        usd = cost_usd(served.price, prompt, cached, completion, factor)
        line.usd += usd
        # A fallback's answer is no merit of the rules.
        routed = bill.instead_of and account.charge is not None and account.charge.pool == pool
        other = config.pools.get(bill.instead_of) if routed else None
        saved = savings(
            served.price,
            prompt,
            cached,
            completion,
            factor,
            instead_of=other.price if other else None,
            cut_tokens=cut,
        )
        for lever, saved_usd in saved.items():
            self._save(tenant, lever, saved_usd)
        return usd

    def hit(
        self,
        config: Config,
        lever: str,
        *,
        pool: str,
        tenant: str,
        batch: bool,
        prompt: int,
        completion: int,
    ) -> None:
        """One request that got a stored answer, of so many tokens, instead of one of `pool`.
        `lever`: exact_hit or semantic_hit."""
        price = config.pools[pool].price
        if price is not None:
            factor = config.costs.batch_price if batch else 1.0
            self._save(tenant, lever, repeated_usd(price, prompt, completion, factor))

    def _save(self, tenant: str, lever: str, usd: float) -> None:
        saved = self._saved[tenant, lever]
        saved.requests += 1
        saved.usd += usd

    def _cut_tokens(self, pool: str, bill: Bill, completion: int) -> float:
        """What our cap took off this answer, estimated. Learns from those that have none."""
        cap, limit = bill.cap_tokens, min(bill.most_tokens.bit_length(), _LARGEST_POWER)
        lengths = self._uncapped[pool, limit]
        if not cap:
            lengths.append(completion / bill.answers)
            return 0.0
        if completion < cap * bill.answers:
            return 0.0
        beyond = [length - cap for length in lengths if length > cap]
        if not beyond:
            return 0.0
        mean = sum(beyond) / len(beyond)
        if bill.most_tokens:
            mean = min(mean, bill.most_tokens - cap)
        return mean * bill.answers

    # --- to be shown ---------------------------------------------------------------------------

    def cost_usd(self) -> dict[tuple[str, str, str], float]:
        """By tenant, feature and pool; only what has a price."""
        sums: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        for (tenant, feature, _, pool), line in self._lines.items():
            if line.usd:
                sums[tenant, feature, pool] += line.usd
        return sums

    def saved_usd(self) -> dict[tuple[str, str], float]:
        """By tenant and lever."""
        return {key: saved.usd for key, saved in self._saved.items()}

    def report(self) -> Report:
        """What /costs shows."""
        return report(self._since, self._costs(), self._savings())

    def _costs(self) -> Iterator[Cost]:
        for (tenant, feature, model, pool), line in self._lines.items():
            yield Cost(
                tenant=tenant,
                feature=feature,
                model=model,
                pool=pool,
                requests=line.requests,
                uncounted=line.uncounted,
                unpriced=line.unpriced,
                tokens=Tokens(line.prompt - line.cached, line.cached, line.completion),
                input_estimated=line.prompt_estimated,
                output_estimated=line.completion_estimated,
                usd=None if line.unpriced == line.requests else line.usd,
            )

    def _savings(self) -> Iterator[Saving]:
        for name, lever in LEVERS.items():
            shares = {
                tenant: Share(saved.requests, saved.usd)
                for (tenant, of), saved in self._saved.items()
                if of == name
            }
            if shares:
                yield Saving(
                    lever=name,
                    requests=sum(share.requests for share in shares.values()),
                    usd=sum(share.usd for share in shares.values()),
                    counterfactual=lever.counterfactual,
                    estimated=lever.estimated,
                    by_tenant=shares,
                )
