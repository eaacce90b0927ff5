"""When to leave alone what fails: nothing is spent on samples that nobody will judge. Pure."""

_FAILURES_IN_A_ROW = 3
_FIRST_REST_S = 60.0
_LONGEST_REST_S = 900.0


class Rest:
    """After three failures in a row a minute, after each further one twice as long, up to fifteen
    minutes; a success ends it all."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def is_on(self, now: float) -> bool:
        return now < self._until

    def worked(self) -> None:
        self._failures = 0

    def failed(self, now: float) -> float:
        """For how long nothing is to be tried from now on: 0 for the first failures."""
        self._failures += 1
        beyond = self._failures - _FAILURES_IN_A_ROW
        if beyond < 0:
            return 0.0
        rest_s = min(_FIRST_REST_S * 2 ** min(beyond, 10), _LONGEST_REST_S)
        self._until = now + rest_s
        return rest_s
