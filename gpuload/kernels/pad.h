// pad: fill what lies outside the inner box of each piece of a batch, in place; `place` has filled the inner
// boxes before. The result equals numpy.pad of the inner box, however wide the padding is.
//
// What lies outside is cut into sides: for each axis the indices before and behind the inner box, inside it
// along the axes before that one, and any along those behind it. Sides share no element, and rows that are
// wholly inside belong to none. Inner elements are only read and outer ones only written, so that threads
// need no order among each other.
#pragma once

#include "launch.h"

namespace gpuload {

enum PadMode : i32 { kConstant = 0, kEdge = 1, kReflect = 2, kSymmetric = 3, kWrap = 4 };

// A row of the table of pieces: where the inner box begins along each axis, then its extents. An inner box
// must lie within the piece. One that is empty has nothing to repeat: its piece is filled with `value`.
struct PadParams {
    u8 *dst;
    const i64 *table;  // nullptr: pieces are alike
    i64 n_pieces;
    i64 dst_step;      // bytes
    i64 shape[kMaxAxes], dst_stride[kMaxAxes];  // below 2^31 along each axis
    i64 begin[kMaxAxes], extent[kMaxAxes];
    u64 value[2];      // the bytes of an element come first
    i32 ndim, row_length, mode;
    i32 item_nbytes;
};

struct PadPiece {
    u8 *dst;
    const i64 *begin, *extent;
    i32 mode;
};

template <int kNbytes> struct Bits { using Type = Pack<u64, 2>; };
template <> struct Bits<1> { using Type = u8; };
template <> struct Bits<2> { using Type = u16; };
template <> struct Bits<4> { using Type = u32; };
template <> struct Bits<8> { using Type = u64; };

// Indices [first, first + n) of an axis.
struct PadRange {
    u32 first, n;
};

// One side, as the ranges of its axes: before or behind the inner box along `axis`.
struct PadSide {
    const i64 *shape, *begin, *extent;
    int axis;
    bool is_behind;

