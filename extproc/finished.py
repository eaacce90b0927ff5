"""What Envoy's log tells of finished exchanges: counted, billed, learned from, in one place.

Of what an exchange was answered with nothing is counted elsewhere. No entry is joined to an
exchange in memory: it may be another processor's.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable

from extproc import logs
from extproc.accounting import NOTHING, WORKED, Account, Estimate
from extproc.accounting import read as read_account
from extproc.admission import Running
from extproc.config import PoolConfig
from extproc.costs import Ledger
from extproc.endings import Suspicion, ending
from extproc.estimates import Line
from extproc.limits import NANO, Cost, Limits
from extproc.metrics import Metrics
from extproc.policy import Policy
from extproc.refused import Refused

_log = logging.getLogger(__name__)

# A JSON answer of so many tokens tells how long one takes: the time of its prompt, which is in it,
# hardly matters.
_TELLING_TOKENS = 32


class Measured:
    """What a pool's answers were like lately."""

    __slots__ = (
        *("cached_tokens", "completion_tokens", "first_token_s", "prompt"),
        *("stream_bytes", "stream_tokens", "token_s"),
    )

    def __init__(self) -> None:
        self.first_token_s = Running()
        """From a slot to the first token."""
        self.token_s = Running()
        """A token of one answer, after the first."""
        self.completion_tokens = Running()
        self.stream_bytes, self.stream_tokens = Running(), Running()
        """Of each stream that was counted; bytes as sent to the client."""
        self.prompt = Line()
        """Its tokens by what its text lets expect."""
        self.cached_tokens = Running()


