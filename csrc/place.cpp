#include "place.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace gpuload {
namespace {

// Rows of at most 256 bytes are copied by a fixed number of 16-byte moves, of which the last one overlaps:
// on 80-byte rows that takes half the time of calling memcpy for each.
template <int kWhole>
void copy_short_rows(std::byte *dst, const std::byte *src, std::int64_t rows, std::int64_t dst_stride,
                     std::int64_t src_stride, std::size_t nbytes) {
    for (std::int64_t r = 0; r < rows; ++r, dst += dst_stride, src += src_stride) {
        for (int k = 0; k < kWhole; ++k) std::memcpy(dst + 16 * k, src + 16 * k, 16);
        std::memcpy(dst + nbytes - 16, src + nbytes - 16, 16);
    }
}

template <std::size_t kHalf>  // rows of kHalf to 2 * kHalf bytes
void copy_tiny_rows(std::byte *dst, const std::byte *src, std::int64_t rows, std::int64_t dst_stride,
                    std::int64_t src_stride, std::size_t nbytes) {
    for (std::int64_t r = 0; r < rows; ++r, dst += dst_stride, src += src_stride) {
        std::byte head[kHalf], tail[kHalf];
        std::memcpy(head, src, kHalf);
        std::memcpy(tail, src + nbytes - kHalf, kHalf);
        std::memcpy(dst, head, kHalf);
        std::memcpy(dst + nbytes - kHalf, tail, kHalf);
    }
}

void copy_long_rows(std::byte *dst, const std::byte *src, std::int64_t rows, std::int64_t dst_stride,
                    std::int64_t src_stride, std::size_t nbytes) {
    for (std::int64_t r = 0; r < rows; ++r, dst += dst_stride, src += src_stride) std::memcpy(dst, src, nbytes);
}

using CopyRows = Placer::CopyRows;

template <std::size_t... k>
constexpr auto short_copies(std::index_sequence<k...>) {
    return std::array<CopyRows, sizeof...(k)>{&copy_short_rows<static_cast<int>(k)>...};
}
constexpr auto kShort = short_copies(std::make_index_sequence<16>());

CopyRows pick_copy(std::size_t nbytes) {
    if (nbytes > 256 || nbytes == 0) return copy_long_rows;
    if (nbytes >= 16) return kShort[(nbytes - 1) / 16];
    if (nbytes >= 8) return copy_tiny_rows<8>;
    if (nbytes >= 4) return copy_tiny_rows<4>;
    if (nbytes >= 2) return copy_tiny_rows<2>;
    return copy_tiny_rows<1>;
}

// Call `row(dst, src)` for every index of the first `outer` axes.
template <class Row>
void for_each_row(std::byte *dst, const std::byte *src, const Box &box, int outer, Row row) {
    if (outer == 0) {
        row(dst, src);
        return;
    }
    std::int64_t index[kMaxNdim] = {};
    for (;;) {
        row(dst, src);
        int axis = outer - 1;
        while (++index[axis] == box.shape[axis]) {
            dst -= (box.shape[axis] - 1) * box.dst_stride[axis];
            src -= (box.shape[axis] - 1) * box.src_stride[axis];
            index[axis] = 0;
            if (axis-- == 0) return;
        }
        dst += box.dst_stride[axis];
        src += box.src_stride[axis];
    }
}

}  // namespace

void simplify(Box &box) {
    int n = 0;
    for (int axis = 0; axis < box.ndim; ++axis) {
        if (box.shape[axis] == 1) continue;
        box.shape[n] = box.shape[axis];
        box.src_stride[n] = box.src_stride[axis];
        box.dst_stride[n] = box.dst_stride[axis];
        if (n > 0 && box.src_stride[n - 1] == box.src_stride[n] * box.shape[n] &&
            box.dst_stride[n - 1] == box.dst_stride[n] * box.shape[n]) {
            box.shape[n - 1] *= box.shape[n];
            box.src_stride[n - 1] = box.src_stride[n];
            box.dst_stride[n - 1] = box.dst_stride[n];
        } else {
            ++n;
        }
    }
    box.ndim = n;
    for (int axis = 0; axis + 1 < n; ++axis)  // only boxes of column-major arrays need it
        if (box.dst_stride[axis] < box.dst_stride[n - 1]) {
            std::swap(box.shape[axis], box.shape[n - 1]);
            std::swap(box.src_stride[axis], box.src_stride[n - 1]);
            std::swap(box.dst_stride[axis], box.dst_stride[n - 1]);
        }
}

