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

// Call `row(dst, src, channel)` for every index of the first `outer` axes.
template <class Row>
void for_each_row(std::byte *dst, const std::byte *src, const Box &box, int outer, Row row) {
    if (outer == 0) {
        row(dst, src, static_cast<u64>(box.first_channel));
        return;
    }
    std::int64_t index[kMaxNdim] = {};
    const bool has_channel = box.channel >= 0 && box.channel < outer;
    for (;;) {
        row(dst, src, static_cast<u64>(box.first_channel + (has_channel ? index[box.channel] : 0)));
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

void swap_axes(Box &box, int a, int b) {
    std::swap(box.shape[a], box.shape[b]);
    std::swap(box.src_stride[a], box.src_stride[b]);
    std::swap(box.dst_stride[a], box.dst_stride[b]);
    if (box.channel == a || box.channel == b) box.channel = box.channel == a ? b : a;
}

template <std::size_t kNbytes>
void spread(std::byte *dst, std::int64_t stride, const std::byte *from, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) std::memcpy(dst + static_cast<std::int64_t>(i) * stride, from + i * kNbytes, kNbytes);
}

// Rows of channels that are scaled at a time.
constexpr std::size_t kPixels = 1024;

// Fewer elements than this are no row: their channels are gone through one by one.
constexpr std::int64_t kShortRow = 16;

}  // namespace

Shift simplify(Box &box) {
    Shift shift;
    int n = 0, channel = -1;
    for (int axis = 0; axis < box.ndim; ++axis) {
        if (box.shape[axis] == 1) continue;
        box.shape[n] = box.shape[axis];
        box.src_stride[n] = box.src_stride[axis];
        box.dst_stride[n] = box.dst_stride[axis];
        if (box.dst_stride[n] < 0 && box.shape[n] > 0 && axis != box.channel) {
            shift.src += (box.shape[n] - 1) * box.src_stride[n];
            shift.dst += (box.shape[n] - 1) * box.dst_stride[n];
            box.src_stride[n] = -box.src_stride[n];
            box.dst_stride[n] = -box.dst_stride[n];
        }
        const bool is_channel = axis == box.channel;
        if (n > 0 && !is_channel && channel != n - 1 && box.src_stride[n - 1] == box.src_stride[n] * box.shape[n] &&
            box.dst_stride[n - 1] == box.dst_stride[n] * box.shape[n]) {
            box.shape[n - 1] *= box.shape[n];
            box.src_stride[n - 1] = box.src_stride[n];
            box.dst_stride[n - 1] = box.dst_stride[n];
        } else {
            if (is_channel) channel = n;
            ++n;
        }
    }
    box.ndim = n;
    box.channel = channel;
    for (int axis = 0; axis + 1 < n; ++axis)  // only boxes whose axes change places need it
        if (box.dst_stride[axis] < box.dst_stride[n - 1]) swap_axes(box, axis, n - 1);
    return shift;
}

Placer::Placer(Dtype from, Dtype to, const Scaling &scaling)
    : move_(find_move(from, to)),
      scale_(scaling.is_on ? find_scale(from, to) : nullptr),
      from_nbytes_(item_nbytes(from)),
      to_nbytes_(item_nbytes(to)),
      same_(from == to),
      scale_by_(scaling.scale),
      channels_(scaling.channels),
      n_channels_(scaling.channels.size() / 2) {
    if (n_channels_ < 2) return;
    while (channels_.size() < 2 * kPixels) channels_.insert(channels_.end(), scaling.channels.begin(), scaling.channels.end());
}

void Placer::row(std::byte *dst, const std::byte *src, std::int64_t src_stride, std::size_t n, bool swap, u64 channel,
                 u64 channel_step) const {
    if (scale_ == nullptr) {
        move_(dst, src, src_stride, n, swap);
        return;
    }
    scale_(dst, src, src_stride, n, swap, {channels_.empty() ? nullptr : channels_.data(), scale_by_},
           n_channels_ > 1 ? channel : 0, n_channels_ > 1 ? channel_step : 0);
}

