// The host executor of `resize`: the numbers of kernels/resize.h to the bit, with everything worked out once that rows
// share: weights along the last resized axis, and source rows that several output rows are made of.
#include "kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace gpuload {
namespace {

template <class To, class From>
struct Lines {
    using Real = typename Arithmetic<Wide<To>::value || Wide<From>::value>::Type;

    const ResizeParams &params;
    const ResizePiece &piece;
    int x_axis;
    i64 n_in, n_out, n_inner, inner_step;  // along the last resized axis, and the one behind it that is carried along
    std::vector<Taps<Real>> taps;
    std::vector<Real> weights;             // of each output element, `most` apart
    i32 most = 0;
    std::vector<Real> row;                 // a source row, as it is computed with
    std::vector<std::vector<Real>> kept;   // source rows that were resized along this axis
    std::vector<i64> kept_z, kept_y;
    i32 z_slots = 1, y_slots = 1;

    Lines(const ResizeParams &p, const ResizePiece &of) : params(p), piece(of), x_axis(p.axes[2]) {
        n_in = piece.src_shape[x_axis];
        n_out = p.shape[x_axis];
        const bool is_last = x_axis == p.ndim - 1;
        n_inner = is_last ? 1 : p.shape[p.ndim - 1];
        inner_step = is_last ? 0 : piece.src_stride[p.ndim - 1];
        for (i64 i = 0; i < n_out; ++i) {
            taps.push_back(axis_taps<Real>(p, piece, x_axis, static_cast<i32>(i)));
            most = std::max(most, taps.back().n);
        }
        weights.resize(static_cast<std::size_t>(n_out * most));
        for (i64 i = 0; i < n_out; ++i)
            for (i32 k = 0; k < taps[static_cast<std::size_t>(i)].n; ++k)
                weights[static_cast<std::size_t>(i * most + k)] = taps[static_cast<std::size_t>(i)].weight(k);
        row.resize(static_cast<std::size_t>(n_in * n_inner));
    }

    // Nothing is kept yet; so many rows are needed at a time.
    void keep(i32 most_z, i32 most_y) {
        z_slots = std::max(most_z, 1);
        y_slots = std::max(most_y, 1);
        const auto n = static_cast<std::size_t>(z_slots) * static_cast<std::size_t>(y_slots);
        kept.assign(n, std::vector<Real>(static_cast<std::size_t>(n_out * n_inner)));
        kept_z.assign(n, -1);
        kept_y.assign(n, -1);
    }

