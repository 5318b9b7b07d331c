"""When requests are sent: gamma-distributed gaps at a rate that is constant or ramps."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from quire.errors import InvalidRequestError

RampUp = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests a second, and how they clump.

    `burstiness` is the shape of the gamma distribution of the gaps: 1 is a Poisson process, less is burstier, more is
    more even, and inf is quite even. With `ramp_up` the rate moves from `request_rate` to `end_rate` over the requests,
    by equal steps (linear) or equal factors (exponential). Raises InvalidRequestError.
    """

    request_rate: float = math.inf
    burstiness: float = 1.0
    ramp_up: RampUp | None = None
    end_rate: float | None = None

    def __post_init__(self) -> None:
        _check_positive("request_rate", self.request_rate)
        _check_positive("burstiness", self.burstiness)
        if (self.ramp_up is None) != (self.end_rate is None):
            raise InvalidRequestError(
                "A ramp needs --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps.", field="ramp_up_strategy"
            )
        if self.end_rate is not None:
            _check_positive("ramp_up_end_rps", self.end_rate)
            if math.inf in (self.request_rate, self.end_rate):
                raise InvalidRequestError("A ramp's rates must be finite.", field="ramp_up_end_rps")

    def rate_at(self, progress: float) -> float:
        """Requests a second after this share of the requests."""
        if self.end_rate is None:
            return self.request_rate
        if self.ramp_up == "linear":
            return self.request_rate + (self.end_rate - self.request_rate) * progress
        return self.request_rate * math.pow(self.end_rate / self.request_rate, progress)

    def arrivals(self, num_requests: int, seed: int) -> list[float]:
        """Seconds from the start, ascending; the first request comes at once."""
        if self.request_rate == math.inf:
            return [0.0] * num_requests
        rng = random.Random(seed)  # noqa: S311
        times, now = [], 0.0
        for index in range(num_requests):
            times.append(now)
            mean_gap = 1 / self.rate_at(index / num_requests)
            even = self.burstiness == math.inf
            now += mean_gap if even else rng.gammavariate(self.burstiness, mean_gap / self.burstiness)
        return times


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidRequestError(f"{name} must be above 0, got {value:g}.", field=name, value=value)
