// One epoch in progress: batches are filled ahead of the consumer, in order, within a fixed number of blocks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arrange.hpp"
#include "memory.hpp"
#include "order.hpp"
#include "pieces.hpp"
#include "reader.hpp"
#include "ship.hpp"
#include "window.hpp"
#include "workers.hpp"

namespace gpuload {

// Where each column of a batch begins in its block, in bytes; -1 for a column that is not wanted. `path` holds item
// numbers too: Python looks the paths up.
//
// `table` and `reads` are there when windows are not placed: rows of Shipper, 8 bytes each number.
struct Columns {
    std::int64_t x = 0, label = -1, index = -1, crop = -1, start = -1, valid = -1, path = -1, table = -1, reads = -1;
};

// One row of label bytes per item.
struct Labels {
    std::vector<std::byte> bytes;
    std::size_t row_nbytes = 0;
};

enum class OnError : int { raise, skip, replace };

// A sample that could not be read.
struct Failure {
    std::int64_t batch, item, crop;
    std::string message;
};

// What arranges windows that are more than cut and cast, and where it puts them.
struct Arranging {
    std::shared_ptr<const Arranger> arranger;
    std::vector<FieldColumns> fields;
    FitColumns told;
};

struct RunOptions {
    int depth;                // batches that may be filled ahead of the consumer
    int batches_per_claim;    // small batches are claimed several at a time
    int chunks_per_batch;     // large batches are filled by several threads
    bool consumer_helps;      // the consumer fills parts itself while its batch is not ready
    OnError on_error;
    std::int64_t max_errors;  // more failures than that end the run; -1: any number
    Delivery delivery = Delivery::placed;
    std::size_t to_nbytes;    // of a delivered element
    std::int64_t room;        // bytes of a block for each window, where windows are not placed
    Arranging arranging = {};
};

struct Filled {
    Block *block;
    std::int64_t n;
    std::int64_t n_rows;            // windows that were filled: more than n where some were left out
    int ndim;
    std::int64_t extent[kMaxNdim];  // of one sample; along the axes of the first field, where there are several
    std::int64_t packed_end;        // of bytes that are packed
};

class Run final : public Work {
  public:
    Run(std::shared_ptr<Workers> workers, std::shared_ptr<const Reader> reader, std::shared_ptr<const Windows> windows,
        std::shared_ptr<const Labels> labels, Order order, u64 key, std::shared_ptr<BatchMemory> memory, Columns columns,
        RunOptions options);
    ~Run() override { close(); }

    // Wait for the next batch, at most `timeout_ns`. False when none came in that time. At the end `filled.block`
    // is nullptr. Throws what went wrong while that batch was filled. The caller owns one reference to the block.
    bool next(Filled &filled, std::int64_t timeout_ns);

    // Whether next() would return at once.
    bool is_ready() {
        return slot(consumed_.load(std::memory_order_relaxed)).state.load(std::memory_order_acquire) == kReady;
    }

    // Stop filling and give back what was not handed out. Waits for the read in progress, at most kCloseTimeout: one of
    // a dead network file system never returns. Then the run is stuck, and must not be destroyed before finish().
    void close();

    // After close(): whether no thread is in this run any more; what it held is then given back.
    bool finish(std::chrono::nanoseconds timeout);
    bool is_stuck() const { return is_stuck_.load(); }

    // A slab has come back.
    void slab_returned() { workers_->wake(); }

    bool claim(Part &part) override;
    void execute(const Part &part) noexcept override;

    std::vector<Failure> failures() const;
    std::int64_t useful_nbytes() const { return useful_nbytes_.load(); }
    std::int64_t fill_ns() const { return fill_ns_.load(); }
    std::int64_t wait_ns() const { return wait_ns_.load(); }
    const Process &process() const { return workers_->process(); }

  private:
    enum State : int { kFree, kFilling, kReady };

    struct Slot {
        std::atomic<int> state{kFree};
        std::atomic<int> chunks_left{0};
        std::atomic<std::int64_t> packed_end{0};
        Filled filled{};
        std::exception_ptr error;
        std::vector<std::uint8_t> skipped;
    };

    Slot &slot(std::int64_t batch) { return slots_[static_cast<std::size_t>(batch % options_.depth)]; }
    // Rows of a batch that one thread fills, and the shape they have: bytes of a row, unless they are arranged.
    struct Share {
        std::int64_t batch;
        std::vector<Sample> samples;  // of the rows from `begin` on
        std::int64_t begin, nbytes;
        std::int64_t extent[kMaxNdim];
        PieceMaker::Made made;

        std::size_t at(std::int64_t row) const { return static_cast<std::size_t>(row - begin); }
    };

    void fill_chunk(std::int64_t batch, std::int64_t chunk);
    void fill_rows(Share &share, std::int64_t first, std::int64_t last);
    void fill_windows(Share &share, std::int64_t first, std::int64_t last, std::byte *data);
    void arrange(Share &share, std::int64_t first, std::int64_t last, std::byte *data);
    void fill_one_by_one(Share &share, std::int64_t first, std::int64_t last);
    void point_into_batch(std::int64_t batch);
    void write_columns(const Share &share, std::int64_t first, std::int64_t last, std::byte *data) const;
    std::vector<std::pair<std::int64_t, std::int64_t>> columns_of(const Filled &filled) const;
    void complete(std::int64_t batch);
    void compact(std::int64_t batch);
    void fail(std::int64_t batch, std::exception_ptr error);

    std::shared_ptr<Workers> workers_;
    std::shared_ptr<const Reader> reader_;
    std::shared_ptr<const Windows> windows_;
    std::shared_ptr<const Labels> labels_;
    const Order order_;
    const u64 key_;
    const PieceMaker pieces_;
    const Shipper shipper_;
    std::shared_ptr<BatchMemory> memory_;
    const Columns columns_;
    const RunOptions options_;
    const std::int64_t n_batches_;

    std::vector<Slot> slots_;
    std::int64_t next_batch_ = 0, next_chunk_ = 0;   // guarded by the workers
    bool stop_claiming_ = false;                     // so is this
    std::atomic<std::int64_t> consumed_{0};
    std::atomic<std::int64_t> stop_at_;              // batches from here on are not filled
    std::atomic<bool> closed_{false}, is_stuck_{false};

    mutable std::mutex mutex_;                       // of errors, failures and the consumer's sleep
    std::condition_variable ready_;
    std::atomic<bool> sleeping_{false};
    std::vector<Failure> failures_;

    std::atomic<std::int64_t> useful_nbytes_{0}, fill_ns_{0}, wait_ns_{0};
};

}  // namespace gpuload
