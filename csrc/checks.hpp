// What the native door checks of numbers that must fit each other. Each check throws std::invalid_argument, which
// becomes a ValueError; Python's own checks, with paths and remedies, come before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "arrange.hpp"
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

// A column of a batch as a tensor: where it begins, of which type, and its shape after the batch axis. That of windows
// is known when they are filled: of those of a field, or of the mask of the first field.
struct Output {
    static constexpr int kMask = -1;

    std::int64_t offset;
    Dtype dtype;
    bool is_window;
    std::vector<std::int64_t> row_shape;
    int field = 0;
};

// Windows fit the axes of items, and lie within them unless they may stick out.
inline void check_sizes(const Catalog &catalog, const Windows &windows) {
    const auto ndim = static_cast<std::size_t>(catalog.item_ndim());
    const bool is_whole = windows.kind == Windows::Kind::whole;
    expect(is_whole || windows.size.size() == ndim, "run: expected one size per axis");
    expect(windows.kind != Windows::Kind::grid || windows.stride.size() == ndim, "run: expected one stride per axis");
    if (is_whole || windows.may_stick_out) return;
    const std::int64_t n_items = catalog.n_items();
    for (std::int64_t item = 0; item < n_items; item += catalog.is_uniform ? std::max<std::int64_t>(n_items, 1) : 1) {
        const View view = catalog.view(item);
        for (int axis = 0; axis < view.ndim; ++axis)
            expect(windows.extent(axis, view.shape) <= view.shape[axis], "run: a window is larger than its item");
    }
}

// Every window of an epoch lies within its item, and there are as many as the epoch draws from.
inline void check_windows(const Catalog &catalog, const Windows &windows, const Order &order) {
    const std::int64_t n_items = catalog.n_items();
    expect(windows.ends.empty() || static_cast<std::int64_t>(windows.ends.size()) == n_items, "run: expected ends of each item's windows");
    std::int64_t n_windows = windows.ends.empty() ? product(&n_items, 1, windows.per_item) : windows.ends.back();
    expect(!order.listed.empty() || order.n_samples <= n_windows, "run: more samples than windows");
    for (const std::int64_t item : order.listed) expect(item >= 0 && item < n_items, "run: no such item");
    check_sizes(catalog, windows);
}

// Items of all fields are alike along the axes that they share, and each field along its own. Where channels have
// numbers of their own, samples show all of them.
inline void check_fields(const std::vector<Form> &forms, const Windows &windows, const Fit &fit) {
    const Catalog &first = forms[0].reader->catalog();
    const std::int64_t n_items = first.n_items();
    for (const Form &form : forms) {
        const Catalog &catalog = form.reader->catalog();
        expect(catalog.n_items() == n_items, "arranger: fields differ in length");
        expect(form.stored == nullptr || form.stored->catalog().n_items() == n_items, "arranger: fields differ in length");
        if (n_items == 0) continue;
        const View like = catalog.view(0);
        const bool is_uniform = catalog.is_uniform && first.is_uniform;
        for (std::int64_t item = 0; item < (is_uniform ? 1 : n_items); ++item) {
            const View view = catalog.view(item), master = first.view(item);
            for (int axis = 0; axis < view.ndim; ++axis) {
                const int shared = form.axes[static_cast<std::size_t>(axis)];
                expect(view.shape[axis] == (shared >= 0 ? master.shape[shared] : like.shape[axis]), "arranger: fields differ in shape");
                if (axis != form.channel_axis) continue;
                const auto n = static_cast<std::int64_t>(form.scaling.channels.size() / 2);
                const auto of = [&](const std::vector<std::int64_t> &numbers) { return numbers[static_cast<std::size_t>(shared)]; };
                expect(view.shape[axis] == n && (shared < 0 || (windows.extent(shared, master.shape) == n && of(fit.size) < 0 &&
                                                                (of(fit.to) < 0 || of(fit.to) >= n))),
                       "arranger: expected all channels in each sample");
            }
        }
    }
}

