"""Time what runs on a GPU, by events of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UPS = 2


def gpu_seconds(
    run: Callable[[], object], *, repeats: int, launches: int, ahead: Callable[[], object]
) -> list[float]:
    """Seconds that the GPU takes for one `run`, on the stream that is current.

    Args:
        launches: how often it runs within one repeat.
        ahead: keeps the GPU busy while the host enqueues, so that the host is not what is timed.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    for repeat in range(WARM_UPS + repeats):
        ahead()
        begin.record()
        for _ in range(launches):
            run()
        end.record()
        end.synchronize()
        if repeat >= WARM_UPS:
            found.append(begin.elapsed_time(end) / 1e3 / launches)
    return found


class Step:
    """What a training step costs the GPU: about `milliseconds` of matrix products."""

    SIDE = 2048

    def __init__(self, milliseconds: float) -> None:
        self._a = torch.randn(self.SIDE, self.SIDE, device="cuda")
        self._b = torch.empty_like(self._a)
        self.n = 1
        one = min(gpu_seconds(self._product, repeats=10, launches=20, ahead=self._product))
        self.n = max(1, round(milliseconds / 1e3 / one))
        self.milliseconds = self.n * one * 1e3

    def _product(self) -> None:
        torch.mm(self._a, self._a, out=self._b)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Enqueue the step; it uses the batch."""
        for _ in range(self.n):
            self._product()
        return x.sum(dtype=torch.float64)
