#include "arrange.hpp"

#include <cstring>

namespace gpuload {

// Where a window comes from and where it goes. Axes are those of the item, `_at` those of the sample as it is delivered.
struct Arranger::Spot {
    std::uint32_t file;
    bool swap, is_resized;
    bool is_whole;                                   // nothing is padded
    int ndim;
    std::int64_t first;                              // its first byte in the file
    std::int64_t taken[kMaxNdim], src_stride[kMaxNdim];
    std::int64_t content[kMaxNdim];                  // what becomes of it once it is resized
    std::int64_t dense[kMaxNdim];                    // elements between neighbours when that is dense
    int axis_at[kMaxNdim];                           // which is seen there
    bool backwards_at[kMaxNdim];
    std::int64_t shape_at[kMaxNdim], begin_at[kMaxNdim], extent_at[kMaxNdim];  // of the sample, and of the data in it
};

// A field whose windows lie alike in all items: one box, worked out once, serves for all of them.
struct Arranger::Steady {
    Spot spot;              // of the first item
    Box box;
    std::int64_t at;        // where the first element of a window goes, in bytes of its row
    std::int64_t row_nbytes;
    std::int64_t row_stride;
    std::int64_t within;    // from the first byte of an item to that of its window, where windows do not move
};

namespace {

constexpr std::int64_t kPackAlign = 16;

std::int64_t round_up(std::int64_t n) { return (n + kPackAlign - 1) / kPackAlign * kPackAlign; }

std::int64_t count(const std::int64_t *shape, int ndim) {
    std::int64_t n = 1;
    for (int axis = 0; axis < ndim; ++axis) n *= shape[axis];
    return n;
}

// Fill `nbytes` with a value whose bytes are `value[0..item)`.
void fill_bytes(std::byte *dst, std::int64_t nbytes, const std::byte *value, std::size_t item) {
    if (nbytes <= 0) return;
    const auto n = static_cast<std::size_t>(nbytes);
    if (std::all_of(value, value + item, [&](std::byte b) { return b == value[0]; })) {
        std::memset(dst, static_cast<int>(value[0]), n);
        return;
    }
    std::memcpy(dst, value, item);
    for (std::size_t done = item; done < n; done *= 2) std::memcpy(dst + done, dst, std::min(done, n - done));
}

// What lies outside a box in dense memory: axes [axis, ndim), of which none behind `deepest` is padded.
struct Outside {
    const std::int64_t *shape, *begin, *extent;
    const std::byte *value;
    std::size_t item;
    int deepest;
    std::int64_t step[kMaxNdim];  // bytes

