// Windows of items, read from files into a batch: cropped, cast and byte-swapped on the way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "catalog.hpp"
#include "files.hpp"
#include "place.hpp"
#include "plan.hpp"

namespace gpuload {

// One window of one item: its first byte in the file, its box, and where it goes. Pieces of one shape share a box.
struct Piece {
    std::uint32_t file;
    bool swap;  // the other byte order
    std::int64_t first;
    const Box *box;
    std::byte *dst;
};

class Reader {
  public:
    enum class Io : int { pread, mmap };

    // With `raw`, pieces are boxes of bytes that are copied as they are; `to` is then uint8.
    Reader(std::shared_ptr<const Catalog> catalog, std::shared_ptr<Files> files, Dtype to, Io io, Cost cost, bool raw,
           const Scaling &scaling = {})
        : catalog_(std::move(catalog)), files_(std::move(files)), to_(to),
          placer_(raw ? Dtype::uint8 : catalog_->element.dtype, to, scaling), io_(io), cost_(cost) {}

    // Thrown by fill() when it was told to stop.
    struct Stopped {};

    // Fill windows. Nothing is written outside their destinations. Throws ReadError, and Stopped soon after `stop` is
    // set; the windows are then partly filled.
    void fill(std::span<const Piece> pieces, const std::atomic<bool> &stop) const;

    const Catalog &catalog() const { return *catalog_; }
    Files &files() const { return *files_; }
    Dtype to() const { return to_; }
    std::size_t to_nbytes() const { return placer_.to_nbytes(); }
    std::size_t from_nbytes() const { return placer_.from_nbytes(); }
    Io io() const { return io_; }

    // Into how many spans a window is cut when it is read by pread, and their bytes, as (spans, bytes).
    std::pair<std::int64_t, std::int64_t> split(const Piece &piece) const;

  private:
    struct Copies;

    std::size_t fill_from_maps(std::span<const Piece> pieces, const std::atomic<bool> &stop) const;
    void fill_by_reads(std::span<const Piece> pieces, const std::atomic<bool> &stop) const;

    std::shared_ptr<const Catalog> catalog_;
    std::shared_ptr<Files> files_;
    Dtype to_;
    Placer placer_;
    Io io_;
    Cost cost_;
};

}  // namespace gpuload
