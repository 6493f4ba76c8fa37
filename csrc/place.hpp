// Copy boxes of elements: the host executor of `place`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.hpp"

namespace gpuload {

inline constexpr int kMaxNdim = 32;

// A box of elements: how many along each axis, and how many bytes apart on both sides.
struct Box {
    int ndim = 0;
    std::int64_t shape[kMaxNdim];
    std::int64_t src_stride[kMaxNdim];
    std::int64_t dst_stride[kMaxNdim];

    void append(std::int64_t n, std::int64_t src, std::int64_t dst) {
        shape[ndim] = n;
        src_stride[ndim] = src;
        dst_stride[ndim] = dst;
        ++ndim;
    }
};

// Join axes that lie behind one another on both sides, drop axes of length one, and put the axis that is
// dense at the destination last. The box then has as few and as long rows as can be.
void simplify(Box &box);

// Copy a box of scaled values; `channel_axis` is the axis that counts channels, -1 when there is one. `box` is as the
// caller has it: simplify() would not know its channels.
void place_scaled(std::byte *dst, const std::byte *src, const Box &box, int channel_axis, Dtype from, Dtype to, bool swap,
                  const Affine &affine);

// Copies boxes from one element type to another.
class Placer {
  public:
    Placer(Dtype from, Dtype to)
        : move_(find_move(from, to)), from_nbytes_(item_nbytes(from)), to_nbytes_(item_nbytes(to)), same_(from == to) {}

    // `box` must be simplified. Sides may be unaligned and must not overlap.
    void operator()(std::byte *dst, const std::byte *src, const Box &box, bool swap) const;

    // Copy rows of `nbytes` bytes, with the destination's and the source's bytes from row to row.
    using CopyRows = void (*)(std::byte *, const std::byte *, std::int64_t rows, std::int64_t, std::int64_t, std::size_t nbytes);

    // The loop for a simplified box of at most two axes whose rows are copied as they are; nullptr for any other.
    CopyRows find_rows(const Box &box, bool swap) const;

    std::size_t from_nbytes() const { return from_nbytes_; }
    std::size_t to_nbytes() const { return to_nbytes_; }

    // Whether bytes are copied as they are, so that a reader may put them in place itself.
    bool keeps_bytes(bool swap) const { return same_ && (!swap || from_nbytes_ == 1); }

  private:
    MoveRow move_;
    std::size_t from_nbytes_, to_nbytes_;
    bool same_;
};

}  // namespace gpuload
