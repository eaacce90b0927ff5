import asyncio
import time

from tests.e2e.client import chat


async def test_long(make_gateway):
    g = make_gateway(
        policy={
            "pools": {"small": {"slots": 1}},
            "routing": {"fallback": {}},
            "admission": {"high_water": 9, "batch": {"max_wait": "5m"}},
            "tenants": {"acme": {}},
        },
        sim_args={"small": ("--decode-ms", "20", "--max-model-len", "10000")},
    )
    B = {"x-request-class": "batch"}

    async def one(n, tokens):
        await asyncio.sleep(n * 0.3)
        t = time.monotonic()
        a = await g.ask(chat(f"x {n}", max_tokens=tokens), headers=B, timeout_s=400)
        print(
            n,
            "took",
            time.monotonic() - t,
            a.status,
            a.headers.get("server-timing"),
            a.json["choices"][0]["finish_reason"] if a.status == 200 else a.body[:200],
        )

    await asyncio.gather(one(0, 4000), one(1, 4000), one(2, 50))
