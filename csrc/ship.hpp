// Deliver the bytes around windows as they lie in the file, for a device that cuts the windows out itself: which bytes
// of a slab hold which window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pieces.hpp"

namespace gpuload {

// How a window reaches its batch.
enum class Delivery : int {
    placed,   // cropped and cast into the block
    shipped,  // its bytes, from the first to the last, are put into the block; the device does the rest
    listed,   // nothing is read: the block gets a list of reads, for a reader that reads into the device itself
};

inline constexpr std::int64_t kShipAlign = 16;  // spans keep their place within 16 bytes, so that wide loads stay aligned

// A row of the table of pieces: the first byte of a window within the bytes shipped, and its first byte within the
// batch. With shapes (arrays that differ), then its extents, then its strides: kernels/place.h.
class Shipper {
  public:
    Shipper(const PieceMaker &pieces, std::int64_t room, bool has_shapes, int ndim)
        : pieces_(pieces), room_(room), row_length_(has_shapes ? 2 + 2 * ndim : 2), ndim_(ndim) {}

    std::int64_t row_length() const { return row_length_; }
    std::int64_t room() const { return room_; }  // bytes of a block for each window

    // Pieces that copy the bytes of windows `first`, `first + 1`, ... to `bytes`, and their rows of `table`.
    // Throws std::length_error when a window needs more than its room.
    std::span<const Piece> ship(std::span<const Sample> samples, std::int64_t first, std::byte *bytes, std::int64_t *table,
                                PieceMaker::Made &made) const;

    // The same for windows that are read elsewhere: rows of `reads` (file, offset, nbytes, first byte within the bytes
    // shipped), whole pages, overlapping ones joined. Rows that are not needed have the file -1.
    void list(std::span<const Sample> samples, const Files &files, std::int64_t *table, std::int64_t *reads,
              PieceMaker::Made &made) const;

  private:
    void write_shape(const Box &box, std::int64_t *row) const;

    const PieceMaker &pieces_;
    std::int64_t room_, row_length_;
    int ndim_;
};

}  // namespace gpuload