void Placer::operator()(std::byte *dst, const std::byte *src, const Box &box, bool swap) const {
    for (int axis = 0; axis < box.ndim; ++axis)
        if (box.shape[axis] == 0) return;
    const int last = box.ndim - 1;
    if (box.ndim == 0) {
        move_(dst, src, static_cast<std::ptrdiff_t>(from_nbytes_), 1, swap);
        return;
    }
    const bool dense_dst = box.dst_stride[last] == static_cast<std::int64_t>(to_nbytes_);
    if (!dense_dst) {  // no axis is dense at the destination: element by element
        for_each_row(dst, src, box, box.ndim, [&](std::byte *d, const std::byte *s) {
            move_(d, s, static_cast<std::ptrdiff_t>(from_nbytes_), 1, swap);
        });
        return;
    }
    const bool dense_src = box.src_stride[last] == static_cast<std::int64_t>(from_nbytes_);
    const auto n = static_cast<std::size_t>(box.shape[last]);
    if (dense_src && keeps_bytes(swap)) {
        const std::size_t nbytes = n * to_nbytes_;
        const CopyRows copy = pick_copy(nbytes);
        if (last == 0) {
            copy(dst, src, 1, 0, 0, nbytes);
            return;
        }
        for_each_row(dst, src, box, last - 1, [&](std::byte *d, const std::byte *s) {
            copy(d, s, box.shape[last - 1], box.dst_stride[last - 1], box.src_stride[last - 1], nbytes);
        });
        return;
    }
    for_each_row(dst, src, box, last, [&](std::byte *d, const std::byte *s) {
        move_(d, s, box.src_stride[last], n, swap);
    });
}

void place_scaled(std::byte *dst, const std::byte *src, const Box &box, int channel_axis, Dtype from, Dtype to, bool swap,
                  const Affine &affine) {
    const ScaleRow scale = find_scale(from, to);
    const auto to_nbytes = static_cast<std::int64_t>(item_nbytes(to));
    int row = -1;  // the axis that is dense at the destination
    Box outer;
    int channel_in_outer = -1;
    for (int axis = 0; axis < box.ndim; ++axis) {
        if (box.shape[axis] == 0) return;
        if (box.dst_stride[axis] == to_nbytes && box.shape[axis] > 1) row = axis;
    }
    for (int axis = 0; axis < box.ndim; ++axis) {
        if (axis == row) continue;
        if (axis == channel_axis) channel_in_outer = outer.ndim;
        outer.append(box.shape[axis], box.src_stride[axis], box.dst_stride[axis]);
    }
    const std::size_t n = row < 0 ? 1 : static_cast<std::size_t>(box.shape[row]);
    const std::int64_t step = row < 0 ? 0 : box.src_stride[row];
    const u64 channel_step = row >= 0 && row == channel_axis ? 1 : 0;
    std::int64_t index[kMaxNdim] = {};
    for (;;) {
        std::byte *to_row = dst;
        const std::byte *from_row = src;
        for (int axis = 0; axis < outer.ndim; ++axis) {
            to_row += index[axis] * outer.dst_stride[axis];
            from_row += index[axis] * outer.src_stride[axis];
        }
        const u64 channel = channel_in_outer < 0 ? 0 : static_cast<u64>(index[channel_in_outer]);
        scale(to_row, from_row, step, n, swap, affine, channel, channel_step);
        int axis = outer.ndim - 1;
        while (axis >= 0 && ++index[axis] == outer.shape[axis]) index[axis--] = 0;
        if (axis < 0) return;
    }
}

Placer::CopyRows Placer::find_rows(const Box &box, bool swap) const {
    const int last = box.ndim - 1;
    const bool fits = (box.ndim == 1 || box.ndim == 2) && keeps_bytes(swap) &&
                      box.dst_stride[last] == static_cast<std::int64_t>(to_nbytes_) &&
                      box.src_stride[last] == static_cast<std::int64_t>(from_nbytes_);
    return fits ? pick_copy(static_cast<std::size_t>(box.shape[last]) * to_nbytes_) : nullptr;
}

}  // namespace gpuload
