// Which box of an item each sample shows. Integers only; gpuload/window.py checks that every window fits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "place.hpp"
#include "random.h"

namespace gpuload {

struct Windows {
    enum class Kind : int { whole, random, center, grid };

    Kind kind = Kind::whole;
    std::vector<std::int64_t> size;    // per axis; -1 keeps the axis whole
    std::vector<std::int64_t> stride;  // of a grid
    std::int64_t per_item = 1;         // windows of each item, when all have as many
    std::vector<std::int64_t> ends;    // else: windows of items 0..i

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
        if (kind == Kind::whole || size[static_cast<std::size_t>(axis)] < 0) return shape[axis];
        return size[static_cast<std::size_t>(axis)];
    }

    // Window `crop` of an item of `shape`: its starts. Extents are extent() along each axis.
    void starts(u64 key, std::int64_t item, std::uint32_t crop, int ndim, const std::int64_t *shape,
                std::int64_t *starts) const {
        if (kind == Kind::whole) {
            std::fill(starts, starts + ndim, 0);
        } else if (kind == Kind::random) {
            i64 n_starts[kMaxNdim], drawn[kMaxNdim];
            for (int axis = 0; axis < ndim; ++axis) n_starts[axis] = shape[axis] - extent(axis, shape) + 1;
            draw_starts(key, static_cast<u64>(item), crop, ndim, n_starts, drawn);
            std::copy(drawn, drawn + ndim, starts);
        } else if (kind == Kind::center) {
            for (int axis = 0; axis < ndim; ++axis) starts[axis] = (shape[axis] - extent(axis, shape)) / 2;
        } else {
            std::int64_t rest = crop;
            for (int axis = ndim - 1; axis >= 0; --axis) {
                const std::int64_t free = shape[axis] - extent(axis, shape), step = stride[static_cast<std::size_t>(axis)];
                const std::int64_t n = step > 0 ? (free + step - 1) / step + 1 : 1;
                starts[axis] = std::min((rest % n) * step, free);  // the last window is moved inwards
                rest /= n;
            }
        }
    }
};

}  // namespace gpuload
