// Memory that batches are filled in.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "fork.hpp"

namespace gpuload {

class BatchMemory;

// The memory of one batch. `references` counts what still looks at it; the last one gives it back.
struct Block {
    std::byte *data = nullptr;
    std::atomic<int> references{0};
    std::shared_ptr<BatchMemory> owner;  // set while the block is out

    void drop_reference();
};

// Blocks of one size. Either recycled: taken at will, and kept for the next batch when they come back, because
// fresh memory costs more than filling it; or slabs: a fixed set that somebody else owns.
class BatchMemory : public std::enable_shared_from_this<BatchMemory> {
  public:
    BatchMemory(std::size_t nbytes, std::size_t max_idle) : nbytes_(nbytes), max_idle_(max_idle) {}
    BatchMemory(std::size_t nbytes, const std::vector<std::byte *> &slabs);
    ~BatchMemory();
    BatchMemory(const BatchMemory &) = delete;
    BatchMemory &operator=(const BatchMemory &) = delete;

    // nullptr when all slabs are out. Throws std::bad_alloc.
    Block *take();
    void give(Block *block);

    std::size_t nbytes() const { return nbytes_; }
    std::size_t n_blocks() const { return n_blocks_.load(); }  // in use or kept

  private:
    std::size_t nbytes_, max_idle_;
    bool is_slabs_ = false;
    Process process_;
    std::mutex mutex_;
    std::vector<Block *> idle_;  // the last one in is the first one out: it is warm
    std::atomic<std::size_t> n_blocks_{0};
};

inline void Block::drop_reference() {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) owner->give(this);
}

}  // namespace gpuload
