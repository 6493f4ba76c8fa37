// How the bytes of windows are asked for: into how many spans a window is cut, and which spans share a
// read. No I/O here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "place.hpp"

namespace gpuload {

inline constexpr std::int64_t kPageNbytes = 4096;

// What reading costs on this file system: cost = requests * request_ns + bytes / bytes_per_ns.
struct Cost {
    double request_ns;
    double bytes_per_ns;
    std::int64_t max_gap;     // unwanted bytes that a read may bridge
    std::int64_t max_nbytes;  // of a read that serves several spans, and of a span that needs placing
    bool is_cold;             // reads go to the device: announce them, so that they overlap
};

// Bytes [offset, offset + nbytes) of a file, wanted by part `part` of window `window`.
struct Span {
    std::uint32_t file;
    std::uint32_t window;
    std::int64_t part;
    std::int64_t offset, nbytes;
    bool is_direct = false;
};

// Bytes between the first and the last byte of a box over axes [level, ndim), both included.
inline std::int64_t span_nbytes(const Box &box, int level, std::int64_t item_nbytes) {
    std::int64_t nbytes = item_nbytes;
    for (int axis = level; axis < box.ndim; ++axis) nbytes += (box.shape[axis] - 1) * box.src_stride[axis];
    return nbytes;
}

// Into how many spans a window is cut: one per index of its first `level` axes, for the level that costs least.
// `box` has its axes by falling stride in the file, all of at least one element.
inline int choose_level(const Box &box, std::int64_t item_nbytes, const Cost &cost) {
    int best = 0;
    double best_ns = -1, requests = 1;
    for (int level = 0; level <= std::max(box.ndim - 1, 0); ++level) {
        const std::int64_t nbytes = span_nbytes(box, level, item_nbytes);
        // A device is read by pages: short spans cost as much as the pages they lie in.
        const std::int64_t moved = cost.is_cold ? (nbytes + kPageNbytes - 1) / kPageNbytes * kPageNbytes : nbytes;
        const double ns = requests * (cost.request_ns + static_cast<double>(moved) / cost.bytes_per_ns);
        const bool fits = nbytes <= cost.max_nbytes || level == box.ndim - 1;
        if (fits && (best_ns < 0 || ns < best_ns)) {
            best = level;
            best_ns = ns;
        }
        if (level < box.ndim) requests *= static_cast<double>(box.shape[level]);
    }
    return best_ns < 0 ? std::max(box.ndim - 1, 0) : best;
}

// One read [offset, offset + nbytes) that serves spans [first, last) of the list.
struct Read {
    std::uint32_t file;
    std::int64_t offset, nbytes;
    std::size_t first, last;
};

// Sort the spans, and group those of one file that one read can serve: neighbours with at most `max_gap`
// unwanted bytes between them, as long as the read stays within `max_nbytes`. A longer span is read alone.
//
// Spans with `is_direct` go straight into place, and so are reads of their own.
inline std::vector<Read> coalesce(std::vector<Span> &spans, std::int64_t max_gap, std::int64_t max_nbytes) {
    std::sort(spans.begin(), spans.end(), [](const Span &a, const Span &b) {
        return a.file != b.file ? a.file < b.file : a.offset != b.offset ? a.offset < b.offset : a.nbytes < b.nbytes;
    });
    std::vector<Read> reads;
    for (std::size_t i = 0; i < spans.size(); ++i) {
        const Span &span = spans[i];
        const std::int64_t end = span.offset + span.nbytes;
        const bool may_join = !reads.empty() && reads.back().file == span.file && !span.is_direct && !spans[i - 1].is_direct;
        if (may_join) {
            Read &read = reads.back();
            const std::int64_t read_end = read.offset + read.nbytes, grown = std::max(read_end, end) - read.offset;
            if (span.offset - read_end <= max_gap && grown <= max_nbytes) {
                read.nbytes = grown;
                read.last = i + 1;
                continue;
            }
        }
        reads.push_back({span.file, span.offset, span.nbytes, i, i + 1});
    }
    return reads;
}

}  // namespace gpuload
