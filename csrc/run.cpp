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
            claimed.packed_end.store(0);
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
    if (is_whole) point_into_batch(batch);
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
        filled.packed_end = wanted.packed_end.load();
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
    thread_local Share share;
    const Arranger *arranger = options_.arranging.arranger.get();
    share.batch = batch;
    share.begin = arranger == nullptr ? first : 0;  // one large window makes all of its batch large
    share.samples.clear();
    const auto locate = [&](std::int64_t sample) { return windows_->locate(sample); };
    for (std::int64_t j = share.begin; j < (arranger == nullptr ? last : n); ++j) share.samples.push_back(order_.at(begin + j, locate));
    if (arranger == nullptr) share.nbytes = pieces_.sample_nbytes(share.samples.front().item, share.extent);
    else arranger->target(share.samples, key_, share.extent);
    if (first == 0) std::copy(share.extent, share.extent + filling.filled.ndim, filling.filled.extent);
    try {
        fill_rows(share, first, last);
    } catch (const ReadError &) {
        if (options_.on_error == OnError::raise) throw;
        fill_one_by_one(share, first, last);
    }
    write_columns(share, first, last, filling.filled.block->data);
}

void Run::fill_rows(Share &share, std::int64_t first, std::int64_t last) {
    std::byte *data = slot(share.batch).filled.block->data;
    if (options_.arranging.arranger) arrange(share, first, last, data);
    else fill_windows(share, first, last, data);
}

void Run::fill_windows(Share &share, std::int64_t first, std::int64_t last, std::byte *data) {
    const std::span<const Sample> samples(share.samples.data() + share.at(first), static_cast<std::size_t>(last - first));
    std::byte *x = data + columns_.x;
    auto *table = reinterpret_cast<std::int64_t *>(data + columns_.table);
    switch (options_.delivery) {
        case Delivery::placed:
            reader_->fill(pieces_.make(samples, x + first * share.nbytes, share.nbytes, share.made), closed_);
            break;
        case Delivery::shipped:
            reader_->fill(shipper_.ship(samples, first, x, table, share.made), closed_);
            break;
        case Delivery::listed:
            shipper_.list(samples, reader_->files(), table, reinterpret_cast<std::int64_t *>(data + columns_.reads), share.made);
            break;
    }
    const std::int64_t elements = (last - first) * share.nbytes / static_cast<std::int64_t>(options_.to_nbytes);
    useful_nbytes_.fetch_add(elements * pieces_.from_nbytes(), std::memory_order_relaxed);
}

void Run::arrange(Share &share, std::int64_t first, std::int64_t last, std::byte *data) {
    const Arranging &arranging = options_.arranging;
    const Filling done = arranging.arranger->fill(share.samples, static_cast<std::size_t>(first), static_cast<std::size_t>(last), key_,
                                                  share.extent, data, arranging.fields, arranging.told, options_.room, closed_);
    std::atomic<std::int64_t> &end = slot(share.batch).packed_end;
    for (std::int64_t seen = end.load(); seen < done.packed_end && !end.compare_exchange_weak(seen, done.packed_end);) {}
    useful_nbytes_.fetch_add(done.useful_nbytes, std::memory_order_relaxed);
}

// Windows of a batch lie behind one another, also where some were left out.
void Run::point_into_batch(std::int64_t batch) {
    const Filled &filled = slot(batch).filled;
    const auto table_at = [&](std::int64_t column) { return reinterpret_cast<std::int64_t *>(filled.block->data + column); };
    if (columns_.table >= 0) {
        auto nbytes = static_cast<std::int64_t>(options_.to_nbytes);
        for (int axis = 0; axis < filled.ndim; ++axis) nbytes *= filled.extent[axis];
        std::int64_t *table = table_at(columns_.table);
        for (std::int64_t row = 0; row < filled.n; ++row) table[row * shipper_.row_length() + 1] = row * nbytes;
    }
    const Arranging &arranging = options_.arranging;
    if (!arranging.arranger || !arranging.arranger->is_packed()) return;
    for (std::size_t field = 0; field < arranging.fields.size(); ++field) {
        const std::int64_t nbytes = std::max<std::int64_t>(arranging.arranger->row_nbytes(field, filled.extent), 1);
        std::int64_t *table = table_at(arranging.fields[field].table);
        for (std::int64_t row = 0; row < filled.n; ++row) {
            std::int64_t &to = table[row * arranging.arranger->table_length(field) + 1];
            to = row * nbytes + to % nbytes;
        }
    }
}

