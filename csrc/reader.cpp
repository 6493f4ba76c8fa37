#include "reader.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

namespace gpuload {
namespace {

std::int64_t n_elements(const Box &box) {
    std::int64_t n = 1;
    for (int axis = 0; axis < box.ndim; ++axis) n *= box.shape[axis];
    return n;
}

// Reads that a thread has under way on a cold file: enough to keep a disk busy with few threads.
constexpr std::size_t kAnnounced = 32;

// Memory that a thread reuses for bytes on their way from a file to a batch.
std::byte *scratch(std::size_t nbytes) {
    thread_local std::vector<std::byte> memory;
    if (memory.size() < nbytes) {
        memory.clear();
        memory.shrink_to_fit();
        memory.resize(nbytes);
    }
    return memory.data();
}

}  // namespace

// Copies straight from kept maps.
struct Reader::Copies {
    const Reader *reader;
    std::span<const Piece> pieces;
    const std::atomic<bool> &stop;
    std::size_t done;        // windows that are in place
    std::uint32_t touching;  // the file being copied from
    std::int64_t nbytes;

    const Box *prepared = nullptr;  // the last piece's box, and what was made of it
    bool swap = false;
    Box simple = {};
    Shift shift = {};
    Placer::CopyRows rows = nullptr;
    std::int64_t elements = 0;

    void prepare(const Piece &piece) {
        if (piece.box == prepared && piece.swap == swap) return;
        prepared = piece.box;
        swap = piece.swap;
        simple = *piece.box;
        shift = simplify(simple);
        if (simple.ndim == 0 && reader->placer_.keeps_bytes(swap))  // one element is a row as well
            simple.append(1, static_cast<std::int64_t>(reader->placer_.from_nbytes()), static_cast<std::int64_t>(reader->placer_.to_nbytes()));
        rows = reader->placer_.find_rows(simple, swap);
        elements = n_elements(simple);
    }

    // In virtual machines the walk of the page tables costs more than the cache misses: begin the next window's early.
    static void prefetch_pages(const std::byte *src, const Box &box) {
        constexpr std::int64_t page = 4096, most = 16;
        const std::int64_t span = box.ndim == 2 ? (box.shape[0] - 1) * box.src_stride[0] : 0;
        for (std::int64_t at = 0, k = 0; at <= span && k < most; at += page, ++k) __builtin_prefetch(src + at);
    }

    void run() {
        const std::size_t item = reader->placer_.from_nbytes();
        for (; done < pieces.size(); ++done) {
            if (stop.load(std::memory_order_relaxed)) throw Stopped{};
            const Piece &piece = pieces[done];
            prepare(piece);
            if (elements == 0) continue;
            const std::byte *file = reader->files_->map(piece.file);
            if (file == nullptr) return;
            if (done + 1 < pieces.size()) {
                const std::byte *next = reader->files_->mapped(pieces[done + 1].file);
                if (next != nullptr) prefetch_pages(next + pieces[done + 1].first, simple);
            }
            touching = piece.file;
            const std::byte *src = file + piece.first + shift.src;
            std::byte *dst = piece.dst + shift.dst;
            if (rows == nullptr) {
                reader->placer_(dst, src, simple, piece.swap);
            } else if (simple.ndim == 2) {
                rows(dst, src, simple.shape[0], simple.dst_stride[0], simple.src_stride[0],
                     static_cast<std::size_t>(simple.shape[1]) * item);
            } else {
                rows(dst, src, 1, 0, 0, static_cast<std::size_t>(simple.shape[0]) * item);
            }
            nbytes += elements * static_cast<std::int64_t>(item);
        }
    }
};

std::size_t Reader::fill_from_maps(std::span<const Piece> pieces, const std::atomic<bool> &stop) const {
    Copies copies{this, pieces, stop, 0, 0, 0};
    if (!without_bus_error([](void *self) { static_cast<Copies *>(self)->run(); }, &copies))
        throw files_->shrunk(copies.touching);
    files_->count.nbytes.fetch_add(copies.nbytes, std::memory_order_relaxed);
    return copies.done;
}

void Reader::fill(std::span<const Piece> pieces, const std::atomic<bool> &stop) const {
    const std::size_t done = io_ == Io::mmap ? fill_from_maps(pieces, stop) : 0;
    if (done < pieces.size()) fill_by_reads(pieces.subspan(done), stop);
}

namespace {

// The axes of a window by falling stride in the file: what lies together there is then innermost.
Box file_order(const Box &box) {
    int axes[kMaxNdim];
    std::iota(axes, axes + box.ndim, 0);
    std::stable_sort(axes, axes + box.ndim, [&](int a, int b) { return box.src_stride[a] > box.src_stride[b]; });
    Box sorted;
    sorted.first_channel = box.first_channel;
    for (int i = 0; i < box.ndim; ++i) {
        if (axes[i] == box.channel) sorted.channel = i;
        sorted.append(box.shape[axes[i]], box.src_stride[axes[i]], box.dst_stride[axes[i]]);
    }
    return sorted;
}

// Source and destination offset of a part of a window, and the box it covers.
struct Part {
    std::int64_t src = 0, dst = 0;
    Box box;
};

// How windows of one box are cut: one span per index of the first `level` axes; the last axis alone may be cut once more.
class Cut {
  public:
    Cut(const Box &window, const Placer &placer, bool swap, const Cost &cost)
        : box_(file_order(window)), item_(static_cast<std::int64_t>(placer.from_nbytes())) {
        const auto is_dense = [&](Box box) {
            simplify(box);
            return placer.keeps_bytes(swap) &&
                   (box.ndim == 0 || (box.ndim == 1 && box.src_stride[0] == item_ && box.dst_stride[0] == item_));
        };
        // A dense window is one read into place, whatever its size.
        level_ = is_dense(box_) ? 0 : choose_level(box_, item_, cost);
        for (int axis = 0; axis < level_; ++axis) outer_ *= box_.shape[axis];
        Box inner;
        for (int axis = level_; axis < box_.ndim; ++axis)
            inner.append(box_.shape[axis], box_.src_stride[axis], box_.dst_stride[axis]);
        is_direct_ = is_dense(inner);
        if (!is_direct_ && inner.ndim == 1 && span_nbytes(inner, 0, item_) > cost.max_nbytes) {
            per_slice_ = std::max<std::int64_t>(1, cost.max_nbytes / inner.src_stride[0]);
            n_slices_ = (inner.shape[0] + per_slice_ - 1) / per_slice_;
        }
    }

