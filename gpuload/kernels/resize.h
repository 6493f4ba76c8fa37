// resize: boxes of elements to other extents along up to three axes, cast on the way. The numbers are those of
// torch.nn.functional.interpolate with align_corners=False; axes that keep their extent are carried along.
//
// Each output element is a weighted sum of neighbours, along each axis independently. Arithmetic is in float64
// when the stored or the delivered type holds more than 24 bits, in float32 otherwise, each step rounded once;
// integers are rounded to nearest, ties to even. The nearest modes copy: values are cast, never computed with.
#pragma once

#include "launch.h"
#include "transform.h"

namespace gpuload {

enum ResizeMode : i32 { kNearest = 0, kNearestExact = 1, kLinear = 2, kAntialias = 3, kArea = 4 };

// A row of the table of pieces: `src` and `dst`, in bytes from the pointers of the launch; where sources differ
// in shape, then source extents and source strides of each axis. Where a source has no element, 0 is delivered.
struct ResizeParams {
    const u8 *src;
    u8 *dst;
    const i64 *table;        // nullptr: pieces lie src_step and dst_step apart, and are alike
    i64 n_pieces;
    i64 src_step, dst_step;  // bytes
    i64 shape[kMaxAxes], dst_stride[kMaxAxes];
    i64 src_shape[kMaxAxes], src_stride[kMaxAxes];  // extents below 2^31 along resized axes
    i32 ndim;
    i32 row_length;          // numbers in a row of the table: 2, or 2 + 2 * ndim
    i32 axes[3];             // which are resized, ascending; -1 first where they are fewer
    i32 mode, swap;
    i32 group;               // lanes per row: a power of two, at most 32
};

struct ResizePiece {
    const u8 *src;
    u8 *dst;
    const i64 *src_shape, *src_stride;
    bool is_aligned;  // both sides, to their elements
};

#if defined(__CUDA_ARCH__)
GL_FN float round_down(float x) { return floorf(x); }
GL_FN float to_nearest(float x) { return rintf(x); }
GL_FN double to_nearest(double x) { return rint(x); }
#else
GL_FN float round_down(float x) { return __builtin_floorf(x); }
GL_FN float to_nearest(float x) { return __builtin_rintf(x); }
GL_FN double to_nearest(double x) { return __builtin_rint(x); }
#endif

// The source elements along one axis that make an output element: [first, first + n), and their weights.
template <class Real>
struct Taps {
    i32 first, n;
    Real center, slope, norm;

