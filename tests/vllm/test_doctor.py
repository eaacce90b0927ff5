"""What `forebay doctor` reads is what a real vLLM says, and means what it takes it for."""

import openai

from extproc.doctor import reading
from extproc.doctor.samples import Samples
from tests.e2e.client import Gateway
from tests.vllm.servers import Server

TOKENS = 12


def _read(server: Server) -> reading.Server:
    return reading.server(Samples(Gateway.get(f"{server.url}/metrics").decode()))


def test_one_answer_is_in_every_number_that_the_doctor_reads(large: Server) -> None:
    before = _read(large)
    with large.client() as client:
        answer = client.completions.create(
            model=large.model,
            prompt="Once upon a time",
            max_tokens=TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True, "cache_salt": "doctor"},
        )
    assert isinstance(answer, openai.types.Completion)
    assert answer.usage
    prompt = answer.usage.prompt_tokens
    Gateway.until(
        lambda: _read(large).counts.prefill.count > before.counts.prefill.count, "not counted"
    )
    after = _read(large)
    assert after.missing == ()
    assert after.kv_usage is not None
    now, then = after.counts, before.counts
    for name in ("ttft", "tpot", "queue", "prefill", "prompt_tokens"):
        assert getattr(now, name).since(getattr(then, name)).count == 1, name
    assert now.gaps.since(then.gaps).count == TOKENS - 1
    assert now.prompt_tokens.since(then.prompt_tokens).sum == prompt
    steps = now.steps.since(then.steps)
    assert (steps.count, steps.sum) == (TOKENS, prompt + TOKENS), "a step for each token"
    assert now.generated - then.generated == TOKENS
    assert now.preemptions == then.preemptions
