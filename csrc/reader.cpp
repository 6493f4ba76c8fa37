#include "reader.hpp"

#include <algorithm>
#include <numeric>

namespace gpuload {
namespace {

std::int64_t first_byte(const Piece &piece) {
    std::int64_t offset = piece.view.offset;
    for (int axis = 0; axis < piece.view.ndim; ++axis) offset += piece.start[axis] * piece.view.stride[axis];
    return offset;
}

bool is_empty(const Piece &piece) {
    for (int axis = 0; axis < piece.view.ndim; ++axis)
        if (piece.extent[axis] == 0) return true;
    return false;
}

std::int64_t n_elements(const Box &box) {
    std::int64_t n = 1;
    for (int axis = 0; axis < box.ndim; ++axis) n *= box.shape[axis];
    return n;
}

// The box of a window, with row-major destination strides.
Box window_box(const Piece &piece, std::size_t to_nbytes) {
    Box box;
    box.ndim = piece.view.ndim;
    auto dst = static_cast<std::int64_t>(to_nbytes);
    for (int axis = box.ndim - 1; axis >= 0; --axis) {
        box.shape[axis] = piece.extent[axis];
        box.src_stride[axis] = piece.view.stride[axis];
        box.dst_stride[axis] = dst;
        dst *= piece.extent[axis];
    }
    return box;
}

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

// Copies straight from kept maps. The cache lines of a window are asked for while the one before is copied.
struct Reader::Copies {
    struct Next {
        const std::byte *src;
        std::byte *dst;
        bool swap, empty;
        std::uint32_t file;
        Box box;
    };

    const Reader *reader;
    const std::function<void(std::size_t, Piece &)> *piece;
    std::size_t n;
    std::size_t done;        // windows that are in place
    std::uint32_t touching;  // the file being copied from
    bool out_of_maps;
    std::int64_t nbytes;

    bool prepare(std::size_t i, Next &next) {
        Piece window;
        (*piece)(i, window);
        next.empty = is_empty(window);
        if (next.empty) return true;
        const std::byte *file = reader->files_->map(window.view.file);
        if (file == nullptr) return false;
        next.file = window.view.file;
        next.src = file + first_byte(window);
        next.dst = window.dst;
        next.swap = window.view.swap;
        next.box = window_box(window, reader->placer_.to_nbytes());
        simplify(next.box);
        prefetch(next.src, next.box, reader->placer_.from_nbytes());
        return true;
    }

