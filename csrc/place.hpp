// Copy boxes of elements: the host executor of `place`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtype.hpp"

namespace gpuload {

inline constexpr int kMaxNdim = 32;

// A box of elements: how many along each axis, and how many bytes apart on both sides. Strides may be negative; offsets
// then are those of the first element.
struct Box {
    int ndim = 0;
    int channel = -1;  // the axis that counts channels; -1: all elements are of one
    std::int64_t first_channel = 0;
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

struct Shift {
    std::int64_t src = 0, dst = 0;  // bytes
};

// Join axes that lie behind one another on both sides, drop axes of length one, count axes that go backwards at the
// destination from their other end, and put the axis that is dense there last. The box then has as few and as long
// rows as can be. Returns how far its first element has moved. An axis of channels is joined with no other.
Shift simplify(Box &box);

// What is done to values on their way: (x * scale - mean) / std, see kernels/transform.h.
struct Scaling {
    bool is_on = false;
    double scale = 1;
    std::vector<double> channels;  // mean and std of each channel; one pair for all, or none
};

// Copies boxes from one element type to another.
class Placer {
  public:
    Placer(Dtype from, Dtype to, const Scaling &scaling = {});

    // `box` must be simplified. Sides may be unaligned and must not overlap.
    void operator()(std::byte *dst, const std::byte *src, const Box &box, bool swap) const;

    // Copy rows of `nbytes` bytes, with the destination's and the source's bytes from row to row.
    using CopyRows = void (*)(std::byte *, const std::byte *, std::int64_t rows, std::int64_t, std::int64_t, std::size_t nbytes);

    // The loop for a simplified box of at most two axes whose rows are copied as they are; nullptr for any other.
    CopyRows find_rows(const Box &box, bool swap) const;

    std::size_t from_nbytes() const { return from_nbytes_; }
    std::size_t to_nbytes() const { return to_nbytes_; }

    // Whether bytes are copied as they are, so that a reader may put them in place itself.
    bool keeps_bytes(bool swap) const { return same_ && scale_ == nullptr && (!swap || from_nbytes_ == 1); }

  private:
    void row(std::byte *dst, const std::byte *src, std::int64_t src_stride, std::size_t n, bool swap, u64 channel,
             u64 channel_step) const;
    void scatter(std::byte *dst, const std::byte *src, const Box &box, int along, bool swap) const;
    bool place_pixels(std::byte *dst, const std::byte *src, const Box &box, bool swap) const;

    MoveRow move_;
    ScaleRow scale_ = nullptr;
    std::size_t from_nbytes_, to_nbytes_;
    bool same_;
    double scale_by_ = 1;
    std::vector<double> channels_;  // repeated, so that rows of pixels are rows of channels
    std::size_t n_channels_ = 0;
};

}  // namespace gpuload
