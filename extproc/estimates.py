"""What a size that is known lets expect of a count that is not, by the pairs seen lately. Pure."""

from extproc.admission import Running

# Of the mean size: with less spread than this there is no line to be seen, only a ratio.
_LEAST_SPREAD = 0.1


class Line:
    """count = overhead + rate * size, neither below 0: least squares over the last pairs, as many
    as Running remembers. Of prompts the overhead is the model's chat template. A mere ratio would
    not do: with real vLLM, many short prompts made a few long ones a third too dear."""

    __slots__ = ("_product", "_size", "mean_count")

    def __init__(self) -> None:
        self._size = Running()
        self.mean_count = self._product = 0.0

    def add(self, size: float, count: float) -> None:
        weight = self._size.add(size)
        self.mean_count += weight * (count - self.mean_count)
        self._product += weight * (size * count - self._product)

    def count(self, size: float) -> float:
        """What is to be expected; `size` itself before there is a pair."""
        mean_size, mean_count = self._size.mean, self.mean_count
        if mean_size <= 0:
            return size
        ratio = mean_count / mean_size
        spread = self._size.deviation
        if spread < _LEAST_SPREAD * mean_size:
            return ratio * size
        rate = (self._product - mean_size * mean_count) / spread**2
        rate = min(max(rate, 0.0), ratio)
        return mean_count + rate * (size - mean_size)