    GL_FN Real weight(i32 k) const {
        const Real far = static_cast<Real>(k) - center;
        const Real w = Real(1) - (far < 0 ? -far : far) * slope;
        return (w < 0 ? Real(0) : w) * norm;
    }
};

// torch counts in float32, whatever the data (aten/src/ATen/native/UpSample.h).
GL_FN i32 nearest_index(i32 i, i32 in, i32 out, bool is_exact) {
    if (in == out) return i;
    const float scale = static_cast<float>(in) / static_cast<float>(out);
    const float at = is_exact ? static_cast<float>((static_cast<double>(i) + 0.5) * static_cast<double>(scale))
                              : static_cast<float>(i) * scale;
    const i32 index = static_cast<i32>(round_down(at));
    return index < in ? index : in - 1;
}

// What makes element `i` of an axis of `out` elements from one of `in`.
template <class Real>
GL_FN Taps<Real> find_taps(i32 i, i32 in, i32 out, i32 mode) {
    Taps<Real> taps{0, in < 1 ? 0 : 1, 0, 0, 1};  // weight 1 for the first element
    if (taps.n == 0) return taps;
    if (mode == kNearest || mode == kNearestExact) {
        taps.first = nearest_index(i, in, out, mode == kNearestExact);
        return taps;
    }
    if (mode == kArea) {
        taps.first = static_cast<i32>(static_cast<u64>(i) * static_cast<u64>(in) / static_cast<u64>(out));
        const u64 end = (static_cast<u64>(i + 1) * static_cast<u64>(in) - 1u) / static_cast<u64>(out) + 1u;
        taps.n = static_cast<i32>(end) - taps.first;
        taps.norm = Real(1) / static_cast<Real>(taps.n);
        return taps;
    }
    const Real scale = static_cast<Real>(in) / static_cast<Real>(out);
    const Real center = scale * (static_cast<Real>(i) + Real(0.5));
    if (mode == kLinear) {
        const Real at = center < Real(0.5) ? Real(0) : center - Real(0.5);
        taps.first = static_cast<i32>(at);
        if (taps.first > in - 1) taps.first = in - 1;
        taps.center = at - static_cast<Real>(taps.first);
        if (taps.first < in - 1 && taps.center > 0) {
            taps.n = 2;
            taps.slope = 1;
        }
        return taps;
    }
    const Real support = scale > 1 ? scale : Real(1);
    const i32 end = static_cast<i32>(center + support + Real(0.5));
    taps.first = center - support + Real(0.5) < 0 ? 0 : static_cast<i32>(center - support + Real(0.5));
    taps.n = (end < in ? end : in) - taps.first;
    taps.center = center - static_cast<Real>(taps.first) - Real(0.5);
    taps.slope = Real(1) / support;
    Real total = 0;
#pragma unroll 1
    for (i32 k = 0; k < taps.n; ++k) total += taps.weight(k);
    taps.norm = Real(1) / total;
    return taps;
}

template <class From>
GL_FN From resize_load(const u8 *from, bool is_aligned, bool swap) {
    return swap_bytes(is_aligned ? load_aligned<From>(from) : load_anywhere<From>(from), swap);
}

template <class To, class Real>
GL_FN To resize_result(Real x) {
    constexpr bool is_float = IsFloat<To>::value || IsSame<To, Half>::value || IsSame<To, Bfloat>::value;
    if constexpr (is_float) return Narrow<To>::from(x);
    else return Narrow<To>::from(to_nearest(x));
}

// What makes the elements with index `i` along `axis`; an axis of -1 has one element.
template <class Real>
GL_FN Taps<Real> axis_taps(const ResizeParams &p, const ResizePiece &piece, i32 axis, i32 i) {
    if (axis < 0) return {0, 1, 0, 0, 1};
    return find_taps<Real>(i, static_cast<i32>(piece.src_shape[axis]), static_cast<i32>(p.shape[axis]), p.mode);
}

// Make elements [first, first + n) of output row `row` of a piece.
template <class To, class From>
GL_FN void resize_row(const ResizeParams &p, const ResizePiece &piece, u32 row, u32 first, u32 n, u32 lane, u32 group) {
    using Real = typename Arithmetic<Wide<To>::value || Wide<From>::value>::Type;
    const int last = p.ndim - 1;
    const i32 z_axis = p.axes[0], y_axis = p.axes[1], x_axis = p.axes[2];
    const u8 *src = piece.src;
    u8 *dst = piece.dst;
    i32 z_at = 0, y_at = 0, x_at = 0;
#pragma unroll 1
    for (int axis = last - 1; axis >= 0; --axis) {
        const u32 extent = static_cast<u32>(p.shape[axis]);
        const i32 i = static_cast<i32>(row % extent);
        row /= extent;
        dst += i * p.dst_stride[axis];
        if (axis == z_axis) z_at = i;
        else if (axis == y_axis) y_at = i;
        else if (axis == x_axis) x_at = i;
        else src += i * piece.src_stride[axis];
    }
    const Taps<Real> z = axis_taps<Real>(p, piece, z_axis, z_at), y = axis_taps<Real>(p, piece, y_axis, y_at);
    const i64 z_step = z_axis < 0 ? 0 : piece.src_stride[z_axis], y_step = y_axis < 0 ? 0 : piece.src_stride[y_axis];
    const i64 x_step = x_axis < 0 ? 0 : piece.src_stride[x_axis];
    const bool swap = p.swap != 0, is_nearest = p.mode == kNearest || p.mode == kNearestExact;
    src += z.first * z_step + y.first * y_step;
#pragma unroll 1
    for (u32 k = lane; k < n; k += group) {
        const i32 i = static_cast<i32>(first + k);
        const bool is_along = x_axis == last;
        const Taps<Real> x = axis_taps<Real>(p, piece, x_axis, is_along ? i : x_at);
        const u8 *from = src + (is_along ? 0 : i * piece.src_stride[last]) + x.first * x_step;
        To out{};
        if (!is_nearest) {
            Real sum = 0;
#pragma unroll 1
            for (i32 a = 0; a < z.n; ++a) {
                Real plane = 0;
#pragma unroll 1
                for (i32 b = 0; b < y.n; ++b) {
                    const u8 *at = from + a * z_step + b * y_step;
                    Real line = 0;
#pragma unroll 1
                    for (i32 c = 0; c < x.n; ++c, at += x_step)
                        line += x.weight(c) * static_cast<Real>(widen(resize_load<From>(at, piece.is_aligned, swap)));
                    plane += y.weight(b) * line;
                }
                sum += z.weight(a) * plane;
            }
            out = resize_result<To>(sum);
        } else if (z.n != 0 && y.n != 0 && x.n != 0) {
            const From value = resize_load<From>(from, piece.is_aligned, swap);
            if constexpr (IsSame<To, From>::value) out = value;
            else out = convert<To>(value);
        }
        u8 *to = dst + i * p.dst_stride[last];
        if (piece.is_aligned) store_aligned(to, out);
        else store_anywhere(to, out);
    }
}

template <class To, class From>
GL_FN ResizePiece resize_piece(const ResizeParams &p, i64 k) {
    ResizePiece piece{p.src + k * p.src_step, p.dst + k * p.dst_step, p.src_shape, p.src_stride, false};
    if (p.table != nullptr) {
        const i64 *row = p.table + k * p.row_length;
        piece.src = p.src + row[0];
        piece.dst = p.dst + row[1];
        if (p.row_length > 2) {
            piece.src_shape = row + 2;
            piece.src_stride = row + 2 + p.ndim;
        }
    }
    u64 from = address(piece.src), to = address(piece.dst);
#pragma unroll 1
    for (int axis = 0; axis < p.ndim; ++axis) {
        from |= static_cast<u64>(piece.src_stride[axis]);
        to |= static_cast<u64>(p.dst_stride[axis]);
    }
    piece.is_aligned = is_multiple(from, alignof(From)) && is_multiple(to, alignof(To));
    return piece;
}

GL_FN u32 resize_rows(const ResizeParams &p) {
    u32 rows = 1;
#pragma unroll 1
    for (int axis = 0; axis < p.ndim - 1; ++axis) rows *= static_cast<u32>(p.shape[axis]);
    return rows;
}

template <class To, class From>
GL_FN void resize_thread(const ResizeParams &p, const Thread &t) {
    constexpr u32 kSteps = 4;
    const u32 group = static_cast<u32>(p.group), segment = group * kSteps, groups = kLanes / group;
    const u32 length = static_cast<u32>(p.shape[p.ndim - 1]), n_segments = (length + segment - 1u) / segment;
    const u32 n_units = resize_rows(p) * n_segments;  // fits: checked before the launch
    const u32 apart = t.n_blocks * groups, left = 0xffffffffu - apart;
#pragma unroll 1
    for (i64 k = t.piece; k < p.n_pieces; k += t.n_pieces) {
        const ResizePiece piece = resize_piece<To, From>(p, k);
#pragma unroll 1
        for (u32 unit = t.block * groups + t.lane / group; unit < n_units; unit += apart) {
            const u32 first = unit % n_segments * segment, most = length - first;
            resize_row<To, From>(p, piece, unit / n_segments, first, most < segment ? most : segment, t.lane & (group - 1u),
                                 group);
            if (unit > left) break;  // the next one would not fit 32 bits
        }
    }
}

}  // namespace gpuload
