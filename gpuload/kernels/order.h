// Which sample stands where in an epoch, and which box of its item it shows: integers only, the same on the
// host and on the device.
#pragma once

#include "random.h"

namespace gpuload {

// The first of `n` rising numbers that is above `value`.
GL_FN i64 first_above(const i64 *numbers, i64 n, i64 value) {
    i64 low = 0;
#pragma unroll 1
    while (low < n) {
        const i64 middle = low + (n - low) / 2;
        if (numbers[middle] > value) n = middle;
        else low = middle + 1;
    }
    return low;
}

// The permutation of an epoch's samples, as plain data.
struct Shuffled {
    enum Kind : i32 { kNone, kFull, kBlocked };

    u64 n, key;
    u64 block, group;  // with kBlocked: samples of a block, blocks that are mixed
    u64 n_blocks, short_by, short_slot;
    Permutation permutation;
    i32 kind, padding;

    // The last block may be short; `short_slot` is where it lies after the permutation.
    GL_FN u64 slot_begin(u64 slot) const { return slot * block - (slot > short_slot ? short_by : 0); }
    GL_FN u64 slot_of(u64 position) const {
        const u64 slot = position / block;
        if (slot < short_slot || position < slot_begin(short_slot + 1)) return slot < short_slot ? slot : short_slot;
        return (position + short_by) / block;
    }

    GL_FN Permutation within_group(u64 which, u64 samples) const { return make_permutation(samples, key, kWithinBlocks, which); }

    // The sample at position `i` of [0, n). `within(which, samples)` gives the permutation of a group of blocks.
    template <class Within>
    GL_FN u64 at(u64 i, const Within &within) const {
        if (kind == kNone) return i;
        if (kind == kFull) return permutation(i);
        // Blocks of neighbouring samples are permuted, then the samples of `group` blocks are mixed.
        const u64 which = slot_of(i) / group, begin = slot_begin(which * group);
        const u64 last = (which + 1) * group < n_blocks ? (which + 1) * group : n_blocks;
        const u64 end = slot_begin(last) < n ? slot_begin(last) : n;
        const u64 mixed = begin + within(which, end - begin)(i - begin);
        const u64 slot = slot_of(mixed);
        return permutation(slot) * block + (mixed - slot_begin(slot));
    }
};

GL_FN Shuffled make_shuffled(i32 kind, u64 n, u64 key, u64 block, u64 group) {
    Shuffled s = {};
    s.kind = n > 0 ? kind : Shuffled::kNone;
    s.n = n;
    s.key = key;
    s.block = s.group = 1;
    if (s.kind == Shuffled::kFull) s.permutation = make_permutation(n, key, kShuffle, 0);
    if (s.kind != Shuffled::kBlocked) return s;
    s.block = block;
    s.group = group;
    s.n_blocks = (n + block - 1) / block;
    s.permutation = make_permutation(s.n_blocks, key, kBlocks, 0);
    s.short_by = s.n_blocks * block - n;
    s.short_slot = s.permutation.inverse(s.n_blocks - 1);
    return s;
}

enum WindowKind : i32 { kWhole, kRandom, kCenter, kGrid };

// Elements of a window along an axis of `n`; a size of -1 keeps the axis whole.
GL_FN i64 window_extent(i32 kind, i64 n, i64 size) { return kind == kWhole || size < 0 ? n : size; }

// Starts of a random window: for each axis a number of [0, n_starts[axis]), each equally likely
// up to n_starts / 2^64. One Philox call serves two axes.
GL_FN void draw_starts(u64 key, u64 item, u32 crop, int ndim, const i64 *n_starts, i64 *starts) {
#pragma unroll 1
    for (int axis = 0; axis < ndim; axis += 2) {
        const Words words = draw(key, item, crop, kWindow, static_cast<u32>(axis / 2));
        starts[axis] = static_cast<i64>(multiply_high(words.low(), static_cast<u64>(n_starts[axis])));
        if (axis + 1 < ndim)
            starts[axis + 1] = static_cast<i64>(multiply_high(words.high(), static_cast<u64>(n_starts[axis + 1])));
    }
}

// Where window `crop` of an item of `shape` starts along each axis. `stride` is that of a grid.
GL_FN void window_starts(i32 kind, u64 key, u64 item, u32 crop, int ndim, const i64 *shape, const i64 *size,
                         const i64 *stride, i64 *starts) {
    if (kind == kWhole) {
#pragma unroll 1
        for (int axis = 0; axis < ndim; ++axis) starts[axis] = 0;
    } else if (kind == kRandom) {
#pragma unroll 1
        for (int axis = 0; axis < ndim; ++axis) starts[axis] = shape[axis] - window_extent(kind, shape[axis], size[axis]) + 1;
        draw_starts(key, item, crop, ndim, starts, starts);
    } else if (kind == kCenter) {
#pragma unroll 1
        for (int axis = 0; axis < ndim; ++axis) starts[axis] = (shape[axis] - window_extent(kind, shape[axis], size[axis])) / 2;
    } else {
        i64 rest = crop;
#pragma unroll 1
        for (int axis = ndim - 1; axis >= 0; --axis) {
            const i64 free = shape[axis] - window_extent(kind, shape[axis], size[axis]), step = stride[axis];
            const i64 n = step > 0 ? (free + step - 1) / step + 1 : 1, start = (rest % n) * step;
            starts[axis] = start < free ? start : free;  // the last window is moved inwards
            rest /= n;
        }
    }
}

}  // namespace gpuload
