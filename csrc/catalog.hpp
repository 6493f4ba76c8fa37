// Where every array lies and how: the table that items are looked up in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "place.hpp"

namespace gpuload {

// One item: a strided view of the bytes of a file. Strides and offset in bytes.
struct View {
    std::uint32_t file;
    bool swap;  // the other byte order
    int ndim;
    std::int64_t offset;
    std::int64_t row_stride;  // from one item of the array to the next, with a sample axis
    std::int64_t shape[kMaxNdim];
    std::int64_t stride[kMaxNdim];
};

// How one element lies in its array.
struct Element {
    Dtype dtype;
    std::int64_t record_nbytes;            // from one element to the next: more than its own size in a structured array
    std::int64_t offset;                   // of the element in its record
    std::vector<std::int64_t> sub_shape;   // of an element that is itself an array, row-major
};

// Columns over arrays, and the items that are made of them.
class Catalog {
  public:
    enum Flag : std::uint8_t { kFortran = 1, kSwapped = 2 };

    std::vector<std::uint32_t> file;
    std::vector<std::int64_t> offset;
    std::vector<std::int64_t> shape;  // (n_arrays, ndim), without sub_shape
    std::vector<std::uint8_t> flags;
    int ndim = 0;
    Element element;
    int sample_axis = -1;                  // items are the rows along it; -1: items are whole arrays
    std::vector<std::int64_t> row_ends;    // with a sample axis: rows of arrays 0..i
    std::vector<std::int64_t> selected;    // items of this source as items of the whole table; empty: all
    bool has_selection = false;
    bool is_uniform = false;               // find_uniform(), kept: it looks at every array

    std::int64_t n_arrays() const { return static_cast<std::int64_t>(file.size()); }

    std::int64_t n_items() const {
        if (has_selection) return static_cast<std::int64_t>(selected.size());
        return sample_axis < 0 ? n_arrays() : (row_ends.empty() ? 0 : row_ends.back());
    }

    // Array and row (0 without a sample axis) of an item of [0, n_items).
    std::pair<std::int64_t, std::int64_t> locate(std::int64_t item) const {
        if (has_selection) item = selected[static_cast<std::size_t>(item)];
        if (sample_axis < 0) return {item, 0};
        const auto found = std::upper_bound(row_ends.begin(), row_ends.end(), item);
        const std::int64_t array = found - row_ends.begin();
        return {array, item - (array == 0 ? 0 : row_ends[static_cast<std::size_t>(array - 1)])};
    }

    // Whether all items have one shape, order and byte order, so that their views differ in file and offset alone.
    bool find_uniform() const {
        if (n_arrays() == 0) return true;
        const int first = sample_axis == 0 && !(flags[0] & kFortran) ? 1 : 0;  // rows of C order: any number of them
        for (std::int64_t array = 1; array < n_arrays(); ++array) {
            const std::int64_t *dims = shape.data() + array * ndim;
            if (flags[static_cast<std::size_t>(array)] != flags[0] || !std::equal(dims + first, dims + ndim, shape.data() + first))
                return false;
        }
        return true;
    }

    // Axes of an item.
    int item_ndim() const {
        return ndim - (sample_axis >= 0) + static_cast<int>(element.sub_shape.size());
    }

    // First byte of an item when all are alike; `row_stride` as of any of them.
    std::int64_t first_byte(std::int64_t item, std::int64_t row_stride, std::uint32_t &of_file) const {
        const auto [array, row] = locate(item);
        of_file = file[static_cast<std::size_t>(array)];
        return offset[static_cast<std::size_t>(array)] + element.offset + row * row_stride;
    }

    View view(std::int64_t item) const {
        const auto [array, row] = locate(item);
        const std::int64_t *dims = shape.data() + array * ndim;
        const std::uint8_t flag = flags[static_cast<std::size_t>(array)];
        View view;
        view.file = file[static_cast<std::size_t>(array)];
        view.swap = flag & kSwapped;
        view.offset = offset[static_cast<std::size_t>(array)] + element.offset;
        std::int64_t stride[kMaxNdim], step = element.record_nbytes;
        if (flag & kFortran) {
            for (int axis = 0; axis < ndim; step *= dims[axis++]) stride[axis] = step;
        } else {
            for (int axis = ndim - 1; axis >= 0; step *= dims[axis--]) stride[axis] = step;
        }
        view.ndim = 0;
        view.row_stride = 0;
        for (int axis = 0; axis < ndim; ++axis) {
            if (axis == sample_axis) {
                view.row_stride = stride[axis];
                view.offset += row * stride[axis];
            } else {
                view.shape[view.ndim] = dims[axis];
                view.stride[view.ndim++] = stride[axis];
            }
        }
        std::int64_t sub_step = static_cast<std::int64_t>(item_nbytes(element.dtype));
        const int n_sub = static_cast<int>(element.sub_shape.size());
        for (int axis = n_sub - 1; axis >= 0; --axis) {
            view.shape[view.ndim + axis] = element.sub_shape[static_cast<std::size_t>(axis)];
            view.stride[view.ndim + axis] = sub_step;
            sub_step *= element.sub_shape[static_cast<std::size_t>(axis)];
        }
        view.ndim += n_sub;
        return view;
    }
};

}  // namespace gpuload
