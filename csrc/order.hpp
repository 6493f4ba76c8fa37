// Which sample stands where in an epoch: a pure function, computed at random access.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "random.h"

namespace gpuload {

struct Sample {
    std::int64_t item;
    std::uint32_t crop;
    bool valid;  // false for a repeat that only fills up the last batches
};

// The permutation of an epoch's samples.
class Shuffle {
  public:
    enum class Kind : int { none, full, blocks };

    Shuffle(Kind kind, std::int64_t n, u64 key, std::int64_t block, std::int64_t blocks_mixed)
        : kind_(n > 0 ? kind : Kind::none), n_(static_cast<u64>(n)), key_(key) {
        if (kind_ == Kind::full) permutation_ = make_permutation(n_, key, kShuffle, 0);
        if (kind_ != Kind::blocks) return;
        block_ = static_cast<u64>(block);
        group_ = static_cast<u64>(blocks_mixed);
        n_blocks_ = (n_ + block_ - 1) / block_;
        permutation_ = make_permutation(n_blocks_, key, kBlocks, 0);
        short_by_ = n_blocks_ * block_ - n_;
        short_slot_ = permutation_.inverse(n_blocks_ - 1);
    }

    // The sample at position `i` of [0, n).
    std::int64_t operator()(std::int64_t i) const {
        const u64 at = static_cast<u64>(i);
        if (kind_ == Kind::none) return i;
        if (kind_ == Kind::full) return static_cast<std::int64_t>(permutation_(at));
        // Blocks of neighbouring samples are permuted, then the samples of `group_` blocks are mixed.
        const u64 group = slot_of(at) / group_, begin = slot_begin(group * group_);
        const u64 end = std::min(slot_begin(std::min((group + 1) * group_, n_blocks_)), n_);
        const u64 mixed = begin + within(group, end - begin)(at - begin);
        const u64 slot = slot_of(mixed);
        return static_cast<std::int64_t>(permutation_(slot) * block_ + (mixed - slot_begin(slot)));
    }

  private:
    // The last block may be short; `short_slot_` is where it lies after the permutation.
    u64 slot_begin(u64 slot) const { return slot * block_ - (slot > short_slot_ ? short_by_ : 0); }
    u64 slot_of(u64 position) const {
        const u64 slot = position / block_;
        return slot < short_slot_ || position < slot_begin(short_slot_ + 1)
                   ? std::min(slot, short_slot_) : (position + short_by_) / block_;
    }

    // Each thread keeps the permutation of the group it was last in: making one costs more than using it.
    const Permutation &within(u64 group, u64 n) const {
        struct Kept {
            u64 key = 0, group = 0;
            Permutation permutation = {};
        };
        thread_local Kept kept;
        if (kept.key != key_ || kept.group != group || kept.permutation.n != n)
            kept = {key_, group, make_permutation(n, key_, kWithinBlocks, group)};
        return kept.permutation;
    }

    Kind kind_;
    u64 n_, key_;
    u64 block_ = 1, group_ = 1, n_blocks_ = 0, short_by_ = 0, short_slot_ = 0;
    Permutation permutation_ = {};
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