class Finished:
    """`policy`, `limits`: those of now. `suspect(url, seconds)`: see Suspicion."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        metrics: Metrics,
        ledger: Ledger,
        limits: Callable[[], Limits],
        suspect: Callable[[str, float], None],
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._metrics = metrics
        self._ledger = ledger
        self._suspicion = Suspicion(suspect)
        self._refused = Refused(metrics.refused, time.monotonic)
        self.measured: defaultdict[str, Measured] = defaultdict(Measured)
        """By pool."""
        self._log_is_other = False  # than what this version reads, and that was said

    def account(self, told: str) -> None:
        """Count one finished exchange from Envoy's access log."""
        account = read_account(told)
        if account is None:
            self._tell_of_other_log()
            return
        known = self._policy().config
        pool = account.served_by if account.served_by in known.pools else "none"
        if account.completion_tokens is None and account.prompt_tokens is not None:
            account = _with_vectors(account, known.pools.get(pool))
        tenant = account.tenant if account.tenant in known.tenants else "default"
        metrics = self._metrics
        metrics.answers[pool, str(account.status), tenant] += 1
        self._learn(pool, account)
        estimate = self._estimate(pool, account)
        self._see_ending(pool, tenant, account, estimate)
        metrics.attempts[pool] += account.attempts
        if account.refused:
            self._refused.saw(account.refused, known.pools)
        if account.prompt_tokens:
            metrics.tokens[pool, tenant, "prompt"] += account.prompt_tokens
        if account.cached_tokens:
            metrics.tokens[pool, tenant, "cached"] += account.cached_tokens
        if account.completion_tokens:
            metrics.tokens[pool, tenant, "completion"] += account.completion_tokens
        if estimate.prompt:
            metrics.tokens[pool, tenant, "prompt_estimated"] += estimate.prompt
        if estimate.completion:
            metrics.tokens[pool, tenant, "completion_estimated"] += estimate.completion
        usd = 0.0
        if pool in known.pools:
            usd = self._ledger.answered(
                known,
                pool=pool,
                tenant=tenant,
                status=account.status,
                account=account,
                estimate=estimate,
            )
        if account.status == 200 and account.ttft_s is not None:
            metrics.ttft[pool, tenant].observe(account.ttft_s)
        if account.status == 200 and account.tpot_s is not None:
            metrics.tpot[pool, tenant].observe(account.tpot_s)
        self._settle(account)
        self._settle_limits(account, estimate, usd)

    def _tell_of_other_log(self) -> None:
        if not self._log_is_other:
            self._log_is_other = True
            _log.error(
                "Envoy's access log does not say what is counted from it: no tokens, times and "
                "costs. Take its body from this version's envoy.yaml; `forebay check` tells more"
            )

    def _learn(self, pool: str, account: Account) -> None:
        """What a pool's answers are like."""
        if account.status != 200:
            return
        measured = self.measured[pool]
        if account.server_ttft_s is not None:
            measured.first_token_s.add(account.server_ttft_s)
        if account.completion_tokens is None:
            return
        if account.streamed and account.body_bytes:
            measured.stream_bytes.add(account.body_bytes)
            measured.stream_tokens.add(account.completion_tokens)
        if account.bill.answers == 1:  # else several are written at once
            if account.tpot_s is not None:
                measured.token_s.add(account.tpot_s)
            elif account.json_s is not None and account.completion_tokens >= _TELLING_TOKENS:
                measured.token_s.add(account.json_s / account.completion_tokens)
        if account.charge is not None and account.prompt_tokens is not None:
            measured.prompt.add(account.charge.prompt_tokens, account.prompt_tokens)
            measured.cached_tokens.add(account.cached_tokens or 0)

    def _estimate(self, pool: str, account: Account) -> Estimate:
        """Of an answer that was not counted. A stream has taken its prompt once a token has come:
        its output is as much as its guard saw, or by its bytes and what a token of the pool's
        counted streams took. What a JSON answer that was left or cut would have had nobody knows:
        of that the prompt alone, if a server had the request."""
        if account.completion_tokens is not None or account.upstream_host == "-":
            return NOTHING
        measured, completion = self.measured[pool], 0
        if account.streamed:
            if account.status != 200 or not account.body_bytes or account.completion_estimate == 0:
                return NOTHING
            if account.completion_estimate is not None:
                completion = account.completion_estimate
            elif measured.stream_tokens.mean:
                # Of means, not the mean of ratios: short streams are mostly beside the tokens.
                token_bytes = measured.stream_bytes.mean / measured.stream_tokens.mean
                completion = round(account.body_bytes / token_bytes)
        elif account.status not in WORKED:
            return NOTHING
        prompt = cached = 0.0
        if account.charge is not None:
            prompt = measured.prompt.count(account.charge.prompt_tokens)
        if measured.prompt.mean_count:
            cached = prompt * measured.cached_tokens.mean / measured.prompt.mean_count
        return Estimate(round(prompt), round(cached), completion)

    def _see_ending(self, pool: str, tenant: str, account: Account, estimate: Estimate) -> None:
        settings = self._policy().config.pools.get(pool)
        if settings is None:  # no server was tried
            return
        # What was never counted (another filter chain than the reference's) is no sign of an error.
        how = ending(
            account.status,
            account.details,
            account.flags,
            ended_by_us=account.ended_by_us,
            has_failed=account.has_failed,
            has_usage=account.completion_tokens is not None,
            usage_expected=account.streamed and self.measured[pool].stream_tokens.count > 0,
        )
        self._metrics.endings[pool, how] += 1
        if how != "whole":
            line = logs.ending_line()
            line |= {
                "ending": how,
                "status": account.status,
                "pool": pool,
                "prompt_estimated": estimate.prompt,
                "completion_estimated": estimate.completion,
                "request_id": account.request_id,
                "tenant": tenant,
            }
            logs.append(line)
        if url := _endpoint(settings, account.upstream_host):
            self._suspicion.saw(url, how)

    def _settle(self, account: Account) -> None:
        """Of the tokens that were charged when the request was granted, what was too much or too
        little."""
        charge = account.charge
        if charge is None or account.completion_tokens is None:
            return
        answers = max(account.bill.answers, 1)
        self.measured[charge.pool].completion_tokens.add(account.completion_tokens / answers)
        limiter = self._policy().limiters.get(charge.pool)
        if limiter is not None:
            took = (account.prompt_tokens or 0) + account.completion_tokens
            share = self._policy().tenants.share_of(charge.payer)
            limiter.correct(charge.payer, share, took - charge.tokens)

    def _settle_limits(self, account: Account, estimate: Estimate, usd: float) -> None:
        """Likewise, of what the tenant may use. What no server worked on costs nothing."""
        charge = account.charge
        if charge is None or charge.charged is None:
            return
        rules = self._policy().tenants.rules_of(charge.payer)
        if rules is not None:
            tokens = (account.prompt_tokens or 0) + (account.completion_tokens or 0)
            if account.completion_tokens is None:
                tokens = estimate.prompt + estimate.completion
            counted = Cost(tokens, round(usd * NANO))
            self._limits().settle(charge.payer, rules, charge.charged, counted)


def _with_vectors(account: Account, pool: PoolConfig | None) -> Account:
    """Of vectors OpenAI's usage says no completion tokens: there are none."""
    if pool is None or pool.serves != "embeddings":
        return account
    return account._replace(completion_tokens=0)


def _endpoint(pool: PoolConfig, host: str) -> str | None:
    """Which of the pool's endpoints has the address `host` (ip:port, as Envoy logs it)."""
    if len(pool.endpoints) == 1 and host != "-":
        return pool.endpoints[0]  # its name may be another than its address
    return next((url for url in pool.endpoints if url.partition("://")[2] == host), None)
