// From samples to what a reader takes: first byte, box and destination of each window.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "catalog.hpp"
#include "order.hpp"
#include "reader.hpp"
#include "window.hpp"

namespace gpuload {

// Items that are all alike share one box, worked out once. That leaves a few dozen instructions per sample beside
// the random numbers: copying a small window waits for memory, and what cannot be done meanwhile shows.
class PieceMaker {
  public:
    // Pieces and the boxes they point to; a thread keeps one and uses it again.
    struct Made {
        std::vector<Piece> pieces;
        std::vector<Box> boxes;
        std::vector<Box> spans;  // of whole spans of bytes
    };

    // Both are kept by the caller.
    PieceMaker(const Catalog &catalog, const Windows &windows, u64 key, std::size_t to_nbytes)
        : catalog_(catalog), windows_(windows), key_(key), to_nbytes_(to_nbytes),
          is_uniform_(catalog.is_uniform && catalog.n_items() > 0) {
        if (!is_uniform_) return;
        like_ = catalog.view(0);
        shared_ = box_of(like_);
    }

    // The windows of `samples`, one behind the other at `dst`, `nbytes` apart.
    std::span<const Piece> make(std::span<const Sample> samples, std::byte *dst, std::int64_t nbytes, Made &made) const {
        made.pieces.resize(samples.size());
        if (!is_uniform_) made.boxes.resize(samples.size());
        for (std::size_t i = 0; i < samples.size(); ++i) {
            std::byte *to = dst + static_cast<std::int64_t>(i) * nbytes;
            if (is_uniform_) make_like(samples[i], to, made.pieces[i]);
            else make_any(samples[i], to, made.pieces[i], made.boxes[i]);
        }
        return made.pieces;
    }

    // Bytes of a window of this item once it is delivered, and its extents.
    std::int64_t sample_nbytes(std::int64_t item, std::int64_t *extent) const {
        const View view = is_uniform_ ? like_ : catalog_.view(item);
        auto nbytes = static_cast<std::int64_t>(to_nbytes_);
        for (int axis = 0; axis < view.ndim; ++axis) nbytes *= extent[axis] = windows_.extent(axis, view.shape);
        return nbytes;
    }

    // Bytes of a stored element.
    std::int64_t from_nbytes() const { return static_cast<std::int64_t>(item_nbytes(catalog_.element.dtype)); }

    // Where the window of a sample starts along each axis; returns the number of axes.
    int starts(const Sample &sample, std::int64_t *starts) const {
        const View view = is_uniform_ ? like_ : catalog_.view(sample.item);
        windows_.starts(key_, sample.item, sample.crop, view.ndim, view.shape, starts);
        return view.ndim;
    }

  private:
    void make_like(const Sample &sample, std::byte *dst, Piece &piece) const {
        piece.first = catalog_.first_byte(sample.item, like_.row_stride, piece.file) + within(sample, like_);
        piece.swap = like_.swap;
        piece.box = &shared_;
        piece.dst = dst;
    }

    void make_any(const Sample &sample, std::byte *dst, Piece &piece, Box &box) const {
        const View view = catalog_.view(sample.item);
        box = box_of(view);
        piece = {view.file, view.swap, view.offset + within(sample, view), &box, dst};
    }

    // Bytes from the first element of an item to that of the window.
    std::int64_t within(const Sample &sample, const View &view) const {
        std::int64_t starts[kMaxNdim], offset = 0;
        windows_.starts(key_, sample.item, sample.crop, view.ndim, view.shape, starts);
        for (int axis = 0; axis < view.ndim; ++axis) offset += starts[axis] * view.stride[axis];
        return offset;
    }

    // The box of any window of an item, with row-major strides at the destination.
    Box box_of(const View &view) const {
        Box box;
        box.ndim = view.ndim;
        auto dst = static_cast<std::int64_t>(to_nbytes_);
        for (int axis = box.ndim - 1; axis >= 0; --axis) {
            box.shape[axis] = windows_.extent(axis, view.shape);
            box.src_stride[axis] = view.stride[axis];
            box.dst_stride[axis] = dst;
            dst *= box.shape[axis];
        }
        return box;
    }

    const Catalog &catalog_;
    const Windows &windows_;
    u64 key_;
    std::size_t to_nbytes_;
    bool is_uniform_;
    View like_;
    Box shared_;
};

}  // namespace gpuload
