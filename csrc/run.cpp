#include "run.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include <sched.h>

namespace gpuload {
namespace {

std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How long the consumer watches for a batch before it sleeps: about half the cost of being woken.
constexpr std::int64_t kYieldNs = 20'000;

// How long close() waits for reads in progress.
constexpr std::chrono::seconds kCloseTimeout{2};

// Deterministic stand-ins that are tried for a sample that cannot be read.
constexpr std::uint32_t kMaxReplacements = 16;

}  // namespace

Run::Run(std::shared_ptr<Workers> workers, std::shared_ptr<const Reader> reader, std::shared_ptr<const Windows> windows,
         std::shared_ptr<const Labels> labels, Order order, u64 key, std::shared_ptr<BatchMemory> memory, Columns columns,
         RunOptions options)
    : workers_(std::move(workers)),
      reader_(std::move(reader)),
      windows_(std::move(windows)),
      labels_(std::move(labels)),
      order_(std::move(order)),
      key_(key),
      pieces_(reader_->catalog(), *windows_, key, options.to_nbytes),
      shipper_(pieces_, options.room, !reader_->catalog().is_uniform, reader_->catalog().item_ndim()),
      memory_(std::move(memory)),
      columns_(columns),
      options_(options),
      n_batches_(order_.n_batches()),
      slots_(static_cast<std::size_t>(options.depth)),
      stop_at_(n_batches_) {
    if (reader_->io() == Reader::Io::mmap) install_bus_error_handler();
    workers_->add(this);
}

bool Run::claim(Part &part) {
    if (closed_.load(std::memory_order_relaxed) || (stop_claiming_ && next_chunk_ == 0)) return false;
    const std::int64_t end = std::min(stop_at_.load(), consumed_.load(std::memory_order_seq_cst) + options_.depth);
    if (next_chunk_ == 0) {
        std::int64_t last = next_batch_;
        while (last < end && last < next_batch_ + options_.batches_per_claim) {
            Slot &claimed = slot(last);
            try {
                if (options_.on_error == OnError::skip)
                    claimed.skipped.assign(static_cast<std::size_t>(order_.batch_end(last) - order_.batch_begin(last)), 0);
                claimed.filled.block = memory_->take();
            } catch (...) {  // no memory: the batch is handed out as this error, and not claimed again
                fail(last, std::current_exception());
                stop_claiming_ = true;
                break;
            }
            if (claimed.filled.block == nullptr) break;
            claimed.error = nullptr;
            claimed.chunks_left.store(options_.chunks_per_batch);
            claimed.state.store(kFilling);
            ++last;
        }
        if (last == next_batch_) return false;
        part = {next_batch_, last, 0};
    } else {
        part = {next_batch_, next_batch_ + 1, next_chunk_};
    }
    if (++next_chunk_ == options_.chunks_per_batch) {
        next_chunk_ = 0;
        next_batch_ = part.last;
    }
    return true;
}

// A batch that failed is handed out as its error; nothing after it is filled.
void Run::fail(std::int64_t batch, std::exception_ptr error) {
    const std::lock_guard guard(mutex_);
    Slot &failed = slot(batch);
    if (!failed.error) failed.error = std::move(error);
    if (failed.filled.block == nullptr) failed.state.store(kReady);
    if (batch + 1 < stop_at_.load()) stop_at_.store(batch + 1);
    ready_.notify_all();
}

void Run::execute(const Part &part) noexcept {
    const std::int64_t begin = now_ns();
    for (std::int64_t batch = part.first; batch < part.last; ++batch) {
        try {
            if (!closed_.load(std::memory_order_relaxed)) fill_chunk(batch, part.chunk);
        } catch (const Reader::Stopped &) {
            // Nobody will ask for this batch.
        } catch (...) {
            fail(batch, std::current_exception());
        }
        if (slot(batch).chunks_left.fetch_sub(1) == 1) complete(batch);
    }
    fill_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
}

void Run::complete(std::int64_t batch) {
    Slot &finished = slot(batch);
    const bool is_whole = !finished.error && !closed_.load();
    if (options_.on_error == OnError::skip && is_whole) {
        try {
            compact(batch);
        } catch (...) {
            fail(batch, std::current_exception());
        }
    }
    if (columns_.table >= 0 && is_whole) point_into_batch(batch);
    finished.state.store(kReady, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) && batch == consumed_.load()) {
        const std::lock_guard guard(mutex_);
        ready_.notify_all();
    }
}