    std::int64_t n_parts() const { return outer_ * n_slices_; }

    // Whether the bytes of a part can be read into place as they are.
    bool is_direct() const { return is_direct_; }

    std::int64_t nbytes(const Part &part) const { return span_nbytes(part.box, 0, item_); }

    Part part(std::int64_t number) const {
        Part part;
        const std::int64_t slice = number % n_slices_;
        std::int64_t rest = number / n_slices_, channel = 0;
        for (int axis = level_ - 1; axis >= 0; --axis) {
            const std::int64_t index = rest % box_.shape[axis];
            if (axis == box_.channel) channel = index;
            rest /= box_.shape[axis];
            part.src += index * box_.src_stride[axis];
            part.dst += index * box_.dst_stride[axis];
        }
        for (int axis = level_; axis < box_.ndim; ++axis)
            part.box.append(box_.shape[axis], box_.src_stride[axis], box_.dst_stride[axis]);
        part.box.first_channel = box_.first_channel + channel;
        if (box_.channel >= level_) part.box.channel = box_.channel - level_;
        if (per_slice_ > 0) {
            if (part.box.channel == 0) part.box.first_channel += slice * per_slice_;
            part.src += slice * per_slice_ * part.box.src_stride[0];
            part.dst += slice * per_slice_ * part.box.dst_stride[0];
            part.box.shape[0] = std::min(per_slice_, part.box.shape[0] - slice * per_slice_);
        }
        return part;
    }

  private:
    Box box_;
    std::int64_t item_;
    int level_ = 0;
    std::int64_t outer_ = 1;      // spans by the first axes
    std::int64_t per_slice_ = 0;  // elements of the last axis in one slice, 0 when it is not cut
    std::int64_t n_slices_ = 1;
    bool is_direct_ = false;
};

// The cut of the last box asked for: pieces of one shape share it.
class LastCut {
  public:
    LastCut(const Placer &placer, const Cost &cost) : placer_(placer), cost_(cost) {}

    const Cut &of(const Piece &piece) {
        if (!cut_ || piece.box != box_ || piece.swap != swap_) {
            cut_.emplace(*piece.box, placer_, piece.swap, cost_);
            box_ = piece.box;
            swap_ = piece.swap;
        }
        return *cut_;
    }

  private:
    const Placer &placer_;
    const Cost &cost_;
    const Box *box_ = nullptr;
    bool swap_ = false;
    std::optional<Cut> cut_;
};

}  // namespace

std::pair<std::int64_t, std::int64_t> Reader::split(const Piece &piece) const {
    if (n_elements(*piece.box) == 0) return {0, 0};
    const Cut cut(*piece.box, placer_, piece.swap, cost_);
    std::int64_t nbytes = 0;
    for (std::int64_t k = 0; k < cut.n_parts(); ++k) nbytes += cut.nbytes(cut.part(k));
    return {cut.n_parts(), nbytes};
}

void Reader::fill_by_reads(std::span<const Piece> pieces, const std::atomic<bool> &stop) const {
    thread_local std::vector<Span> spans;
    spans.clear();
    LastCut cuts(placer_, cost_);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Piece &piece = pieces[i];
        if (n_elements(*piece.box) == 0) continue;
        const Cut &cut = cuts.of(piece);
        for (std::int64_t k = 0; k < cut.n_parts(); ++k) {
            const Part part = cut.part(k);
            const std::int64_t nbytes = cut.nbytes(part);
            // Nothing is gained by sharing a large read.
            const bool is_direct = cut.is_direct() && nbytes >= cost_.max_gap;
            spans.push_back({piece.file, static_cast<std::uint32_t>(i), k, piece.first + part.src, nbytes, is_direct});
        }
    }
    const std::vector<Read> reads = coalesce(spans, cost_.max_gap, cost_.max_nbytes);
    std::size_t announced = 0;
    for (std::size_t r = 0; r < reads.size(); ++r) {
        if (stop.load(std::memory_order_relaxed)) throw Stopped{};
        const Read &read = reads[r];
        for (; cost_.is_cold && announced < std::min(r + kAnnounced, reads.size()); ++announced)
            files_->announce(reads[announced].file, reads[announced].offset, reads[announced].nbytes);
        if (spans[read.first].is_direct) {
            const Span &span = spans[read.first];
            const Piece &piece = pieces[span.window];
            files_->read(read.file, read.offset, read.nbytes, piece.dst + cuts.of(piece).part(span.part).dst);
            continue;
        }
        std::byte *bytes = scratch(static_cast<std::size_t>(read.nbytes));
        files_->read(read.file, read.offset, read.nbytes, bytes);
        for (std::size_t s = read.first; s < read.last; ++s) {
            const Span &span = spans[s];
            const Piece &piece = pieces[span.window];
            Part part = cuts.of(piece).part(span.part);
            const Shift shift = simplify(part.box);
            placer_(piece.dst + part.dst + shift.dst, bytes + (span.offset - read.offset) + shift.src, part.box, piece.swap);
        }
    }
}

}  // namespace gpuload
