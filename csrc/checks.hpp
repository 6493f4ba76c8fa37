// What the native door checks of numbers that must fit each other. Each check throws std::invalid_argument, which
// becomes a ValueError; Python's own checks, with paths and remedies, come before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "pieces.hpp"
#include "run.hpp"

namespace gpuload {

inline void expect(bool holds, const char *message) {
    if (!holds) throw std::invalid_argument(message);
}

// The product of `n` numbers, 0 or more, and `unit`; no more than the largest int64.
inline std::int64_t product(const std::int64_t *numbers, std::size_t n, std::int64_t unit) {
    std::int64_t result = unit;
    for (std::size_t i = 0; i < n; ++i) {
        if (numbers[i] == 0) return 0;
        if (__builtin_mul_overflow(result, numbers[i], &result)) result = INT64_MAX;
    }
    return result;
}

// Ends of consecutive parts.
inline bool is_rising(const std::vector<std::int64_t> &ends) {
    return (ends.empty() || ends.front() >= 0) && std::is_sorted(ends.begin(), ends.end());
}

// A column of a batch as a tensor: where it begins, of which type, and its shape after the batch axis.
// The shape of x is that of the window.
struct Output {
    std::int64_t offset;
    Dtype dtype;
    bool is_window;
    std::vector<std::int64_t> row_shape;
};

// Every window of an epoch lies within its item, and there are as many as the epoch draws from.
inline void check_windows(const Catalog &catalog, const Windows &windows, const Order &order) {
    const auto ndim = static_cast<std::size_t>(catalog.item_ndim());
    const bool is_whole = windows.kind == Windows::Kind::whole;
    expect(is_whole || windows.size.size() == ndim, "run: expected one size per axis");
    expect(windows.kind != Windows::Kind::grid || windows.stride.size() == ndim, "run: expected one stride per axis");
    const std::int64_t n_items = catalog.n_items();
    expect(windows.ends.empty() || static_cast<std::int64_t>(windows.ends.size()) == n_items, "run: expected ends of each item's windows");
    std::int64_t n_windows = windows.ends.empty() ? product(&n_items, 1, windows.per_item) : windows.ends.back();
    expect(!order.listed.empty() || order.n_samples <= n_windows, "run: more samples than windows");
    for (const std::int64_t item : order.listed) expect(item >= 0 && item < n_items, "run: no such item");
    if (is_whole) return;
    for (std::int64_t item = 0; item < n_items; item += catalog.is_uniform ? std::max<std::int64_t>(n_items, 1) : 1) {
        const View view = catalog.view(item);
        for (int axis = 0; axis < view.ndim; ++axis)
            expect(windows.extent(axis, view.shape) <= view.shape[axis], "run: a window is larger than its item");
    }
}

// The rows of the largest batch fit the batch memory, each column before the next one.
inline void check_outputs(const Reader &reader, const Windows &windows, const Order &order, std::size_t memory_nbytes,
                   const std::vector<std::int64_t> &columns, const std::vector<Output> &outputs, std::size_t label_nbytes,
                   const RunOptions &options) {
    std::int64_t largest = order.ends.empty() ? std::min(order.batch, order.n_local) : 0;
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(order.ends.size()); ++b)
        largest = std::max(largest, order.batch_end(b) - order.batch_begin(b));
    const Catalog &catalog = reader.catalog();
    const bool is_placed = options.delivery == Delivery::placed;
    expect(options.room >= 0, "run: negative number");
    expect(!is_placed || options.to_nbytes == reader.to_nbytes(), "run: expected elements of the reader's size");
    const PieceMaker pieces(catalog, windows, 0, options.to_nbytes);
    std::int64_t window_nbytes = 0, extent[kMaxNdim];
    for (std::int64_t item = 0; item < catalog.n_items(); item += catalog.is_uniform ? catalog.n_items() : 1)
        window_nbytes = std::max(window_nbytes, pieces.sample_nbytes(item, extent));
    const auto fits = [&](std::int64_t offset, std::int64_t row_nbytes) {
        auto end = static_cast<std::int64_t>(memory_nbytes);
        for (const std::int64_t other : columns)
            if (other > offset) end = std::min(end, other);
        return offset >= 0 && offset <= end && product(&row_nbytes, 1, largest) <= end - offset;
    };
    const std::int64_t table = 8 * (2 + (catalog.is_uniform ? 0 : 2 * catalog.item_ndim()));
    const std::int64_t rows[] = {is_placed ? window_nbytes : options.room, static_cast<std::int64_t>(label_nbytes), 8, 8,
                                 8 * catalog.item_ndim(), 1, 8, table, 32};
    for (std::size_t i = 0; i < columns.size(); ++i)
        expect((columns[i] == -1 && i > 0) || (options.delivery == Delivery::listed && i == 0) || fits(columns[i], rows[i]),
               "run: a column does not fit the batch memory");
    expect(is_placed ? columns[7] == -1 : columns[7] >= 0 && columns[7] % 8 == 0, "run: expected a table of windows that are not placed");
    expect(options.delivery != Delivery::listed || (columns[8] >= 0 && columns[8] % 8 == 0 && options.chunks_per_batch == 1 &&
                                                     options.on_error == OnError::raise),
           "run: expected a list of reads, in one part, with errors raised");
    for (const Output &output : outputs) {
        const auto nbytes = static_cast<std::int64_t>(item_nbytes(output.dtype));
        for (const std::int64_t n : output.row_shape) expect(n >= 0, "run: negative number");
        if (output.is_window && !is_placed) continue;  // the device makes it
        expect(!output.is_window || output.dtype == reader.to(), "run: expected windows of the reader's type");
        const std::int64_t row = output.is_window ? window_nbytes : product(output.row_shape.data(), output.row_shape.size(), nbytes);
        expect(fits(output.offset, row), "run: an output does not fit the batch memory");
    }
}

}  // namespace gpuload