// Samples of the largest batch of an epoch.
inline std::int64_t largest_batch(const Order &order) {
    std::int64_t largest = order.ends.empty() ? std::min(order.batch, order.n_local) : 0;
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(order.ends.size()); ++b)
        largest = std::max(largest, order.batch_end(b) - order.batch_begin(b));
    return largest;
}

// Columns of arranged windows fit the batch memory, one after the other.
inline void check_arranged(const Arranging &arranging, const Order &order, std::size_t memory_nbytes, std::int64_t label_nbytes,
                           const std::vector<std::int64_t> &columns, const std::vector<Output> &outputs, std::int64_t room) {
    const Arranger &arranger = *arranging.arranger;
    const std::int64_t n = largest_batch(order), *target = arranger.largest();
    std::vector<std::pair<std::int64_t, std::int64_t>> used;  // first byte, bytes of a row
    const auto ndim = static_cast<std::int64_t>(arranger.fit().ndim());
    const std::int64_t rows[] = {label_nbytes, 8, 8, 8 * ndim, 1, 8};
    for (std::size_t i = 1; i < 7; ++i) used.push_back({columns[i], rows[i - 1]});
    std::int64_t mask = 1;
    for (const std::int64_t extent : arranger.mask_shape(target)) mask = product(&extent, 1, mask);
    const FitColumns &told = arranging.told;
    used.insert(used.end(), {{told.mask, mask}, {told.lengths, 8 * ndim}, {told.flips, ndim}, {told.turns, 8}});
    expect(arranging.fields.size() == arranger.n_fields(), "run: expected columns of each field");
    const std::int64_t packed = arranger.is_packed() ? arranger.room() : 0;
    expect(room == 0 || room >= packed, "run: packed windows need more room");
    for (std::size_t field = 0; field < arranger.n_fields(); ++field) {
        const FieldColumns &of = arranging.fields[field];
        expect(of.x >= 0 && (of.table >= 0) == arranger.is_packed() && (of.pads >= 0) == arranger.is_packed(), "run: expected tables of packed windows");
        if (!arranger.is_packed()) used.push_back({of.x, arranger.row_nbytes(field, target)});
        else if (field == 0) used.push_back({of.x, std::max(packed, room)});
        else expect(of.x == arranging.fields[0].x, "run: expected all fields in one place");
        used.insert(used.end(), {{of.table, 8 * arranger.table_length(field)}, {of.pads, 8 * arranger.pads_length(field)}});
        expect(of.table % 8 == (of.table < 0 ? -1 : 0) && of.pads % 8 == (of.pads < 0 ? -1 : 0), "run: expected aligned tables");
    }
    std::erase_if(used, [](const auto &column) { return column.first < 0; });
    std::sort(used.begin(), used.end());
    for (std::size_t i = 0; i < used.size(); ++i) {
        const std::int64_t end = i + 1 < used.size() ? used[i + 1].first : static_cast<std::int64_t>(memory_nbytes);
        expect(product(&n, 1, used[i].second) <= end - used[i].first, "run: a column does not fit the batch memory");
    }
    for (const Output &output : outputs) {
        expect(output.field >= Output::kMask && output.field < static_cast<int>(arranger.n_fields()), "run: no such field");
        if (arranger.is_packed() || !output.is_window) continue;
        const bool is_mask = output.field == Output::kMask;
        expect(output.offset == (is_mask ? told.mask : arranging.fields[static_cast<std::size_t>(output.field)].x) &&
                   output.dtype == (is_mask ? Dtype::boolean : arranger.form(static_cast<std::size_t>(output.field)).to),
               "run: an output is not as its field");
    }
}

// The rows of the largest batch fit the batch memory, each column before the next one.
inline void check_outputs(const Reader &reader, const Windows &windows, const Order &order, std::size_t memory_nbytes,
                   const std::vector<std::int64_t> &columns, const std::vector<Output> &outputs, std::size_t label_nbytes,
                   const RunOptions &options) {
    const std::int64_t largest = largest_batch(order);
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
