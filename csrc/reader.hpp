// Windows of items, read from files into a batch: cropped, cast and byte-swapped on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "catalog.hpp"
#include "files.hpp"
#include "place.hpp"
#include "plan.hpp"

namespace gpuload {

// One window of one item, and where its elements go: row-major at `dst`.
struct Piece {
    View view;
    std::int64_t start[kMaxNdim];
    std::int64_t extent[kMaxNdim];
    std::byte *dst;
};

class Reader {
  public:
    enum class Io : int { pread, mmap };

    Reader(std::shared_ptr<const Catalog> catalog, std::shared_ptr<Files> files, Dtype to, Io io, Cost cost)
        : catalog_(std::move(catalog)), files_(std::move(files)), placer_(catalog_->element.dtype, to), io_(io), cost_(cost) {}

    // Fill `n` windows; `piece(i, out)` tells which. Nothing of a window is written outside its destination.
    // Throws ReadError; the windows are then partly filled.
    void fill(std::size_t n, const std::function<void(std::size_t, Piece &)> &piece) const;

    const Catalog &catalog() const { return *catalog_; }
    Files &files() const { return *files_; }
    std::size_t to_nbytes() const { return placer_.to_nbytes(); }
    std::size_t from_nbytes() const { return placer_.from_nbytes(); }
    Io io() const { return io_; }

    // Into how many spans a window is cut when it is read by pread, and their bytes, as (spans, bytes).
    std::pair<std::int64_t, std::int64_t> split(const Piece &piece) const;

  private:
    struct Copies;

    Box file_order_box(const Piece &piece) const;
    std::size_t fill_from_maps(std::size_t n, const std::function<void(std::size_t, Piece &)> &piece) const;
    void fill_by_reads(std::size_t first, std::size_t n, const std::function<void(std::size_t, Piece &)> &piece) const;

    std::shared_ptr<const Catalog> catalog_;
    std::shared_ptr<Files> files_;
    Placer placer_;
    Io io_;
    Cost cost_;
};

}  // namespace gpuload