    // Source row (z, y) at `src`, resized along the last resized axis.
    const Real *line(const u8 *src, i64 z, i64 y) {
        const auto slot = static_cast<std::size_t>(z % z_slots * y_slots + y % y_slots);
        std::vector<Real> &made = kept[slot];
        if (kept_z[slot] == z && kept_y[slot] == y) return made.data();
        kept_z[slot] = z;
        kept_y[slot] = y;
        const i64 step = piece.src_stride[x_axis];
        const bool swap = params.swap != 0;
        Real *to = row.data();
        for (i64 i = 0; i < n_in; ++i)
            for (i64 c = 0; c < n_inner; ++c) {
                From value;
                std::memcpy(&value, src + i * step + c * inner_step, sizeof(From));
                *to++ = static_cast<Real>(widen(swap_bytes(value, swap)));
            }
        for (i64 i = 0; i < n_out; ++i) {
            const Taps<Real> &of = taps[static_cast<std::size_t>(i)];
            const Real *from = row.data() + of.first * n_inner, *w = weights.data() + i * most;
            Real *out = made.data() + i * n_inner;
            for (i64 c = 0; c < n_inner; ++c) {
                Real sum = 0;
                for (i32 k = 0; k < of.n; ++k) sum += w[k] * from[k * n_inner + c];
                out[c] = sum;
            }
        }
        return made.data();
    }
};

// One plane or volume: `src` and `dst` are its first elements.
template <class To, class From>
void resize_volume(Lines<To, From> &lines, const u8 *src, u8 *dst) {
    using Real = typename Lines<To, From>::Real;
    const ResizeParams &p = lines.params;
    const ResizePiece &piece = lines.piece;
    const i32 z_axis = p.axes[0], y_axis = p.axes[1];
    const i64 nz = z_axis < 0 ? 1 : p.shape[z_axis], ny = y_axis < 0 ? 1 : p.shape[y_axis];
    const auto along = [](const i64 *strides, i32 axis) { return axis < 0 ? 0 : strides[axis]; };
    const i64 src_z = along(piece.src_stride, z_axis), src_y = along(piece.src_stride, y_axis);
    const i64 dst_z = along(p.dst_stride, z_axis), dst_y = along(p.dst_stride, y_axis);
    const auto n = static_cast<std::size_t>(lines.n_out * lines.n_inner);
    std::vector<Taps<Real>> zs, ys;
    i32 most_z = 0, most_y = 0;
    for (i64 z = 0; z < nz; ++z) most_z = std::max(most_z, zs.emplace_back(axis_taps<Real>(p, piece, z_axis, static_cast<i32>(z))).n);
    for (i64 y = 0; y < ny; ++y) most_y = std::max(most_y, ys.emplace_back(axis_taps<Real>(p, piece, y_axis, static_cast<i32>(y))).n);
    lines.keep(most_z, most_y);
    std::vector<Real> plane(n), sum(n);
    const i64 x_step = p.dst_stride[lines.x_axis], inner_step = lines.n_inner == 1 ? 0 : p.dst_stride[p.ndim - 1];
    for (i64 z = 0; z < nz; ++z)
        for (i64 y = 0; y < ny; ++y) {
            const Taps<Real> &of_z = zs[static_cast<std::size_t>(z)], &of_y = ys[static_cast<std::size_t>(y)];
            std::fill(sum.begin(), sum.end(), Real(0));
            for (i32 a = 0; a < of_z.n; ++a) {
                std::fill(plane.begin(), plane.end(), Real(0));
                for (i32 b = 0; b < of_y.n; ++b) {
                    const i64 at_z = of_z.first + a, at_y = of_y.first + b;
                    const Real *line = lines.line(src + at_z * src_z + at_y * src_y, at_z, at_y), w = of_y.weight(b);
                    for (std::size_t i = 0; i < n; ++i) plane[i] += w * line[i];
                }
                const Real w = of_z.weight(a);
                for (std::size_t i = 0; i < n; ++i) sum[i] += w * plane[i];
            }
            u8 *to = dst + z * dst_z + y * dst_y;
            const Real *from = sum.data();
            for (i64 i = 0; i < lines.n_out; ++i)
                for (i64 c = 0; c < lines.n_inner; ++c) {
                    const To out = resize_result<To>(*from++);
                    std::memcpy(to + i * x_step + c * inner_step, &out, sizeof(To));
                }
        }
}

template <class To, class From>
void resize_piece_by_rows(const ResizeParams &params, const ResizePiece &piece) {
    const u32 rows = resize_rows(params), n = static_cast<u32>(params.shape[params.ndim - 1]);
    for (u32 row = 0; row < rows; ++row) resize_row<To, From>(params, piece, row, 0, n, 0, 1);
}

// Values that are blended, with at most one axis behind those that are resized.
bool has_lines(const ResizeParams &params, const ResizePiece &piece) {
    if (params.mode == kNearest || params.mode == kNearestExact || params.axes[2] < params.ndim - 2) return false;
    for (int axis = 0; axis < params.ndim; ++axis)
        if (params.shape[axis] < 1 || piece.src_shape[axis] < 1) return false;
    return params.axes[2] >= 0;
}

template <class To, class From>
void resize_all(const ResizeParams &params) {
    for (i64 k = 0; k < params.n_pieces; ++k) {
        const ResizePiece piece = resize_piece<To, From>(params, k);
        if (!has_lines(params, piece)) {
            resize_piece_by_rows<To, From>(params, piece);
            continue;
        }
        Lines<To, From> lines(params, piece);
        int outer[kMaxAxes], n_outer = 0;  // axes before that are carried along
        for (int axis = 0; axis < params.axes[2]; ++axis)
            if (axis != params.axes[0] && axis != params.axes[1]) outer[n_outer++] = axis;
        i64 index[kMaxAxes] = {};
        for (;;) {
            const u8 *src = piece.src;
            u8 *dst = piece.dst;
            for (int i = 0; i < n_outer; ++i) {
                src += index[i] * piece.src_stride[outer[i]];
                dst += index[i] * params.dst_stride[outer[i]];
            }
            resize_volume(lines, src, dst);
            int i = n_outer - 1;
            while (i >= 0 && ++index[i] == params.shape[outer[i]]) index[i--] = 0;
            if (i < 0) break;
        }
    }
}

using ResizeAll = void (*)(const ResizeParams &);

template <class From>
constexpr std::array<ResizeAll, 2> pick_resize() {
    if constexpr (IsSame<From, Complex64>::value || IsSame<From, Complex128>::value) return {nullptr, nullptr};
    else return {&resize_all<From, From>, &resize_all<float, From>};
}

constexpr std::array kResizes = {
#define X(name, type) pick_resize<type>(),
    GPULOAD_DTYPES(X)
#undef X
};

}  // namespace

void resize_boxes(const ResizeParams &params, Dtype from, Dtype to) {
    kResizes[static_cast<std::size_t>(from)][from == to ? 0 : 1](params);
}

}  // namespace gpuload
