#include "ship.hpp"

#include <algorithm>
#include <stdexcept>

namespace gpuload {

std::span<const Piece> Shipper::ship(std::span<const Sample> samples, std::int64_t first, std::byte *bytes, std::int64_t *table,
                                     PieceMaker::Made &made) const {
    pieces_.make(samples, nullptr, 0, made);
    made.spans.resize(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
        Piece &piece = made.pieces[i];
        const std::int64_t nbytes = span_nbytes(*piece.box, 0, pieces_.from_nbytes());
        const std::int64_t row = first + static_cast<std::int64_t>(i), at = row * room_ + piece.first % kShipAlign;
        if (nbytes + kShipAlign > room_) throw std::length_error("ship: a window needs more than its room");
        std::int64_t *entry = table + row * row_length_;
        entry[0] = at;
        write_shape(*piece.box, entry);
        made.spans[i] = {};
        made.spans[i].append(nbytes, 1, 1);
        piece.swap = false;  // the device swaps
        piece.box = &made.spans[i];
        piece.dst = bytes + at;
    }
    return made.pieces;
}

void Shipper::list(std::span<const Sample> samples, const Files &files, std::int64_t *table, std::int64_t *reads,
                   PieceMaker::Made &made) const {
    struct Pages {
        std::uint32_t file;
        std::int64_t begin, end;
        std::size_t window;
    };
    pieces_.make(samples, nullptr, 0, made);
    std::vector<Pages> pages;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const Piece &piece = made.pieces[i];
        const std::int64_t end = piece.first + span_nbytes(*piece.box, 0, pieces_.from_nbytes());
        pages.push_back({piece.file, piece.first / kPageNbytes * kPageNbytes,
                         std::min((end + kPageNbytes - 1) / kPageNbytes * kPageNbytes, files.nbytes(piece.file)), i});
    }
    std::sort(pages.begin(), pages.end(), [](const Pages &a, const Pages &b) {
        return a.file != b.file ? a.file < b.file : a.begin < b.begin;
    });
    std::int64_t n_reads = 0, at = 0;
    for (const Pages &wanted : pages) {
        std::int64_t *last = n_reads == 0 ? nullptr : reads + 4 * (n_reads - 1);
        if (last != nullptr && last[0] == wanted.file && wanted.begin <= last[1] + last[2]) {
            last[2] = std::max(last[2], wanted.end - last[1]);
        } else {
            if (last != nullptr) at = (last[3] + last[2] + kPageNbytes - 1) / kPageNbytes * kPageNbytes;
            last = reads + 4 * n_reads++;
            last[0] = wanted.file;
            last[1] = wanted.begin;
            last[2] = wanted.end - wanted.begin;
            last[3] = at;
        }
        if (last[3] + last[2] > room_ * static_cast<std::int64_t>(samples.size()))
            throw std::length_error("ship: a window needs more than its room");
        const Piece &piece = made.pieces[wanted.window];
        std::int64_t *entry = table + static_cast<std::int64_t>(wanted.window) * row_length_;
        entry[0] = last[3] + piece.first - last[1];
        write_shape(*piece.box, entry);
    }
    for (auto row = n_reads; row < static_cast<std::int64_t>(samples.size()); ++row) reads[4 * row] = -1;
}

void Shipper::write_shape(const Box &box, std::int64_t *row) const {
    if (row_length_ == 2) return;
    std::copy(box.shape, box.shape + ndim_, row + 2);
    std::copy(box.src_stride, box.src_stride + ndim_, row + 2 + ndim_);
}

}  // namespace gpuload