bool Run::next(Filled &filled, std::int64_t timeout_ns) {
    const std::int64_t batch = consumed_.load(std::memory_order_relaxed);
    if (closed_.load() || batch >= std::min(n_batches_, stop_at_.load())) {
        filled.block = nullptr;
        return true;
    }
    Slot &wanted = slot(batch);
    if (wanted.state.load(std::memory_order_acquire) != kReady) {
        const std::int64_t begin = now_ns();
        // Filling a small batch takes less time than being woken when it is full: better to join in than to sleep.
        while (options_.consumer_helps && wanted.state.load(std::memory_order_acquire) != kReady && workers_->help(this)) {
        }
        // A thread that was about to finish the batch may have lost its core to this one: yield, do not spin.
        const std::int64_t yield_until = now_ns() + std::min(kYieldNs, timeout_ns);
        while (wanted.state.load(std::memory_order_acquire) != kReady && now_ns() < yield_until) ::sched_yield();
        bool ready = wanted.state.load(std::memory_order_acquire) == kReady;
        if (!ready) {
            std::unique_lock lock(mutex_);
            sleeping_.store(true, std::memory_order_seq_cst);
            ready = ready_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                    [&] { return closed_.load() || wanted.state.load(std::memory_order_seq_cst) == kReady; });
            sleeping_.store(false, std::memory_order_relaxed);
        }
        wait_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
        if (!ready) return false;
        if (closed_.load()) {  // the batch may still be in the making
            filled.block = nullptr;
            return true;
        }
    }
    if (wanted.error) {
        const std::exception_ptr error = wanted.error;
        close();
        std::rethrow_exception(error);
    }
    {
        const std::lock_guard guard(mutex_);  // close() may be called by another thread
        if (closed_.load()) {
            filled.block = nullptr;
            return true;
        }
        filled = wanted.filled;
        wanted.filled.block = nullptr;
        wanted.state.store(kFree, std::memory_order_relaxed);
    }
    consumed_.store(batch + 1, std::memory_order_seq_cst);
    // Several small batches per wake-up: waking a thread takes as long as filling one.
    const std::int64_t wake_every = std::max(1, options_.depth / 2);
    if (options_.depth < 4 || (batch + 1) % wake_every == 0 || batch + 1 >= n_batches_) workers_->wake();
    return true;
}

void Run::close() {
    if (process().is_other()) return;  // the threads and their locks stayed in the parent
    if (closed_.exchange(true)) return;
    {
        const std::lock_guard guard(mutex_);
        ready_.notify_all();
    }
    finish(kCloseTimeout);
}

bool Run::finish(std::chrono::nanoseconds timeout) {
    is_stuck_.store(!workers_->remove(this, timeout));
    if (is_stuck_.load()) return false;
    const std::lock_guard guard(mutex_);
    for (Slot &left : slots_) {
        if (left.filled.block != nullptr) left.filled.block->drop_reference();
        left.filled.block = nullptr;
    }
    return true;
}

std::vector<Failure> Run::failures() const {
    const std::lock_guard guard(mutex_);
    return failures_;
}

void Run::fill_chunk(std::int64_t batch, std::int64_t chunk) {
    Slot &filling = slot(batch);
    const std::int64_t begin = order_.batch_begin(batch), n = order_.batch_end(batch) - begin;
    const std::int64_t first = n * chunk / options_.chunks_per_batch, last = n * (chunk + 1) / options_.chunks_per_batch;
    if (chunk == 0) {
        filling.filled.n = filling.filled.n_rows = n;
        filling.filled.ndim = reader_->catalog().item_ndim();
    }
    if (first == last) return;
    thread_local std::vector<Sample> samples;
    thread_local PieceMaker::Made made;
    samples.clear();
    const auto locate = [&](std::int64_t sample) { return windows_->locate(sample); };
    for (std::int64_t j = first; j < last; ++j) samples.push_back(order_.at(begin + j, locate));

    std::int64_t extent[kMaxNdim];
    const std::int64_t nbytes = pieces_.sample_nbytes(samples.front().item, extent);
    if (first == 0) std::copy(extent, extent + filling.filled.ndim, filling.filled.extent);
    std::byte *data = filling.filled.block->data;
    try {
        fill_windows(samples, first, data, nbytes, made);
    } catch (const ReadError &) {
        if (options_.on_error == OnError::raise) throw;
        fill_one_by_one(batch, samples, first, nbytes);
    }
    write_columns(samples, first, data);
    const std::int64_t elements = (last - first) * nbytes / static_cast<std::int64_t>(options_.to_nbytes);
    useful_nbytes_.fetch_add(elements * pieces_.from_nbytes(), std::memory_order_relaxed);
}

// Windows of consecutive rows of a batch, the first of them row `first`.
void Run::fill_windows(std::span<const Sample> samples, std::int64_t first, std::byte *data, std::int64_t nbytes,
                       PieceMaker::Made &made) const {
    std::byte *x = data + columns_.x;
    auto *table = reinterpret_cast<std::int64_t *>(data + columns_.table);
    switch (options_.delivery) {
        case Delivery::placed:
            reader_->fill(pieces_.make(samples, x + first * nbytes, nbytes, made), closed_);
            break;
        case Delivery::shipped:
            reader_->fill(shipper_.ship(samples, first, x, table, made), closed_);
            break;
        case Delivery::listed:
            shipper_.list(samples, reader_->files(), table, reinterpret_cast<std::int64_t *>(data + columns_.reads), made);
            break;
    }
}

