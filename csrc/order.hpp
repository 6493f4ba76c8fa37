// Which sample stands where in an epoch: a pure function, computed at random access.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "order.h"

namespace gpuload {

struct Sample {
    std::int64_t item;
    std::uint32_t crop;
    bool valid;  // false for a repeat that only fills up the last batches
};

// The permutation of an epoch's samples.
class Shuffle {
  public:
    Shuffle(i32 kind, std::int64_t n, u64 key, std::int64_t block, std::int64_t blocks_mixed)
        : shuffled_(make_shuffled(kind, static_cast<u64>(n), key, static_cast<u64>(block), static_cast<u64>(blocks_mixed))) {}

    // The sample at position `i` of [0, n).
    std::int64_t operator()(std::int64_t i) const {
        const auto within = [this](u64 group, u64 n) -> const Permutation & { return kept(group, n); };
        return static_cast<std::int64_t>(shuffled_.at(static_cast<u64>(i), within));
    }

    const Shuffled &data() const { return shuffled_; }

  private:
    // Each thread keeps the permutation of the group it was last in: making one costs more than using it.
    const Permutation &kept(u64 group, u64 n) const {
        struct Kept {
            u64 key = 0, group = 0;
            Permutation permutation = {};
        };
        thread_local Kept last;
        if (last.key != shuffled_.key || last.group != group || last.permutation.n != n)
            last = {shuffled_.key, group, shuffled_.within_group(group, n)};
        return last.permutation;
    }

    Shuffled shuffled_;
};

// What one rank sees of an epoch. Positions of all ranks interleave: position i of rank r is
// first + i * world + r, so that a run may go on at another world size.
struct Order {
    Shuffle shuffle;
    std::int64_t n_samples;             // of the epoch, over all ranks
    std::int64_t first;                 // samples of it that were handed out before
    std::int64_t rank, world;
    std::int64_t n_local;               // positions of this rank
    std::int64_t batch;                 // samples per batch
    std::vector<std::int64_t> ends;     // or the local end of each batch
    std::vector<std::int64_t> listed;   // explicit items in place of a permutation (a sampler)
    std::vector<std::uint32_t> listed_crop;

    std::int64_t n_batches() const {
        return ends.empty() ? (n_local + batch - 1) / batch : static_cast<std::int64_t>(ends.size());
    }
    std::int64_t batch_begin(std::int64_t b) const {
        return ends.empty() ? b * batch : (b == 0 ? 0 : ends[static_cast<std::size_t>(b - 1)]);
    }
    std::int64_t batch_end(std::int64_t b) const {
        return ends.empty() ? std::min((b + 1) * batch, n_local) : ends[static_cast<std::size_t>(b)];
    }

    // The sample at a position of this rank. `locate` tells item and crop of a sample.
    template <class Locate>
    Sample at(std::int64_t local, const Locate &locate) const {
        const std::int64_t position = first + local * world + rank;
        const bool valid = position < n_samples;
        return sample(valid ? position : position % n_samples, valid, locate);
    }

    // Any sample of the epoch, picked by a random word.
    template <class Locate>
    Sample stand_in(u64 word, const Locate &locate) const {
        return sample(static_cast<std::int64_t>(multiply_high(word, static_cast<u64>(n_samples))), true, locate);
    }

  private:
    template <class Locate>
    Sample sample(std::int64_t position, bool valid, const Locate &locate) const {
        if (!listed.empty())
            return {listed[static_cast<std::size_t>(position)], listed_crop[static_cast<std::size_t>(position)], valid};
        const auto [item, crop] = locate(shuffle(position));
        return {item, crop, valid};
    }
};

}  // namespace gpuload