    void run() {
        constexpr std::size_t ahead = 2;  // windows asked for before the one being copied
        Next ring[ahead + 1];
        std::size_t prepared = 0;
        while (done < n) {
            while (prepared < n && prepared <= done + ahead && !out_of_maps) {
                out_of_maps = !prepare(prepared, ring[prepared % (ahead + 1)]);
                prepared += !out_of_maps;
            }
            if (done == prepared) return;
            const Next &next = ring[done % (ahead + 1)];
            touching = next.file;
            if (!next.empty) reader->placer_(next.dst, next.src, next.box, next.swap);
            nbytes += next.empty ? 0 : n_elements(next.box) * static_cast<std::int64_t>(reader->placer_.from_nbytes());
            ++done;
        }
    }
};

std::size_t Reader::fill_from_maps(std::size_t n, const std::function<void(std::size_t, Piece &)> &piece) const {
    Copies copies{this, &piece, n, 0, 0, false, 0};
    if (!without_bus_error([](void *self) { static_cast<Copies *>(self)->run(); }, &copies))
        throw files_->shrunk(copies.touching);
    files_->count.nbytes.fetch_add(copies.nbytes, std::memory_order_relaxed);
    return copies.done;
}

void Reader::fill(std::size_t n, const std::function<void(std::size_t, Piece &)> &piece) const {
    const std::size_t done = io_ == Io::mmap ? fill_from_maps(n, piece) : 0;
    if (done < n) fill_by_reads(done, n, piece);
}

// The axes of a window by falling stride in the file: what lies together there is then innermost.
Box Reader::file_order_box(const Piece &piece) const {
    const Box box = window_box(piece, placer_.to_nbytes());
    int axes[kMaxNdim];
    std::iota(axes, axes + box.ndim, 0);
    std::stable_sort(axes, axes + box.ndim, [&](int a, int b) { return box.src_stride[a] > box.src_stride[b]; });
    Box sorted;
    for (int i = 0; i < box.ndim; ++i) sorted.append(box.shape[axes[i]], box.src_stride[axes[i]], box.dst_stride[axes[i]]);
    return sorted;
}

namespace {

// How a window is cut: one span per index of the first `level` axes; the last axis alone may be cut once more.
struct Cut {
    Box box;
    int level = 0;
    std::int64_t outer = 1;     // spans by the first axes
    std::int64_t per_part = 0;  // elements of the last axis in one part, 0 when it is not cut
    std::int64_t n_parts = 1;
    bool direct = false;        // a span is dense on both sides and keeps its bytes: it is read into place
};

Cut cut_window(Box box, const Placer &placer, bool swap, const Cost &cost) {
    const auto item = static_cast<std::int64_t>(placer.from_nbytes());
    Cut cut{box, choose_level(box, item, cost)};
    // A dense window is one read into place, whatever its size.
    Box dense = box;
    simplify(dense);
    const auto is_dense = [&](const Box &b) {
        return placer.keeps_bytes(swap) &&
               (b.ndim == 0 || (b.ndim == 1 && b.src_stride[0] == item && b.dst_stride[0] == static_cast<std::int64_t>(placer.to_nbytes())));
    };
    if (is_dense(dense)) cut.level = 0;
    for (int axis = 0; axis < cut.level; ++axis) cut.outer *= box.shape[axis];
    Box inner;
    for (int axis = cut.level; axis < box.ndim; ++axis) inner.append(box.shape[axis], box.src_stride[axis], box.dst_stride[axis]);
    Box simple = inner;
    simplify(simple);
    cut.direct = is_dense(simple);
    if (!cut.direct && inner.ndim == 1 && span_nbytes(inner, 0, item) > cost.max_nbytes) {
        cut.per_part = std::max<std::int64_t>(1, cost.max_nbytes / inner.src_stride[0]);
        cut.n_parts = (inner.shape[0] + cut.per_part - 1) / cut.per_part;
    }
    return cut;
}

// Source and destination offset of a part, and the box it covers.
struct Part {
    std::int64_t src = 0, dst = 0;
    Box box;
};

Part part_of(const Cut &cut, std::int64_t number) {
    Part part;
    const std::int64_t slice = number % cut.n_parts;
    std::int64_t rest = number / cut.n_parts;
    for (int axis = cut.level - 1; axis >= 0; --axis) {
        const std::int64_t index = rest % cut.box.shape[axis];
        rest /= cut.box.shape[axis];
        part.src += index * cut.box.src_stride[axis];
        part.dst += index * cut.box.dst_stride[axis];
    }
    for (int axis = cut.level; axis < cut.box.ndim; ++axis)
        part.box.append(cut.box.shape[axis], cut.box.src_stride[axis], cut.box.dst_stride[axis]);
    if (cut.per_part > 0) {
        part.src += slice * cut.per_part * part.box.src_stride[0];
        part.dst += slice * cut.per_part * part.box.dst_stride[0];
        part.box.shape[0] = std::min(cut.per_part, part.box.shape[0] - slice * cut.per_part);
    }
    return part;
}

}  // namespace

std::pair<std::int64_t, std::int64_t> Reader::split(const Piece &piece) const {
    if (is_empty(piece)) return {0, 0};
    const Cut cut = cut_window(file_order_box(piece), placer_, piece.view.swap, cost_);
    const std::int64_t n = cut.outer * cut.n_parts;
    std::int64_t nbytes = 0;
    for (std::int64_t k = 0; k < n; ++k)
        nbytes += span_nbytes(part_of(cut, k).box, 0, static_cast<std::int64_t>(placer_.from_nbytes()));
    return {n, nbytes};
}

void Reader::fill_by_reads(std::size_t first, std::size_t n, const std::function<void(std::size_t, Piece &)> &piece) const {
    const auto item = static_cast<std::int64_t>(placer_.from_nbytes());
    thread_local std::vector<Span> spans;
    spans.clear();
    Piece window;
    for (std::size_t i = first; i < n; ++i) {
        piece(i, window);
        if (is_empty(window)) continue;
        const Cut cut = cut_window(file_order_box(window), placer_, window.view.swap, cost_);
        const std::int64_t begin = first_byte(window);
        for (std::int64_t k = 0; k < cut.outer * cut.n_parts; ++k) {
            const Part part = part_of(cut, k);
            const std::int64_t nbytes = span_nbytes(part.box, 0, item);
            if (cut.direct && nbytes >= cost_.max_gap) {  // nothing is gained by sharing a large read
                files_->read(window.view.file, begin + part.src, nbytes, window.dst + part.dst);
                continue;
            }
            spans.push_back({window.view.file, static_cast<std::uint32_t>(i), k, begin + part.src, nbytes});
        }
    }
    std::size_t current = n;
    Cut cut;
    for (const Read &read : coalesce(spans, cost_.max_gap, cost_.max_nbytes)) {
        std::byte *bytes = scratch(static_cast<std::size_t>(read.nbytes));
        files_->read(read.file, read.offset, read.nbytes, bytes);
        for (std::size_t s = read.first; s < read.last; ++s) {
            const Span &span = spans[s];
            if (span.window != current) {
                piece(current = span.window, window);
                cut = cut_window(file_order_box(window), placer_, window.view.swap, cost_);
            }
            Part part = part_of(cut, span.part);
            simplify(part.box);
            placer_(window.dst + part.dst, bytes + (span.offset - read.offset), part.box, window.view.swap);
        }
    }
}

}  // namespace gpuload
