// crops: a batch of windows of arrays that the device holds, in one launch and with nothing copied from the host. Each
// block works out its sample, and draws where the window starts, with the numbers of the host.
#pragma once

#include "order.h"
#include "place.h"

namespace gpuload {

struct CropsParams {
    PlaceParams place;        // of alike windows; src is the first byte that is held, dst x of the batch
    Shuffled shuffle;
    const i64 *arrays;        // rows: first byte, bytes from item to item, whether in the other byte order, then shape
                              // and strides of an item
    const i64 *row_ends;      // items of arrays 0..i; nullptr: every array is an item
    const i64 *selected;      // items of the source as items of all arrays; nullptr: all
    const i64 *window_ends;   // windows of items 0..i; nullptr: per_item each
    const i64 *listed;        // items in the order of a sampler, with the numbers of their crops; nullptr: shuffled
    const u32 *listed_crop;
    const u8 *labels;         // rows of label_nbytes, of items of the source
    u8 *label;                // columns of the batch; nullptr where not wanted
    i64 *index, *crop, *start;
    u8 *valid;
    i64 n_arrays, n_items, per_item, label_nbytes;
    i64 n_samples, first, rank, world;  // as of csrc/order.hpp
    i64 begin;                // position of the batch's first sample among those of this rank
    u64 key;
    i64 size[kMaxAxes], step[kMaxAxes];  // of the windows; step is that of a grid
    i32 window, padding;      // WindowKind
};

// The window of one block.
struct DrawnWindow {
    i64 src, dst;  // bytes
    i64 shape[kMaxAxes], src_stride[kMaxAxes];
    bool swap;
};

struct WithinGroup {
    const Shuffled &shuffled;
    GL_FN Permutation operator()(u64 which, u64 samples) const { return shuffled.within_group(which, samples); }
};

GL_FN void draw_window(const CropsParams &p, const Thread &t, DrawnWindow &drawn) {
    const int ndim = p.place.ndim;
    const i64 k = t.piece;
    i64 position = p.first + (p.begin + k) * p.world + p.rank;
    const bool valid = position < p.n_samples;
    if (!valid) position %= p.n_samples;
    i64 item;
    u32 crop;
    if (p.listed != nullptr) {
        item = p.listed[position];
        crop = p.listed_crop[position];
    } else {
        const i64 sample = static_cast<i64>(p.shuffle.at(static_cast<u64>(position), WithinGroup{p.shuffle}));
        item = p.window_ends == nullptr ? sample / p.per_item : first_above(p.window_ends, p.n_items, sample);
        const i64 before = p.window_ends == nullptr ? item * p.per_item : (item == 0 ? 0 : p.window_ends[item - 1]);
        crop = static_cast<u32>(sample - before);
    }
    const i64 whole = p.selected == nullptr ? item : p.selected[item];
    const i64 array = p.row_ends == nullptr ? whole : first_above(p.row_ends, p.n_arrays, whole);
    const i64 row = p.row_ends == nullptr ? 0 : whole - (array == 0 ? 0 : p.row_ends[array - 1]);
    const i64 *view = p.arrays + array * (3 + 2 * ndim), *shape = view + 3, *stride = shape + ndim;
    i64 starts[kMaxAxes];
    window_starts(p.window, p.key, static_cast<u64>(item), crop, ndim, shape, p.size, p.step, starts);
    drawn.src = view[0] + row * view[1];
    drawn.swap = view[2] != 0;
    drawn.dst = k * p.place.dst_step;
#pragma unroll 1
    for (int axis = 0; axis < ndim; ++axis) {
        drawn.src += starts[axis] * stride[axis];
        drawn.src_stride[axis] = stride[axis];
        drawn.shape[axis] = window_extent(p.window, shape[axis], p.size[axis]);
    }
    if (t.block != 0) return;  // one block of a window writes its other columns
    if (p.index != nullptr) p.index[k] = item;
    if (p.crop != nullptr) p.crop[k] = crop;
    if (p.valid != nullptr) p.valid[k] = valid;
    if (p.start != nullptr)
#pragma unroll 1
        for (int axis = 0; axis < ndim; ++axis) p.start[k * ndim + axis] = starts[axis];
    if (p.label != nullptr)
#pragma unroll 1
        for (i64 i = 0; i < p.label_nbytes; ++i) p.label[k * p.label_nbytes + i] = p.labels[item * p.label_nbytes + i];
}

template <class To, class From>
GL_FN void crops_thread(const CropsParams &p, const Thread &t, const DrawnWindow &drawn) {
    const PlacePiece piece{p.place.src + drawn.src, p.place.dst + drawn.dst, drawn.shape, drawn.src_stride, drawn.swap};
    place_piece<To, From, false>(p.place, piece, t);
}

}  // namespace gpuload