    GL_FN PadRange along(int other) const {
        const u32 n = static_cast<u32>(shape[other]);
        if (other > axis) return {0, n};
        const u32 from = static_cast<u32>(begin[other]), to = from + static_cast<u32>(extent[other]);
        if (other < axis) return {from, to - from};
        return is_behind ? PadRange{to, n - to} : PadRange{0, from};
    }
};

// The index of [0, n) whose value stands at `i`, which counts from the start of the inner box. n >= 1.
GL_FN u32 pad_index(i32 i, u32 n, i32 mode) {
    if (i >= 0 && static_cast<u32>(i) < n) return static_cast<u32>(i);
    if (mode == kConstant) return 0;  // not used
    if (mode == kEdge) return i < 0 ? 0 : n - 1u;
    const u32 period = mode == kWrap ? n : mode == kSymmetric ? 2u * n : 2u * n - 2u;
    if (period == 0) return 0;  // one element under reflect
    const u32 at = i < 0 ? period - 1u - (static_cast<u32>(-1 - i) % period) : static_cast<u32>(i) % period;
    if (at < n) return at;
    return (mode == kSymmetric ? 2u * n - 1u : 2u * n - 2u) - at;
}

// Fill `n` elements at `dst`, of which the first has index `first` counted from the inner box; `row` is where
// the inner box begins in the row that they repeat, and `extent` how long it is there.
template <class T>
GL_FN void pad_run(u8 *dst, const u8 *row, i32 first, u32 n, u32 extent, i64 step, T value, i32 mode, u32 lane, u32 group) {
    constexpr u32 kNbytes = sizeof(T), kPack = 16 / kNbytes;
    const bool is_aligned = is_multiple(address(dst) | address(row) | static_cast<u64>(step), alignof(T));
    if (mode == kConstant && is_aligned && step == kNbytes) {
        Pack<T, kPack> pack;
#pragma unroll
        for (u32 k = 0; k < kPack; ++k) pack.of[k] = value;
        // Packs stand at multiples of 16 bytes, so that the first may begin before the run.
        const u32 skew = static_cast<u32>(address(dst) / kNbytes) % kPack;
#pragma unroll 1
        for (u32 end = (lane + 1u) * kPack; end < n + skew + kPack; end += group * kPack) {
            if (end >= skew + kPack && end <= skew + n) {
                store_aligned(dst + static_cast<u64>(end - skew - kPack) * kNbytes, pack);
                continue;
            }
#pragma unroll 1
            for (u32 at = end - kPack; at < end; ++at)
                if (at >= skew && at < skew + n) store_aligned(dst + static_cast<u64>(at - skew) * kNbytes, value);
        }
        return;
    }
#pragma unroll 1
    for (u32 i = lane; i < n; i += group) {
        u8 *to = dst + static_cast<i64>(i) * step;
        T item = value;
        if (mode != kConstant) {
            const u8 *from = row + static_cast<i64>(pad_index(first + static_cast<i32>(i), extent, mode)) * step;
            item = is_aligned ? load_aligned<T>(from) : load_anywhere<T>(from);
        }
        if (is_aligned) store_aligned(to, item);
        else store_anywhere(to, item);
    }
}

// Fill elements [first, first + n) of row `row` of a side.
template <int kNbytes>
GL_FN void pad_row(const PadParams &p, const PadPiece &piece, const PadSide &side, u32 row, u32 first, u32 n, u32 lane,
                   u32 group) {
    using T = typename Bits<kNbytes>::Type;
    const int last = p.ndim - 1;
    u8 *dst = piece.dst;
    const u8 *from = piece.dst;
#pragma unroll 1
    for (int axis = last - 1; axis >= 0; --axis) {
        const PadRange range = side.along(axis);
        const u32 i = range.first + row % range.n;
        row /= range.n;
        dst += static_cast<i64>(i) * p.dst_stride[axis];
        const i32 begin = static_cast<i32>(piece.begin[axis]);
        const u32 source = pad_index(static_cast<i32>(i) - begin, static_cast<u32>(piece.extent[axis]), piece.mode);
        from += (begin + static_cast<i64>(source)) * p.dst_stride[axis];
    }
    const i64 step = p.dst_stride[last], begin = piece.begin[last];
    const i64 at = side.along(last).first + static_cast<i64>(first);
    T value;
    GL_COPY(&value, p.value, sizeof(T));
    pad_run<T>(dst + at * step, from + begin * step, static_cast<i32>(at - begin), n, static_cast<u32>(piece.extent[last]),
               step, value, piece.mode, lane, group);
}

GL_FN u32 pad_rows(const PadSide &side, int ndim) {
    u32 rows = 1;
#pragma unroll 1
    for (int axis = 0; axis < ndim - 1; ++axis) rows *= side.along(axis).n;
    return rows;
}

GL_FN PadPiece pad_piece(const PadParams &p, i64 k) {
    PadPiece piece{p.dst + k * p.dst_step, p.begin, p.extent, p.mode};
    if (p.table != nullptr) {
        piece.begin = p.table + k * p.row_length;
        piece.extent = piece.begin + p.ndim;
    }
#pragma unroll 1
    for (int axis = 0; axis < p.ndim; ++axis)
        if (piece.extent[axis] == 0) piece.mode = kConstant;
    return piece;
}

// Of 2 * ndim sides.
GL_FN PadSide side_of(const PadParams &p, const PadPiece &piece, int k) {
    return {p.shape, piece.begin, piece.extent, k / 2, k % 2 == 1};
}

template <int kNbytes>
GL_FN void pad_side(const PadParams &p, const PadPiece &piece, const PadSide &side, const Thread &t) {
    constexpr u32 kSteps = 4;
    const u32 length = side.along(p.ndim - 1).n;
    if (length == 0 || side.along(side.axis).n == 0) return;
    const u32 pack = piece.mode == kConstant ? 16 / kNbytes : 1;  // elements per lane and step
    u32 group = 1;  // lanes per row: what a row keeps busy, at most a warp
    while (group < 32u && group * pack < length) group *= 2u;
    const u32 segment = group * pack * kSteps, n_segments = (length + segment - 1u) / segment;
    const u32 n_units = pad_rows(side, p.ndim) * n_segments;  // fits: checked before the launch
    const u32 groups = kLanes / group, apart = t.n_blocks * groups, left = 0xffffffffu - apart;
#pragma unroll 1
    for (u32 unit = t.block * groups + t.lane / group; unit < n_units; unit += apart) {
        const u32 first = unit % n_segments * segment, most = length - first;
        pad_row<kNbytes>(p, piece, side, unit / n_segments, first, most < segment ? most : segment, t.lane & (group - 1u),
                         group);
        if (unit > left) break;  // the next one would not fit 32 bits
    }
}

template <int kNbytes>
GL_FN void pad_thread(const PadParams &p, const Thread &t) {
#pragma unroll 1
    for (i64 i = t.piece; i < p.n_pieces; i += t.n_pieces) {
        const PadPiece piece = pad_piece(p, i);
#pragma unroll 1
        for (int k = 0; k < 2 * p.ndim; ++k) pad_side<kNbytes>(p, piece, side_of(p, piece, k), t);
    }
}

}  // namespace gpuload
