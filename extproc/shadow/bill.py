"""What one sample has cost: a question counts as much as it may, until its server says. Pure."""

from extproc.config import PriceConfig
from extproc.openai import Said
from extproc.shadow.sample import usd


class Bill:
    def __init__(self) -> None:
        self.usd = 0.0

    def of(self, price: PriceConfig, prompt: int, completion: int) -> "Asked":
        """One question, as a block: tokens that it takes at most."""
        return Asked(self, price, prompt, completion)


class Asked:
    def __init__(self, bill: Bill, price: PriceConfig, prompt: int, completion: int) -> None:
        self._bill = bill
        self._price = price
        self._most = prompt, completion
        self.heard: Said | None = None
        """The answer, once it is there."""

    def __enter__(self) -> "Asked":
        return self

    def __exit__(self, *_: object) -> None:
        heard = self.heard
        tokens = self._most if heard is None else (heard.prompt_tokens, heard.completion_tokens)
        self._bill.usd += usd(self._price, *tokens)
