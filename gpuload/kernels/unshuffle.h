// unshuffle: undo HDF5's byte shuffle of many chunks in one launch.
//
// A shuffled chunk holds the first bytes of all its elements, then all second bytes, and so on; bytes behind
// the last whole element stand unshuffled at the end (H5Zshuffle.c of HDF5).
#pragma once

#include "launch.h"

namespace gpuload {

// A row of the table of chunks: `src` and `dst`, in bytes from the pointers of the launch, and nbytes.
struct UnshuffleParams {
    const u8 *src;
    u8 *dst;
    const i64 *table;        // nullptr: chunks lie src_step and dst_step apart, of `nbytes` each
    i64 n_pieces;            // chunks
    i64 src_step, dst_step;  // bytes
    i64 nbytes;
    i64 item_nbytes;         // of an element
};

struct ShuffledChunk {
    const u8 *src;
    u8 *dst;
    u64 nbytes;
};

GL_FN ShuffledChunk unshuffle_chunk(const UnshuffleParams &p, i64 k) {
    if (p.table == nullptr) return {p.src + k * p.src_step, p.dst + k * p.dst_step, static_cast<u64>(p.nbytes)};
    const i64 *row = p.table + 3 * k;
    return {p.src + row[0], p.dst + row[1], static_cast<u64>(row[2])};
}

// How many elements a lane gathers at a time: 16 bytes of them, or one of any size.
template <int kNbytes> struct Gather { static constexpr u32 kItems = 16 / kNbytes; };
template <> struct Gather<0> { static constexpr u32 kItems = 1; };

// Gather elements [first, first + kItems) of a chunk of `n`.
template <int kNbytes>
GL_FN void unshuffle_items(const ShuffledChunk &chunk, u64 first, u64 n, u64 item_nbytes, bool is_aligned) {
    if constexpr (kNbytes == 0) {
#pragma unroll 1
        for (u64 k = 0; k < item_nbytes; ++k) chunk.dst[first * item_nbytes + k] = chunk.src[k * n + first];
    } else {
        constexpr u32 kItems = Gather<kNbytes>::kItems, kPlanes = kNbytes < 8 ? kNbytes : 8;
        using Plane = Pack<u8, kItems>;  // one byte of each element
#pragma unroll 1
        for (u32 plane = 0; plane < kNbytes; plane += kPlanes) {
            Pack<u8, kItems * kPlanes> out;
#pragma unroll
            for (u32 k = 0; k < kPlanes; ++k) {
                const u8 *from = chunk.src + (plane + k) * n + first;
                const Plane in = kItems == 1 || is_aligned ? load_aligned<Plane>(from) : load_anywhere<Plane>(from);
#pragma unroll
                for (u32 i = 0; i < kItems; ++i) out.of[i * kPlanes + k] = in.of[i];
            }
            u8 *to = chunk.dst + first * kNbytes + plane;
            if (is_aligned) store_aligned(to, out);
            else store_anywhere(to, out);
        }
    }
}

// The share of lane `lane` of `n_lanes` that work on a chunk together.
template <int kNbytes>
GL_FN void unshuffle_share(const ShuffledChunk &chunk, u64 item_nbytes, u64 lane, u64 n_lanes) {
    constexpr u32 kItems = Gather<kNbytes>::kItems;
    const u64 width = kNbytes == 0 ? item_nbytes : kNbytes;
    const u64 n = chunk.nbytes / width, whole = n / kItems * kItems;
    const bool is_aligned = is_multiple(address(chunk.src) | n, kItems) && is_multiple(address(chunk.dst), 16);
#pragma unroll 1
    for (u64 first = lane * kItems; first < whole; first += n_lanes * kItems)
        unshuffle_items<kNbytes>(chunk, first, n, width, is_aligned);
#pragma unroll 1
    for (u64 i = whole + lane; i < n; i += n_lanes)
        unshuffle_items<0>(chunk, i, n, width, false);
#pragma unroll 1
    for (u64 at = n * width + lane; at < chunk.nbytes; at += n_lanes) chunk.dst[at] = chunk.src[at];
}

template <int kNbytes>
GL_FN void unshuffle_thread(const UnshuffleParams &p, const Thread &t) {
    const u64 lane = static_cast<u64>(t.block) * kLanes + t.lane, n_lanes = static_cast<u64>(t.n_blocks) * kLanes;
#pragma unroll 1
    for (i64 k = t.piece; k < p.n_pieces; k += t.n_pieces)
        unshuffle_share<kNbytes>(unshuffle_chunk(p, k), static_cast<u64>(p.item_nbytes), lane, n_lanes);
}

}  // namespace gpuload
