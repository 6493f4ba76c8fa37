#include "memory.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include <sys/mman.h>

namespace gpuload {
namespace {

constexpr std::size_t kPage = 4096, kHugePage = 2u << 20;

// Python's MemoryError, with a text.
class NoMemory : public std::bad_alloc {
  public:
    explicit NoMemory(std::size_t nbytes) {
        std::snprintf(text_, sizeof(text_), "batch: expected %zu bytes of memory, got none; lower batch_size or prefetch", nbytes);
    }
    const char *what() const noexcept override { return text_; }

  private:
    char text_[128];
};

std::size_t round_up(std::size_t nbytes, std::size_t unit) { return (nbytes + unit - 1) / unit * unit; }

// Small blocks come from the heap: a caller may keep a hundred thousand of them, and maps are limited. Batches of at
// least two huge pages are aligned to them: fewer page faults at the first use, fewer TLB misses after.
constexpr std::size_t kSmall = 256 << 10, kLine = 64;

std::byte *allocate(std::size_t nbytes) {
    if (nbytes <= kSmall) {
        void *block = std::aligned_alloc(kLine, round_up(nbytes + (nbytes == 0), kLine));
        if (block == nullptr) throw NoMemory(nbytes);
        return static_cast<std::byte *>(block);
    }
    const bool huge = nbytes >= 2 * kHugePage;
    const std::size_t wanted = round_up(nbytes, kPage), asked = wanted + (huge ? kHugePage : 0);
    void *address = ::mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) throw NoMemory(asked);
    auto *begin = static_cast<std::byte *>(address);
    if (!huge) return begin;
    const auto at = reinterpret_cast<std::uintptr_t>(begin);
    const std::size_t skip = round_up(at, kHugePage) - at;
    if (skip > 0) ::munmap(begin, skip);
    if (kHugePage - skip > 0) ::munmap(begin + skip + wanted, kHugePage - skip);
    ::madvise(begin + skip, wanted, MADV_HUGEPAGE);
    return begin + skip;
}

void release(std::byte *data, std::size_t nbytes) {
    if (nbytes <= kSmall) std::free(data);
    else ::munmap(data, round_up(nbytes, kPage));
}

}  // namespace

BatchMemory::BatchMemory(std::size_t nbytes, const std::vector<std::byte *> &slabs)
    : nbytes_(nbytes), max_idle_(slabs.size()), is_slabs_(true), n_blocks_(slabs.size()) {
    for (std::byte *data : slabs) {
        idle_.push_back(new Block);
        idle_.back()->data = data;
    }
}

BatchMemory::~BatchMemory() {
    for (Block *block : idle_) {
        if (!is_slabs_) release(block->data, nbytes_);
        delete block;
    }
}

Block *BatchMemory::take() {
    Block *block = nullptr;
    {
        const std::lock_guard guard(mutex_);
        if (!idle_.empty()) {
            block = idle_.back();
            idle_.pop_back();
        }
    }
    if (block == nullptr) {
        if (is_slabs_) return nullptr;
        auto fresh = std::make_unique<Block>();
        fresh->data = allocate(nbytes_);
        block = fresh.release();
        n_blocks_.fetch_add(1);
    }
    block->references.store(1, std::memory_order_relaxed);
    block->owner = shared_from_this();
    return block;
}

void BatchMemory::give(Block *block) {
    const std::shared_ptr<BatchMemory> self = std::move(block->owner);  // may be the last to hold this object
    if (process_.is_other()) return;  // after a fork the lock may never be free: the child leaves the block alone
    {
        const std::lock_guard guard(mutex_);
        if (idle_.size() < max_idle_) {
            idle_.push_back(block);
            return;
        }
    }
    release(block->data, nbytes_);
    delete block;
    n_blocks_.fetch_sub(1);
}

}  // namespace gpuload
