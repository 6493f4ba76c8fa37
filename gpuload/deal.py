"""Deal the samples of an epoch out to ranks, in the order of the loader or of a sampler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuload import _native
from gpuload.options import Options, Sampler
from gpuload.order import (
    Listed,
    Shares,
    bucket,
    list_samples,
    native_epoch,
    share,
    share_batches,
    share_count,
)
from gpuload.samples import Items


class Dealer:
    """Knows what each rank gets of an epoch. A sampler is gone through once an epoch."""

    def __init__(self, samples: Items, options: Options) -> None:
        self._samples = samples
        self._options = options
        self._largest = 0  # batch that a sampler has made so far

    def expect_batches(self) -> None:
        """Every rank has at least one batch.

        Raises:
            ValueError: there are too few samples, or they cannot be dealt evenly.
            TypeError, IndexError: a list given as a sampler names something else than items.
        """
        o = self._options
        if o.batch_sampler is not None and self._samples.has_buckets:
            raise ValueError(
                "batch_sampler: expected bucket=False of pad= beside it, got True; a batch sampler "
                "decides what makes a batch"
            )
        if isinstance(o.batch_sampler, list | tuple):
            self._samples.batches(o.batch_sampler)
        elif isinstance(o.sampler, list | tuple | np.ndarray):
            self._samples.items(o.sampler)
        if self.n_batches > 0:
            return
        n, what = self.n_dealt()
        if n < o.world_size:
            raise ValueError(
                f"even: expected at least one of {n} {what} for each of {o.world_size} ranks, got "
                f'"{o.even}"; pass even="pad" or fewer ranks'
            )
        raise ValueError(
            f"drop_last: expected at least one full batch of {o.batch_size} from {n} samples on "
            f"each of {o.world_size} ranks, got none; pass drop_last=False or a smaller batch_size"
        )

    @property
    def n_batches(self) -> int:
        """Of a whole epoch on this rank; the same on every rank."""
        o = self._options
        if o.batch_sampler is not None:
            return share_count(len(o.batch_sampler), world=o.world_size, even=o.even)
        return self._share(self.n_dealt()[0], first=0).n_batches

    def n_dealt(self) -> tuple[int, str]:
        """What an epoch deals out to the ranks. A sampler tells its length, and is not gone
        through."""
        o = self._options
        if o.batch_sampler is not None:
            return len(o.batch_sampler), "batches"
        if o.sampler is not None:
            return len(o.sampler) * self._samples.per_item_of_sampler(), "samples"
        return self._samples.n, "samples"

    def _share(self, n_samples: int, *, first: int) -> Shares:
        o = self._options
        return share(
            n_samples,
            first=first,
            batch_size=o.batch_size,
            drop_last=o.drop_last,
            rank=o.rank,
            world=o.world_size,
            even=o.even,
        )

    def deal(self, first: int, *, seed: int, epoch: int) -> tuple[Shares, Listed | None]:
        """Which samples this rank sees in an epoch that goes on at sample `first`. Goes through
        the sampler once."""
        o = self._options
        if o.batch_sampler is not None:
            return self._deal_batches(o.batch_sampler, first)
        if o.sampler is None and not self._samples.has_buckets:
            return self._share(self._samples.n, first=first), None
        if o.sampler is not None:
            per_item = self._samples.per_item_of_sampler()
            listed = list_samples(self._samples.items(o.sampler), per_item)
        else:
            listed = self._list_all(seed, epoch)
        if self._samples.has_buckets:
            key = self._whole_epoch(seed, epoch).key
            sizes = self._samples.sizes(listed.items)
            is_shuffled = bool(o.shuffle) or o.sampler is not None
            listed = bucket(listed, sizes, key=key, is_shuffled=is_shuffled)
        shares = self._share(len(listed.items), first=first)
        self._largest = max(self._largest, min(o.batch_size, shares.n_local))
        return shares, listed

    def _whole_epoch(self, seed: int, epoch: int) -> _native.Epoch:
        """All samples of an epoch, in their order, as one rank would see them."""
        n = self._samples.n
        shares = share(n, first=0, batch_size=n, drop_last=False, rank=0, world=1, even="exact")
        return native_epoch(
            shares,
            seed=seed,
            epoch=epoch,
            shuffle=self._options.shuffle,
            block=self._samples.block,
            listed=None,
        )

    def _list_all(self, seed: int, epoch: int) -> Listed:
        whole = self._whole_epoch(seed, epoch)
        items, crops, _ = whole.samples(self._samples.native(), 0, self._samples.n)
        return Listed(items, crops.astype(np.uint32))

    def _deal_batches(
        self, batch_sampler: Sampler[Sequence[int]], first: int
    ) -> tuple[Shares, Listed]:
        o, per_item = self._options, self._samples.per_item_of_sampler()
        batches = self._samples.batches(batch_sampler)
        sizes = np.array([len(batch) * per_item for batch in batches], np.int64)
        self._largest = max(self._largest, int(sizes.max()))
        shares, numbers = share_batches(
            sizes, first=first, rank=o.rank, world=o.world_size, even=o.even
        )
        # Crops are numbered over the whole epoch, whichever part of it this is.
        listed = list_samples(np.concatenate(batches), per_item)
        ends = np.cumsum(sizes)
        rows = [np.arange(ends[k] - sizes[k], ends[k]) for k in numbers]
        return shares, listed.take(np.concatenate([np.empty(0, np.int64), *rows]))

    @property
    def largest_batch(self) -> int:
        """Samples of the largest batch: never more than an epoch has."""
        o = self._options
        if o.batch_sampler is not None:
            return self._largest or self._guess_largest(o.batch_sampler)
        n_local = self._share(self.n_dealt()[0], first=0).n_local
        return max(self._largest, min(o.batch_size, n_local))

    def _guess_largest(self, batch_sampler: Sampler[Sequence[int]]) -> int:
        """Before the first epoch: torch's BatchSampler tells, others are gone through."""
        items = getattr(batch_sampler, "batch_size", None)
        if not isinstance(items, int):
            items = max(len(batch) for batch in self._samples.batches(batch_sampler))
        return items * self._samples.per_item_of_sampler()

    def describe(self) -> str:
        """How the remainder is dealt, for people."""
        o, (n, what) = self._options, self.n_dealt()
        if o.even == "exact" and not o.drop_last:
            return "each once"
        local = self.n_batches if what == "batches" else self._share(n, first=0).n_local
        covered = local * o.world_size
        if covered < n:
            return f"{n - covered} {what} left out"
        return f"{covered - n} {what} repeated" if covered > n else "even"
