// Which box of an item each sample shows. Integers only; gpuload/window.py checks that every window fits, unless what
// sticks out is padded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "order.h"
#include "place.hpp"

namespace gpuload {

struct Windows {
    enum class Kind : int { whole, random, center, grid };

    Kind kind = Kind::whole;
    std::vector<std::int64_t> size;    // per axis; -1 keeps the axis whole
    std::vector<std::int64_t> stride;  // of a grid
    std::int64_t per_item = 1;         // windows of each item, when all have as many
    std::vector<std::int64_t> ends;    // else: windows of items 0..i
    bool may_stick_out = false;        // windows larger than their item end where it ends

    // The item of a sample, and which of its windows it is.
    std::pair<std::int64_t, std::uint32_t> locate(std::int64_t sample) const {
        if (ends.empty()) {
            const std::int64_t item = per_item == 1 ? sample : sample / per_item;
            return {item, static_cast<std::uint32_t>(sample - item * per_item)};
        }
        const std::int64_t item = std::upper_bound(ends.begin(), ends.end(), sample) - ends.begin();
        return {item, static_cast<std::uint32_t>(sample - (item == 0 ? 0 : ends[static_cast<std::size_t>(item - 1)]))};
    }

    std::int64_t extent(int axis, const std::int64_t *shape) const {
        const std::int64_t n = window_extent(static_cast<i32>(kind), shape[axis], kind == Kind::whole ? -1 : size[static_cast<std::size_t>(axis)]);
        return may_stick_out ? std::min(n, shape[axis]) : n;
    }

    // Window `crop` of an item of `shape`: its starts. Extents are extent() along each axis.
    void starts(u64 key, std::int64_t item, std::uint32_t crop, int ndim, const std::int64_t *shape,
                std::int64_t *starts) const {
        if (may_stick_out && kind != Kind::whole) {
            std::int64_t cut[kMaxNdim] = {};
            for (int axis = 0; axis < ndim; ++axis) cut[axis] = extent(axis, shape);
            window_starts(static_cast<i32>(kind), key, static_cast<u64>(item), crop, ndim, shape, cut, stride.data(), starts);
            return;
        }
        window_starts(static_cast<i32>(kind), key, static_cast<u64>(item), crop, ndim, shape, size.data(), stride.data(), starts);
    }
};

}  // namespace gpuload
