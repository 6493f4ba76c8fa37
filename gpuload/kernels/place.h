// place: copy boxes of elements, cast, byte-swapped and scaled on the way. One piece is one box; a launch
// takes many.
//
// A piece is cut into rows along its last axis, which is the one that is dense at the destination, and rows
// into segments. A group of 1 to 32 lanes moves a segment, 16 bytes per lane at a time where both sides are
// aligned. Groups that stand next to each other take neighbouring segments; when the source is dense along
// another axis they take neighbours along that one, so that a line of the source is fetched once.
#pragma once

#include "launch.h"
#include "transform.h"

namespace gpuload {

// A row of the table of pieces: `src` and `dst`, in bytes from the pointers of the launch; where pieces
// differ in shape, then extents and source strides of each axis.
struct PlaceParams {
    const u8 *src;
    u8 *dst;
    const i64 *table;        // nullptr: pieces lie src_step and dst_step apart, and are alike
    i64 n_pieces;
    i64 src_step, dst_step;  // bytes
    i64 shape[kMaxAxes], src_stride[kMaxAxes], dst_stride[kMaxAxes];
    Affine affine;
    i32 ndim;
    i32 row_length;          // numbers in a row of the table: 2, or 2 + 2 * ndim
    i32 swap;                // the source is in the other byte order
    i32 group;               // lanes per row: a power of two, at most 32
    i32 is_across;           // the source is dense along the last but one axis
    i32 channel_axis;        // -1: one channel
};

// One box. Arrays are those of the launch or of a row of the table.
struct PlacePiece {
    const u8 *src;
    u8 *dst;
    const i64 *shape, *src_stride;
    bool swap;
};

template <class To, class From>
struct Segment {
    static constexpr u32 kWidest = sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From);
    static constexpr u32 kPack = kWidest >= 16 ? 1 : 16 / kWidest;  // elements per lane and step
    static constexpr u32 kSteps = sizeof(To) == sizeof(From) ? 2 : 1;  // loads in flight per lane
    GL_FN static constexpr u32 elements(u32 group) { return group * kPack * kSteps; }
};

// Move `n` elements of a segment; `lane` is that of the group.
template <class To, class From, bool kAffine>
GL_FN void place_segment(const u8 *src, u8 *dst, u32 n, i64 src_step, i64 dst_step, u32 lane, u32 group, bool swap,
                         const Affine &affine, u64 channel, u64 channel_step) {
    using S = Segment<To, From>;
    constexpr u32 kIn = sizeof(From), kOut = sizeof(To);
    const bool is_dense = src_step == kIn && dst_step == kOut;
    if (is_dense && is_multiple(address(src), kIn * S::kPack) && is_multiple(address(dst), kOut * S::kPack)) {
        using In = Pack<From, S::kPack>;
        using Out = Pack<To, S::kPack>;
        In in[S::kSteps];
        const u32 whole = n / S::kPack * S::kPack;
#pragma unroll
        for (u32 step = 0; step < S::kSteps; ++step) {
            const u32 at = (step * group + lane) * S::kPack;
            if (at < whole) in[step] = load_aligned<In>(src + static_cast<u64>(at) * kIn);
        }
#pragma unroll
        for (u32 step = 0; step < S::kSteps; ++step) {
            const u32 at = (step * group + lane) * S::kPack;
            if (at >= whole) continue;
            Out out;
#pragma unroll
            for (u32 k = 0; k < S::kPack; ++k)
                out.of[k] = transform<To, From, kAffine>(in[step].of[k], swap, affine, channel + (at + k) * channel_step);
            store_aligned<Out>(dst + static_cast<u64>(at) * kOut, out);
        }
        if (whole == n) return;
        src += static_cast<u64>(whole) * kIn;
        dst += static_cast<u64>(whole) * kOut;
        channel += whole * channel_step;
        n -= whole;
    }
    const bool is_aligned = is_multiple(address(src) | static_cast<u64>(src_step), alignof(From)) &&
                            is_multiple(address(dst) | static_cast<u64>(dst_step), alignof(To));
#pragma unroll 1
    for (u32 at = lane; at < n; at += group) {
        const u8 *from = src + static_cast<i64>(at) * src_step;
        const From in = is_aligned ? load_aligned<From>(from) : load_anywhere<From>(from);
        const To out = transform<To, From, kAffine>(in, swap, affine, channel + at * channel_step);
        u8 *to = dst + static_cast<i64>(at) * dst_step;
        if (is_aligned) store_aligned<To>(to, out);
        else store_anywhere<To>(to, out);
    }
}