// Windows of a batch lie behind one another.
void Run::point_into_batch(std::int64_t batch) {
    const Filled &filled = slot(batch).filled;
    auto nbytes = static_cast<std::int64_t>(options_.to_nbytes);
    for (int axis = 0; axis < filled.ndim; ++axis) nbytes *= filled.extent[axis];
    auto *table = reinterpret_cast<std::int64_t *>(filled.block->data + columns_.table);
    for (std::int64_t row = 0; row < filled.n; ++row) table[row * shipper_.row_length() + 1] = row * nbytes;
}

// Find the samples that cannot be read, and leave them out or put others in their place.
void Run::fill_one_by_one(std::int64_t batch, std::vector<Sample> &samples, std::int64_t first, std::int64_t nbytes) {
    Slot &filling = slot(batch);
    PieceMaker::Made made;
    const auto locate = [&](std::int64_t sample) { return windows_->locate(sample); };
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const std::int64_t row = first + static_cast<std::int64_t>(i);
        const Sample wanted = samples[i];
        for (std::uint32_t tries = 0;; ++tries) {
            try {
                fill_windows({&samples[i], 1}, row, filling.filled.block->data, nbytes, made);
                break;
            } catch (const ReadError &error) {
                const std::lock_guard guard(mutex_);
                failures_.push_back({batch, samples[i].item, samples[i].crop, error.what()});
                if (options_.max_errors >= 0 && static_cast<std::int64_t>(failures_.size()) > options_.max_errors) throw;
                if (options_.on_error == OnError::replace && tries == kMaxReplacements) throw;
            }
            if (options_.on_error == OnError::skip) {
                filling.skipped[static_cast<std::size_t>(first) + i] = 1;
                break;
            }
            const u64 word = draw(key_, static_cast<u64>(wanted.item), wanted.crop, kReplace, tries).low();
            samples[i] = order_.stand_in(word, locate);
            samples[i].valid = wanted.valid;
        }
    }
}

void Run::write_columns(const std::vector<Sample> &samples, std::int64_t first, std::byte *data) const {
    const auto put = [&](std::int64_t column, std::int64_t row, std::int64_t value) {
        std::memcpy(data + column + row * 8, &value, 8);
    };
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const Sample &sample = samples[i];
        const std::int64_t row = first + static_cast<std::int64_t>(i);
        if (columns_.label >= 0) {
            const std::size_t nbytes = labels_->row_nbytes;
            std::byte *to = data + columns_.label + row * static_cast<std::int64_t>(nbytes);
            const std::byte *from = labels_->bytes.data() + static_cast<std::size_t>(sample.item) * nbytes;
            if (nbytes == 8) std::memcpy(to, from, 8);
            else std::memcpy(to, from, nbytes);
        }
        if (columns_.index >= 0) put(columns_.index, row, sample.item);
        if (columns_.path >= 0) put(columns_.path, row, sample.item);
        if (columns_.crop >= 0) put(columns_.crop, row, sample.crop);
        if (columns_.valid >= 0) data[columns_.valid + row] = static_cast<std::byte>(sample.valid);
        if (columns_.start >= 0) {
            std::int64_t starts[kMaxNdim];
            const int ndim = pieces_.starts(sample, starts);
            for (int axis = 0; axis < ndim; ++axis) put(columns_.start, row * ndim + axis, starts[axis]);
        }
    }
}

// Close the gaps of skipped samples in every column.
void Run::compact(std::int64_t batch) {
    const Slot &compacted = slot(batch);
    Filled &filled = slot(batch).filled;
    auto x_nbytes = static_cast<std::int64_t>(options_.to_nbytes);
    for (int axis = 0; axis < filled.ndim; ++axis) x_nbytes *= filled.extent[axis];
    const bool is_placed = options_.delivery == Delivery::placed;  // else the table says where windows are
    const std::pair<std::int64_t, std::int64_t> rows[] = {
        {is_placed ? columns_.x : -1, x_nbytes}, {columns_.table, 8 * shipper_.row_length()}, {columns_.label, labels_ ? static_cast<std::int64_t>(labels_->row_nbytes) : 0},
        {columns_.index, 8}, {columns_.crop, 8}, {columns_.start, 8 * filled.ndim}, {columns_.valid, 1}, {columns_.path, 8}};
    std::int64_t kept = 0;
    for (std::int64_t row = 0; row < filled.n; ++row) {
        if (compacted.skipped[static_cast<std::size_t>(row)]) continue;
        if (kept != row)
            for (const auto &[column, nbytes] : rows)
                if (column >= 0)
                    std::memcpy(filled.block->data + column + kept * nbytes, filled.block->data + column + row * nbytes,
                                static_cast<std::size_t>(nbytes));
        ++kept;
    }
    if (kept == 0 && filled.n > 0) {
        const std::lock_guard guard(mutex_);
        throw ReadError(0, "batch " + std::to_string(batch),
                        "expected at least one readable sample of " + std::to_string(filled.n) +
                            ", got none; pass on_error=\"replace\" or a larger batch_size; last: " +
                            (failures_.empty() ? "" : failures_.back().message));
    }
    filled.n = kept;
}

}  // namespace gpuload
