// From a window to its place in a sample of the batch: cut to size, resized, turned, padded. Integers only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "order.hpp"
#include "window.hpp"

namespace gpuload {

// One window of an item, along the axes of the first field.
struct Shown {
    std::int64_t start[kMaxNdim], extent[kMaxNdim];  // what is taken of the item
    std::int64_t content[kMaxNdim];                  // what becomes of it once it is resized
    std::uint32_t flips = 0;                         // one bit for each axis that is reversed
    int turns = 0;                                   // quarter turns after that
};

// How windows fill samples of one shape. Numbers are per axis of the first field.
struct Fit {
    enum class Align : int { center, begin, end };

    std::vector<std::int64_t> to;        // elements of a sample; -1: as many as the largest of its batch has
    std::vector<std::int64_t> multiple;  // which is then rounded up to a multiple of this
    std::vector<std::int64_t> size;      // elements that windows are resized to; -1: as many as they have
    Align align = Align::center;
    bool shrinks = false;                // windows larger than `to` are resized to it, not cut
    std::uint32_t flips = 0;             // axes that are reversed at random
    int turn_from = -1, turn_to = -1;    // the plane of random quarter turns, from its first axis towards its second

    std::size_t ndim() const { return to.size(); }

    bool is_turned() const { return turn_from >= 0; }

    // Whether samples of all batches have one shape.
    bool is_fixed() const {
        return std::all_of(to.begin(), to.end(), [](std::int64_t n) { return n >= 0; });
    }

    // Where `n` elements begin among `room` of them, or `room` among `n`.
    std::int64_t begin(std::int64_t n, std::int64_t room) const {
        const std::int64_t free = room > n ? room - n : n - room;
        return align == Align::center ? free / 2 : align == Align::begin ? 0 : free;
    }

    Shown show(const Windows &windows, u64 key, const Sample &sample, const std::int64_t *shape) const {
        Shown shown;
        const int n = static_cast<int>(ndim());
        windows.starts(key, sample.item, sample.crop, n, shape, shown.start);
        for (int axis = 0; axis < n; ++axis) {
            const auto k = static_cast<std::size_t>(axis);
            std::int64_t &extent = shown.extent[axis], &content = shown.content[axis];
            extent = windows.extent(axis, shape);
            if (size[k] < 0 && !shrinks && to[k] >= 0 && extent > to[k]) {
                shown.start[axis] += begin(extent, to[k]);
                extent = to[k];
            }
            content = size[k] >= 0 ? size[k] : extent;
            if (shrinks && to[k] >= 0) content = std::min(content, to[k]);
        }
        if (flips != 0 || is_turned()) {
            const Words words = draw(key, static_cast<u64>(sample.item), sample.crop, kTurn, 0);
            shown.flips = words.w[0] & flips;
            if (is_turned()) shown.turns = static_cast<int>(words.w[1] & 3u);
        }
        return shown;
    }

    // The axis of the window that is seen along an axis of the sample, and whether it goes backwards there. Turns are
    // those of numpy.rot90.
    int source_axis(int axis, const Shown &shown, bool &backwards) const {
        const bool is_from = axis == turn_from, is_to = axis == turn_to;
        const bool swaps = (is_from || is_to) && shown.turns % 2 == 1;
        const int source = swaps ? (is_from ? turn_to : turn_from) : axis;
        backwards = (shown.flips >> source) & 1u;
        if (is_from || is_to) backwards ^= shown.turns == 2 || shown.turns == (is_from ? 1 : 3);
        return source;
    }

    // Enlarge `largest` to hold a window.
    void enlarge(const Shown &shown, std::int64_t *largest) const {
        for (int axis = 0; axis < static_cast<int>(ndim()); ++axis) {
            bool backwards;
            largest[axis] = std::max(largest[axis], shown.content[source_axis(axis, shown, backwards)]);
        }
    }

    // The shape of the samples of a batch whose largest window is `largest`.
    void round(std::int64_t *largest) const {
        for (std::size_t k = 0; k < ndim(); ++k)
            largest[k] = to[k] >= 0 ? to[k] : (largest[k] + multiple[k] - 1) / multiple[k] * multiple[k];
    }
};

}  // namespace gpuload