// The share of this thread of one piece.
template <class To, class From, bool kAffine>
GL_FN void place_piece(const PlaceParams &p, const PlacePiece &piece, const Thread &t) {
    const int last = p.ndim - 1;
    const u32 group = static_cast<u32>(p.group), segment = Segment<To, From>::elements(group);
    const u64 length = p.ndim == 0 ? 1 : static_cast<u64>(piece.shape[last]);
    const u32 n_segments = static_cast<u32>((length + segment - 1) >> log2_of(segment));
    u32 n_units = n_segments;  // fits: checked before the launch
#pragma unroll 1
    for (int axis = 0; axis < last; ++axis) n_units *= static_cast<u32>(piece.shape[axis]);
    const i64 src_step = p.ndim == 0 ? static_cast<i64>(sizeof(From)) : piece.src_stride[last];
    const i64 dst_step = p.ndim == 0 ? static_cast<i64>(sizeof(To)) : p.dst_stride[last];
    const u32 shift = log2_of(group), groups = kLanes >> shift, lane = t.lane & (group - 1u);
    const u32 apart = t.n_blocks * groups, left = 0xffffffffu - apart;
#pragma unroll 1
    for (u32 unit = t.block * groups + (t.lane >> shift); unit < n_units; unit += apart) {
        u32 rest = unit, at_segment = 0;
        u64 channel = 0;
        const u8 *src = piece.src;
        u8 *dst = piece.dst;
#pragma unroll 1
        for (int k = 0; k <= last; ++k) {  // segments count fastest, or next to the axis that the source is dense along
            const bool is_segment = k == p.is_across;
            const int axis = k == 0 ? last - 1 : last - k;
            const u32 n = is_segment ? n_segments : static_cast<u32>(piece.shape[axis]), i = rest % n;
            rest /= n;
            if (is_segment) {
                at_segment = i;
                continue;
            }
            src += static_cast<i64>(i) * piece.src_stride[axis];
            dst += static_cast<i64>(i) * p.dst_stride[axis];
            if (kAffine && axis == p.channel_axis) channel = i;
        }
        const u64 first = static_cast<u64>(at_segment) * segment;
        src += static_cast<i64>(first) * src_step;
        dst += static_cast<i64>(first) * dst_step;
        const u64 most = length - first;
        const bool is_along = kAffine && p.channel_axis == last && last >= 0;
        place_segment<To, From, kAffine>(src, dst, most < segment ? static_cast<u32>(most) : segment, src_step, dst_step, lane,
                                         group, piece.swap, p.affine, is_along ? first : channel, is_along ? 1 : 0);
        if (unit > left) break;  // the next one would not fit 32 bits
    }
}

template <class To, class From, bool kAffine>
GL_FN void place_thread(const PlaceParams &p, const Thread &t) {
#pragma unroll 1
    for (i64 k = t.piece; k < p.n_pieces; k += t.n_pieces) {
        const i64 *row = p.table == nullptr ? nullptr : p.table + k * p.row_length;
        const bool has_shape = row != nullptr && p.row_length > 2;
        const PlacePiece piece{p.src + (row == nullptr ? k * p.src_step : row[0]),
                               p.dst + (row == nullptr ? k * p.dst_step : row[1]), has_shape ? row + 2 : p.shape,
                               has_shape ? row + 2 + p.ndim : p.src_stride, p.swap != 0};
        place_piece<To, From, kAffine>(p, piece, t);
    }
}

}  // namespace gpuload