// Rows along axis `along`, whose elements lie apart at the destination: through a block that stays in the cache.
void Placer::scatter(std::byte *dst, const std::byte *src, const Box &box, int along, bool swap) const {
    constexpr std::size_t block = 256;
    alignas(64) std::byte dense[block * sizeof(Complex128)];
    Box rows = box;
    swap_axes(rows, along, rows.ndim - 1);
    const int last = rows.ndim - 1;
    const auto n = static_cast<std::size_t>(rows.shape[last]);
    const std::int64_t to_step = rows.dst_stride[last], from_step = rows.src_stride[last];
    const u64 channel_step = rows.channel == last ? 1 : 0;
    for_each_row(dst, src, rows, last, [&](std::byte *d, const std::byte *s, u64 channel) {
        for (std::size_t i = 0; i < n; i += block) {
            const std::size_t count = std::min(block, n - i);
            row(dense, s + static_cast<std::int64_t>(i) * from_step, from_step, count, swap, channel + i * channel_step, channel_step);
            std::byte *to = d + static_cast<std::int64_t>(i) * to_step;
            switch (to_nbytes_) {
                case 1: spread<1>(to, to_step, dense, count); break;
                case 2: spread<2>(to, to_step, dense, count); break;
                case 4: spread<4>(to, to_step, dense, count); break;
                case 8: spread<8>(to, to_step, dense, count); break;
                default: spread<16>(to, to_step, dense, count); break;
            }
        }
    });
}

// Rows of pixels whose channels lie together on both sides. False when there are none.
bool Placer::place_pixels(std::byte *dst, const std::byte *src, const Box &box, bool swap) const {
    const int last = box.ndim - 1;
    const auto from = static_cast<std::int64_t>(from_nbytes_), to = static_cast<std::int64_t>(to_nbytes_);
    if (scale_ == nullptr || last < 1 || box.channel != last || box.first_channel != 0 || box.src_stride[last] != from || box.dst_stride[last] != to ||
        box.src_stride[last - 1] != box.shape[last] * from || box.dst_stride[last - 1] != box.shape[last] * to)
        return false;
    const auto n = static_cast<std::size_t>(box.shape[last] * box.shape[last - 1]);
    const std::size_t most = channels_.size() / 2 / n_channels_ * n_channels_;
    for_each_row(dst, src, box, last - 1, [&](std::byte *d, const std::byte *s, u64) {
        for (std::size_t i = 0; i < n; i += most)
            row(d + i * to_nbytes_, s + i * from_nbytes_, from, std::min(most, n - i), swap, 0, 1);
    });
    return true;
}

void Placer::operator()(std::byte *dst, const std::byte *src, const Box &box, bool swap) const {
    for (int axis = 0; axis < box.ndim; ++axis)
        if (box.shape[axis] == 0) return;
    const int last = box.ndim - 1;
    if (box.ndim == 0) {
        row(dst, src, static_cast<std::int64_t>(from_nbytes_), 1, swap, static_cast<u64>(box.first_channel), 0);
        return;
    }
    if (place_pixels(dst, src, box, swap)) return;
    const bool dense_dst = box.dst_stride[last] == static_cast<std::int64_t>(to_nbytes_);
    if (!dense_dst || box.shape[last] < kShortRow) {  // take longer rows, if there are any
        int along = last;
        for (int axis = 0; axis < last; ++axis)
            if (box.shape[axis] > box.shape[along] && (box.shape[axis] >= 4 * box.shape[along])) along = axis;
        if (!dense_dst || along != last) {
            scatter(dst, src, box, along, swap);
            return;
        }
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
        for_each_row(dst, src, box, last - 1, [&](std::byte *d, const std::byte *s, u64) {
            copy(d, s, box.shape[last - 1], box.dst_stride[last - 1], box.src_stride[last - 1], nbytes);
        });
        return;
    }
    const u64 channel_step = box.channel == last ? 1 : 0;
    for_each_row(dst, src, box, last, [&](std::byte *d, const std::byte *s, u64 channel) {
        row(d, s, box.src_stride[last], n, swap, channel, channel_step);
    });
}

Placer::CopyRows Placer::find_rows(const Box &box, bool swap) const {
    const int last = box.ndim - 1;
    const bool fits = (box.ndim == 1 || box.ndim == 2) && keeps_bytes(swap) &&
                      box.dst_stride[last] == static_cast<std::int64_t>(to_nbytes_) &&
                      box.src_stride[last] == static_cast<std::int64_t>(from_nbytes_);
    return fits ? pick_copy(static_cast<std::size_t>(box.shape[last]) * to_nbytes_) : nullptr;
}

}  // namespace gpuload