// Find the samples that cannot be read, and leave them out or put others in their place.
void Run::fill_one_by_one(Share &share, std::int64_t first, std::int64_t last) {
    Slot &filling = slot(share.batch);
    const Arranger *arranger = options_.arranging.arranger.get();
    const auto locate = [&](std::int64_t sample) { return windows_->locate(sample); };
    for (std::int64_t row = first; row < last; ++row) {
        Sample &sample = share.samples[share.at(row)];
        const Sample wanted = sample;
        for (std::uint32_t tries = 0;;) {
            try {
                fill_rows(share, row, row + 1);
                break;
            } catch (const ReadError &error) {
                const std::lock_guard guard(mutex_);
                failures_.push_back({share.batch, sample.item, sample.crop, error.what()});
                if (options_.max_errors >= 0 && static_cast<std::int64_t>(failures_.size()) > options_.max_errors) throw;
                if (options_.on_error == OnError::replace && tries >= kMaxReplacements) throw;
            }
            if (options_.on_error == OnError::skip) {
                filling.skipped[static_cast<std::size_t>(row)] = 1;
                break;
            }
            do {  // a stand-in that is larger than the batch is none
                const u64 word = draw(key_, static_cast<u64>(wanted.item), wanted.crop, kReplace, tries++).low();
                sample = order_.stand_in(word, locate);
            } while (arranger != nullptr && filling.filled.n > 1 && tries < kMaxReplacements &&
                     !arranger->fits(sample, key_, share.extent));
            sample.valid = wanted.valid;
            if (filling.filled.n == 1) {  // a batch of one has the shape of whatever is in it
                if (arranger == nullptr) share.nbytes = pieces_.sample_nbytes(sample.item, share.extent);
                else arranger->target({&sample, 1}, key_, share.extent);
                std::copy(share.extent, share.extent + filling.filled.ndim, filling.filled.extent);
            } else if (arranger != nullptr && !arranger->fits(sample, key_, share.extent)) {
                sample = wanted;
            }
        }
    }
}

void Run::write_columns(const Share &share, std::int64_t first, std::int64_t last, std::byte *data) const {
    const auto put = [&](std::int64_t column, std::int64_t row, std::int64_t value) {
        std::memcpy(data + column + row * 8, &value, 8);
    };
    for (std::int64_t row = first; row < last; ++row) {
        const Sample &sample = share.samples[share.at(row)];
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
        if (columns_.start >= 0 && !options_.arranging.arranger) {
            std::int64_t starts[kMaxNdim];
            const int ndim = pieces_.starts(sample, starts);
            for (int axis = 0; axis < ndim; ++axis) put(columns_.start, row * ndim + axis, starts[axis]);
        }
    }
}

// Where columns begin, and the bytes of their rows; windows that are not placed are found by their tables.
std::vector<std::pair<std::int64_t, std::int64_t>> Run::columns_of(const Filled &filled) const {
    const Arranging &arranging = options_.arranging;
    const auto ndim = static_cast<std::int64_t>(filled.ndim);
    std::vector<std::pair<std::int64_t, std::int64_t>> columns{
        {columns_.table, 8 * shipper_.row_length()}, {columns_.label, labels_ ? static_cast<std::int64_t>(labels_->row_nbytes) : 0},
        {columns_.index, 8}, {columns_.crop, 8}, {columns_.start, 8 * ndim}, {columns_.valid, 1}, {columns_.path, 8}};
    if (!arranging.arranger) {
        auto nbytes = static_cast<std::int64_t>(options_.to_nbytes);
        for (int axis = 0; axis < filled.ndim; ++axis) nbytes *= filled.extent[axis];
        if (options_.delivery == Delivery::placed) columns.push_back({columns_.x, nbytes});
        return columns;
    }
    const Arranger &arranger = *arranging.arranger;
    for (std::size_t field = 0; field < arranger.n_fields(); ++field) {
        const FieldColumns &of = arranging.fields[field];
        columns.push_back({arranger.is_packed() ? -1 : of.x, arranger.row_nbytes(field, filled.extent)});
        columns.push_back({of.table, 8 * arranger.table_length(field)});
        columns.push_back({of.pads, 8 * arranger.pads_length(field)});
    }
    std::int64_t mask_nbytes = 1;
    for (const std::int64_t n : arranger.mask_shape(filled.extent)) mask_nbytes *= n;
    columns.insert(columns.end(), {{arranging.told.mask, mask_nbytes}, {arranging.told.lengths, 8 * ndim},
                                   {arranging.told.flips, ndim}, {arranging.told.turns, 8}});
    return columns;
}

// Close the gaps of skipped samples in every column.
void Run::compact(std::int64_t batch) {
    const Slot &compacted = slot(batch);
    Filled &filled = slot(batch).filled;
    const auto columns = columns_of(filled);
    std::int64_t kept = 0;
    for (std::int64_t row = 0; row < filled.n; ++row) {
        if (compacted.skipped[static_cast<std::size_t>(row)]) continue;
        if (kept != row)
            for (const auto &[column, nbytes] : columns)
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