    void fill(std::byte *dst, int axis) const {
        const std::int64_t head = begin[axis] * step[axis], inner = extent[axis] * step[axis];
        fill_bytes(dst, head, value, item);
        if (axis < deepest)
            for (std::int64_t i = 0; i < extent[axis]; ++i) fill(dst + head + i * step[axis], axis + 1);
        fill_bytes(dst + head + inner, shape[axis] * step[axis] - head - inner, value, item);
    }
};

void fill_outside(std::byte *dst, int ndim, const std::int64_t *shape, const std::int64_t *begin, const std::int64_t *extent,
                  const std::byte *value, std::size_t item) {
    Outside outside{shape, begin, extent, value, item, -1, {}};
    auto step = static_cast<std::int64_t>(item);
    bool is_empty = false;
    for (int axis = ndim - 1; axis >= 0; --axis) {
        outside.step[axis] = step;
        step *= shape[axis];
        is_empty = is_empty || extent[axis] == 0;
        if (outside.deepest < 0 && extent[axis] != shape[axis]) outside.deepest = axis;
    }
    if (is_empty) fill_bytes(dst, step, value, item);
    else if (outside.deepest >= 0) outside.fill(dst, 0);
}

// Memory that a thread reuses for windows on their way to another size.
std::byte *scratch(int which, std::size_t nbytes) {
    thread_local std::vector<std::byte> memory[2];
    if (memory[which].size() < nbytes) memory[which] = std::vector<std::byte>(nbytes);
    return memory[which].data();
}

}  // namespace

Shown Arranger::show(const Sample &sample, u64 key) const {
    return fit_.show(*windows_, key, sample, view(0, sample.item).shape);
}

void Arranger::target(std::span<const Sample> batch, u64 key, std::int64_t *target) const {
    if (is_steady()) {  // of all samples alike
        std::copy_n(largest(), fit_.ndim(), target);
        return;
    }
    std::fill(target, target + fit_.ndim(), 0);
    if (!fit_.is_fixed())
        for (const Sample &sample : batch) fit_.enlarge(show(sample, key), target);
    fit_.round(target);
}

bool Arranger::fits(const Sample &sample, u64 key, const std::int64_t *target) const {
    std::int64_t own[kMaxNdim] = {};
    fit_.enlarge(show(sample, key), own);
    return std::equal(own, own + fit_.ndim(), target, [](std::int64_t n, std::int64_t most) { return n <= most; });
}

std::vector<std::int64_t> Arranger::shape(std::size_t field, const std::int64_t *target) const {
    const Form &form = forms_[field];
    std::vector<std::int64_t> shape;
    if (form.order.empty()) return shape;
    const View like = view(field, 0);
    for (const int axis : form.order) {
        const int shared = form.axes[static_cast<std::size_t>(axis)];
        shape.push_back(shared >= 0 ? target[shared] : like.shape[axis]);
    }
    return shape;
}

std::vector<std::int64_t> Arranger::mask_shape(const std::int64_t *target) const {
    std::vector<std::int64_t> all = shape(0, target);
    for (std::size_t j = 0; j < all.size(); ++j)
        if (!masked_[j]) all[j] = 1;
    return all;
}

std::int64_t Arranger::row_nbytes(std::size_t field, const std::int64_t *target) const {
    auto nbytes = static_cast<std::int64_t>(item_nbytes(forms_[field].to));
    for (const std::int64_t n : shape(field, target)) nbytes *= n;
    return nbytes;
}

std::int64_t Arranger::packed_nbytes(std::size_t field, const View &view, const Shown &shown) const {
    const Form &form = forms_[field];
    auto nbytes = static_cast<std::int64_t>(item_nbytes(packed(form)));
    for (int axis = 0; axis < view.ndim; ++axis) {
        const int shared = form.axes[static_cast<std::size_t>(axis)];
        nbytes *= shared >= 0 ? shown.content[shared] : view.shape[axis];
    }
    return round_up(nbytes);
}

// Whether no window has another size than the first one; true of no items at all.
bool Arranger::is_uniform() const {
    return std::all_of(forms_.begin(), forms_.end(), [](const Form &form) { return form.reader->catalog().is_uniform; });
}

// Set largest_ and room_.
void Arranger::look_at_sizes() {
    const std::int64_t n = n_items();
    for (std::int64_t item = 0; item < (is_uniform() ? std::min<std::int64_t>(n, 1) : n); ++item) {
        const Shown shown = show({item, 0, true}, 0);
        fit_.enlarge(shown, largest_.data());
        if (!is_packed_) continue;
        std::int64_t nbytes = 0;
        for (std::size_t field = 0; field < forms_.size(); ++field) nbytes += packed_nbytes(field, view(field, item), shown);
        room_ = std::max(room_, nbytes);
    }
    if (fit_.is_turned()) {
        std::int64_t &a = largest_[static_cast<std::size_t>(fit_.turn_from)], &b = largest_[static_cast<std::size_t>(fit_.turn_to)];
        a = b = std::max(a, b);
    }
    fit_.round(largest_.data());
}

Arranger::Spot Arranger::spot(std::size_t field, const View &view, const Shown &shown, const std::int64_t *target) const {
    const Form &form = forms_[field];
    const int ndim = view.ndim;
    Spot spot;
    spot.file = view.file;
    spot.swap = view.swap;
    spot.first = view.offset;
    spot.ndim = ndim;
    spot.is_whole = true;
    spot.is_resized = form.resize_mode >= 0 && form.resized != form.stored->to();  // all values go the same way
    int item_axis[kMaxNdim];  // of an axis of the first field
    for (int axis = 0; axis < ndim; ++axis) {
        const int shared = form.axes[static_cast<std::size_t>(axis)];
        spot.src_stride[axis] = view.stride[axis];
        spot.taken[axis] = shared >= 0 ? shown.extent[shared] : view.shape[axis];
        spot.content[axis] = shared >= 0 ? shown.content[shared] : view.shape[axis];
        spot.is_resized = spot.is_resized || spot.content[axis] != spot.taken[axis];
        if (shared < 0) continue;
        spot.first += shown.start[shared] * view.stride[axis];
        item_axis[shared] = axis;
    }
    std::int64_t step = 1;
    for (int axis = ndim - 1; axis >= 0; step *= spot.content[axis--]) spot.dense[axis] = step;
    for (int j = 0; j < ndim; ++j) {
        const int stands = form.order[static_cast<std::size_t>(j)], shared = form.axes[static_cast<std::size_t>(stands)];
        spot.axis_at[j] = stands;
        spot.backwards_at[j] = false;
        spot.shape_at[j] = spot.content[stands];
        if (shared >= 0) {
            spot.axis_at[j] = item_axis[fit_.source_axis(shared, shown, spot.backwards_at[j])];
            spot.shape_at[j] = target[shared];
        }
        spot.extent_at[j] = spot.content[spot.axis_at[j]];
        spot.begin_at[j] = fit_.begin(spot.extent_at[j], spot.shape_at[j]);
        spot.is_whole = spot.is_whole && spot.extent_at[j] == spot.shape_at[j];
    }
    return spot;
}

namespace {

// From the item to the sample, or with `is_dense` from what it was resized to. `at` is where its first element goes.
template <class Spot>
Box box_of(const Spot &spot, bool is_dense, std::size_t from_nbytes, std::size_t to_nbytes, int channel_axis, std::int64_t &at) {
    Box box;
    box.ndim = spot.ndim;
    box.channel = channel_axis;
    auto step = static_cast<std::int64_t>(to_nbytes);
    at = 0;
    for (int j = spot.ndim - 1; j >= 0; step *= spot.shape_at[j--]) {
        const int axis = spot.axis_at[j];
        box.shape[axis] = spot.extent_at[j];
        box.src_stride[axis] = is_dense ? spot.dense[axis] * static_cast<std::int64_t>(from_nbytes) : spot.src_stride[axis];
        box.dst_stride[axis] = spot.backwards_at[j] ? -step : step;
        at += (spot.begin_at[j] + (spot.backwards_at[j] ? spot.extent_at[j] - 1 : 0)) * step;
    }
    return box;
}

}  // namespace

Arranger::Arranger(std::vector<Form> forms, std::shared_ptr<const Windows> windows, Fit fit, std::vector<std::uint8_t> masked,
                   bool is_packed)
    : forms_(std::move(forms)), windows_(std::move(windows)), fit_(std::move(fit)), masked_(std::move(masked)), is_packed_(is_packed) {
    for (const Form &form : forms_)
        resized_.emplace_back(form.resized, is_packed ? form.resized : form.to, is_packed ? Scaling{} : form.scaling);
    look_at_sizes();
    if (!is_packed && fit_.flips == 0 && !fit_.is_turned() && n_items() > 0 && is_uniform()) find_steady();
}

// Set steady_, where nothing is resized.
void Arranger::find_steady() {
    const Shown shown = show({0, 0, true}, 0);
    for (std::size_t field = 0; field < forms_.size(); ++field) {
        const View like = view(field, 0);
        Steady steady{spot(field, like, shown, largest()), {}, 0, row_nbytes(field, largest()), like.row_stride, 0};
        steady.within = steady.spot.first - like.offset;
        if (steady.spot.is_resized) {
            steady_.clear();
            return;
        }
        steady.box = box_of(steady.spot, false, 0, item_nbytes(forms_[field].to), forms_[field].channel_axis, steady.at);
        steady_.push_back(steady);
    }
}

Arranger::~Arranger() = default;

bool Arranger::is_steady() const { return !steady_.empty(); }

// The same as fill(), where only the first bytes of windows differ.
Filling Arranger::fill_steady(std::span<const Sample> samples, std::size_t first, u64 key, std::byte *data,
                              const std::vector<FieldColumns> &columns, const FitColumns &told, const std::atomic<bool> &stop) const {
    thread_local std::vector<Piece> pieces;
    thread_local std::vector<Shown> shown;
    const bool moves = windows_->kind == Windows::Kind::random || windows_->kind == Windows::Kind::grid;
    const bool tells = told.start >= 0 || told.mask >= 0 || told.lengths >= 0 || told.flips >= 0 || told.turns >= 0;
    shown.clear();
    if (moves || tells)
        for (const Sample &sample : samples) shown.push_back(show(sample, key));
    Filling filling;
    for (std::size_t field = 0; field < forms_.size(); ++field) {
        const Form &form = forms_[field];
        const Steady &steady = steady_[field];
        const Catalog &catalog = form.reader->catalog();
        std::byte *row = data + columns[field].x + static_cast<std::int64_t>(first) * steady.row_nbytes;
        pieces.resize(samples.size());
        for (std::size_t i = 0; i < samples.size(); ++i) {
            Piece &piece = pieces[i];
            piece.first = catalog.first_byte(samples[i].item, steady.row_stride, piece.file);
            piece.swap = steady.spot.swap;
            piece.box = &steady.box;
            piece.dst = row + static_cast<std::int64_t>(i) * steady.row_nbytes + steady.at;
            if (!moves) {
                piece.first += steady.within;
                continue;
            }
            for (int axis = 0; axis < steady.spot.ndim; ++axis) {
                const int shared = form.axes[static_cast<std::size_t>(axis)];
                if (shared >= 0) piece.first += shown[i].start[shared] * steady.spot.src_stride[axis];
            }
        }
        form.reader->fill(pieces, stop);
        for (std::size_t i = 0; i < samples.size() && !steady.spot.is_whole; ++i)
            pad(form, steady.spot, row + static_cast<std::int64_t>(i) * steady.row_nbytes);
        for (std::size_t i = 0; i < samples.size() && tells && field == 0; ++i)
            tell(steady.spot, shown[i], static_cast<std::int64_t>(first + i), data, told);
        filling.useful_nbytes += static_cast<std::int64_t>(samples.size() * form.reader->from_nbytes()) * count(steady.spot.taken, steady.spot.ndim);
    }
    return filling;
}

void Arranger::pad(const Form &form, const Spot &spot, std::byte *row) const {
    if (spot.is_whole || form.pad_mode < 0) return;
    const std::size_t item = item_nbytes(form.to);
    if (form.pad_mode == kConstant || count(spot.extent_at, spot.ndim) == 0) {
        fill_outside(row, spot.ndim, spot.shape_at, spot.begin_at, spot.extent_at, form.pad_value.data(), item);
        return;
    }
    PadParams params{};
    params.dst = reinterpret_cast<u8 *>(row);
    params.n_pieces = 1;
    params.ndim = spot.ndim;
    params.mode = form.pad_mode;
    params.item_nbytes = static_cast<i32>(item);
    auto step = static_cast<std::int64_t>(item);
    for (int j = spot.ndim - 1; j >= 0; step *= spot.shape_at[j--]) {
        params.shape[j] = spot.shape_at[j];
        params.dst_stride[j] = step;
        params.begin[j] = spot.begin_at[j];
        params.extent[j] = spot.extent_at[j];
    }
    pad_boxes(params);
}

// Read a window as it is stored, and write it to `to` as dense elements of the size and type it is resized to.
void Arranger::resize(const Form &form, const Spot &spot, std::byte *to, const std::atomic<bool> &stop) const {
    const Dtype stored = form.stored->to();
    ResizeParams params{};
    params.n_pieces = 1;
    params.mode = form.resize_mode;
    params.group = 1;
    params.axes[0] = params.axes[1] = params.axes[2] = -1;
    Box box;
    auto nbytes = static_cast<std::int64_t>(item_nbytes(stored));
    const auto to_nbytes = static_cast<std::int64_t>(item_nbytes(form.resized));
    std::int64_t stride[kMaxNdim];
    for (int axis = spot.ndim - 1; axis >= 0; nbytes *= spot.taken[axis--]) stride[axis] = nbytes;
    // Axes that keep their extent are joined where they lie together; those that are resized stay.
    int n = 0, n_resized = 0, resized[3] = {};
    bool joins = false;
    for (int axis = 0; axis < spot.ndim; ++axis) {
        box.append(spot.taken[axis], spot.src_stride[axis], stride[axis]);
        const bool keeps = spot.taken[axis] == spot.content[axis];
        if (!(keeps && joins)) {
            params.shape[n] = params.src_shape[n] = 1;
            if (!keeps) resized[n_resized++] = n;
            ++n;
        }
        params.shape[n - 1] *= spot.content[axis];
        params.src_shape[n - 1] *= spot.taken[axis];
        params.src_stride[n - 1] = stride[axis];
        params.dst_stride[n - 1] = spot.dense[axis] * to_nbytes;
        joins = keeps;
    }
    for (int k = 0; k < n_resized; ++k) params.axes[3 - n_resized + k] = resized[k];
    if (n == 0) {  // rows are wanted
        params.shape[0] = params.src_shape[0] = 1;
        n = 1;
    }
    params.ndim = n;
    std::byte *taken = scratch(0, static_cast<std::size_t>(nbytes));
    const Piece piece{spot.file, spot.swap, spot.first, &box, taken};
    form.stored->fill({&piece, 1}, stop);
    params.src = reinterpret_cast<const u8 *>(taken);
    params.dst = reinterpret_cast<u8 *>(to);
    resize_boxes(params, stored, form.resized);
}

// Windows of a field, each to its row.
void Arranger::place(std::size_t field, std::span<const Spot> spots, std::byte *rows, std::int64_t nbytes,
                     const std::atomic<bool> &stop) const {
    const Form &form = forms_[field];
    const std::size_t to_nbytes = item_nbytes(form.to), resized_nbytes = item_nbytes(form.resized);
    thread_local std::vector<Box> boxes;
    thread_local std::vector<Piece> pieces;
    boxes.resize(spots.size());
    pieces.clear();
    for (std::size_t i = 0; i < spots.size(); ++i) {
        const Spot &spot = spots[i];
        std::byte *row = rows + static_cast<std::int64_t>(i) * nbytes;
        std::int64_t at;
        boxes[i] = box_of(spot, spot.is_resized, resized_nbytes, to_nbytes, form.channel_axis, at);
        if (!spot.is_resized) {
            pieces.push_back({spot.file, spot.swap, spot.first, &boxes[i], row + at});
            continue;
        }
        std::byte *resized = scratch(1, static_cast<std::size_t>(count(spot.content, spot.ndim)) * resized_nbytes);
        resize(form, spot, resized, stop);
        const Shift shift = simplify(boxes[i]);
        resized_[field](row + at + shift.dst, resized + shift.src, boxes[i], false);
    }
    form.reader->fill(pieces, stop);
    for (std::size_t i = 0; i < spots.size(); ++i) pad(form, spots[i], rows + static_cast<std::int64_t>(i) * nbytes);
}

void Arranger::write_tables(std::size_t field, const Spot &spot, std::int64_t row, std::int64_t row_nbytes, std::int64_t at,
                            std::byte *data, const FieldColumns &columns) const {
    const Form &form = forms_[field];
    auto *piece = reinterpret_cast<std::int64_t *>(data + columns.table) + row * table_length(field);
    auto *pads = reinterpret_cast<std::int64_t *>(data + columns.pads) + row * pads_length(field);
    const auto from = static_cast<std::int64_t>(item_nbytes(packed(form)));
    auto step = static_cast<std::int64_t>(item_nbytes(form.to));
    piece[0] = at;
    piece[1] = row * row_nbytes;
    for (int j = spot.ndim - 1; j >= 0; step *= spot.shape_at[j--]) {
        const std::int64_t stride = spot.dense[spot.axis_at[j]] * from;
        if (spot.backwards_at[j]) piece[0] += (spot.extent_at[j] - 1) * stride;
        piece[1] += spot.begin_at[j] * step;
        piece[2 + j] = spot.extent_at[j];
        piece[2 + spot.ndim + j] = spot.backwards_at[j] ? -stride : stride;
        pads[j] = spot.begin_at[j];
        pads[spot.ndim + j] = spot.extent_at[j];
    }
}

void Arranger::tell(const Spot &spot, const Shown &shown, std::int64_t row, std::byte *data, const FitColumns &told) const {
    const int ndim = spot.ndim;
    if (told.start >= 0) std::memcpy(data + told.start + row * ndim * 8, shown.start, static_cast<std::size_t>(ndim) * 8);
    if (told.lengths >= 0)
        std::memcpy(data + told.lengths + row * ndim * 8, spot.extent_at, static_cast<std::size_t>(ndim) * 8);
    if (told.flips >= 0)
        for (int axis = 0; axis < ndim; ++axis) data[told.flips + row * ndim + axis] = static_cast<std::byte>((shown.flips >> axis) & 1u);
    if (told.turns >= 0) {
        const std::int64_t turns = shown.turns;
        std::memcpy(data + told.turns + row * 8, &turns, 8);
    }
    if (told.mask < 0) return;
    std::int64_t shape[kMaxNdim], begin[kMaxNdim], extent[kMaxNdim], nbytes = 1;
    for (int j = 0; j < ndim; ++j) {
        const bool is_masked = masked_[static_cast<std::size_t>(j)];
        shape[j] = is_masked ? spot.shape_at[j] : 1;
        begin[j] = is_masked ? spot.begin_at[j] : 0;
        extent[j] = is_masked ? spot.extent_at[j] : 1;
        nbytes *= shape[j];
    }
    std::byte *mask = data + told.mask + row * nbytes;
    const std::byte outside{0};
    std::memset(mask, 1, static_cast<std::size_t>(nbytes));
    fill_outside(mask, ndim, shape, begin, extent, &outside, 1);
}

// Where each window [first, last) is packed, field by field, and behind them where the last one ends.
void Arranger::find_places(std::span<const Sample> batch, std::size_t first, std::size_t last, u64 key, const std::vector<Shown> &shown,
                           std::int64_t room, std::vector<std::int64_t> &places) const {
    const auto size = [&](std::size_t field, std::size_t i, const Shown &of) { return packed_nbytes(field, view(field, batch[i].item), of); };
    std::int64_t end = 0;
    if (room == 0)
        for (std::size_t i = 0; i < first; ++i) {
            const Shown before = show(batch[i], key);
            for (std::size_t field = 0; field < forms_.size(); ++field) end += size(field, i, before);
        }
    places.clear();
    for (std::size_t i = first; i < last; ++i) {
        if (room > 0) end = static_cast<std::int64_t>(i) * room;
        for (std::size_t field = 0; field < forms_.size(); ++field) {
            places.push_back(end);
            end += size(field, i, shown[i - first]);
        }
    }
    places.push_back(end);
}

// Windows of a field, each to its place; row `first` of the tables is that of the first one.
void Arranger::pack(std::size_t field, std::span<const Spot> spots, const std::vector<std::int64_t> &places, std::size_t first,
                    std::int64_t row_nbytes, std::byte *data, const FieldColumns &columns, const std::atomic<bool> &stop) const {
    const Form &form = forms_[field];
    const auto item = static_cast<std::int64_t>(item_nbytes(packed(form)));
    thread_local std::vector<Box> boxes;
    thread_local std::vector<Piece> pieces;
    boxes.resize(spots.size());
    pieces.clear();
    for (std::size_t i = 0; i < spots.size(); ++i) {
        const Spot &spot = spots[i];
        const std::int64_t at = places[i * forms_.size() + field];
        write_tables(field, spot, static_cast<std::int64_t>(first + i), row_nbytes, at, data, columns);
        std::byte *to = data + columns.x + at;
        if (spot.is_resized) {
            resize(form, spot, to, stop);
            continue;
        }
        boxes[i] = {};
        for (int axis = 0; axis < spot.ndim; ++axis)
            boxes[i].append(spot.taken[axis], spot.src_stride[axis], spot.dense[axis] * item);
        pieces.push_back({spot.file, spot.swap, spot.first, &boxes[i], to});
    }
    form.reader->fill(pieces, stop);
}

Filling Arranger::fill(std::span<const Sample> batch, std::size_t first, std::size_t last, u64 key, const std::int64_t *target,
                       std::byte *data, const std::vector<FieldColumns> &columns, const FitColumns &told, std::int64_t room,
                       const std::atomic<bool> &stop) const {
    if (is_steady()) return fill_steady(batch.subspan(first, last - first), first, key, data, columns, told, stop);
    thread_local std::vector<Shown> shown;
    thread_local std::vector<Spot> spots;
    thread_local std::vector<std::int64_t> places;
    shown.clear();
    for (std::size_t i = first; i < last; ++i) shown.push_back(show(batch[i], key));
    Filling filling;
    if (is_packed_) {
        find_places(batch, first, last, key, shown, room, places);
        filling.packed_end = places.back();
    }
    for (std::size_t field = 0; field < forms_.size(); ++field) {
        const std::int64_t nbytes = row_nbytes(field, target);
        const auto stored = static_cast<std::int64_t>(forms_[field].reader->from_nbytes());
        spots.clear();
        for (std::size_t i = first; i < last; ++i) {
            spots.push_back(spot(field, view(field, batch[i].item), shown[i - first], target));
            filling.useful_nbytes += count(spots.back().taken, spots.back().ndim) * stored;
        }
        if (field == 0)
            for (std::size_t i = first; i < last; ++i) tell(spots[i - first], shown[i - first], static_cast<std::int64_t>(i), data, told);
        if (is_packed_) pack(field, spots, places, first, nbytes, data, columns[field], stop);
        else place(field, spots, data + columns[field].x + static_cast<std::int64_t>(first) * nbytes, nbytes, stop);
    }
    return filling;
}

}  // namespace gpuload
