// The only file that knows both Python and C++: argument checks, the GIL, errors, ownership.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "checks.hpp"
#include "kernels.hpp"
#include "npy.hpp"
#include "run.hpp"
#include "tensor.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpuload;

namespace {

template <class T, int n>
using Array = nb::ndarray<const T, nb::ndim<n>, nb::c_contig, nb::device::cpu>;

template <class Numbers>
auto to_vector(const Numbers &array) -> std::vector<std::remove_const_t<typename Numbers::Scalar>> {
    return {array.data(), array.data() + array.size()};
}

template <class T>
nb::object to_numpy(std::vector<T> values, std::vector<std::size_t> shape) {
    auto *held = new std::vector<T>(std::move(values));
    const nb::capsule owner(held, [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(held->data(), shape.size(), shape.data(), owner));
}

template <class T>
nb::object to_numpy(std::vector<T> values) {
    const std::size_t n = values.size();
    return to_numpy(std::move(values), {n});
}

Dtype to_dtype(int number) {
    if (number < 0 || number > static_cast<int>(Dtype::complex128)) throw nb::value_error("dtype: unknown number");
    return static_cast<Dtype>(number);
}

// ---- Files and catalog --------------------------------------------------------------------------------------

Paths make_paths(const nb::bytes &bytes, const Array<std::int64_t, 1> &ends) {
    std::vector<std::int64_t> held = to_vector(ends);
    expect(is_rising(held) && (held.empty() ? 0 : held.back()) == static_cast<std::int64_t>(bytes.size()),
           "paths: expected rising ends up to the number of bytes");
    return {{bytes.c_str(), bytes.size()}, std::move(held)};
}

// A Python object that native code keeps alive, from whichever thread lets go of it.
std::shared_ptr<const void> keep(nb::object object) {
    if (object.is_none()) return nullptr;
    return {object.release().ptr(), [](const void *kept) {
                if (!Py_IsInitialized()) return;
                const nb::gil_scoped_acquire acquire;
                Py_DECREF(static_cast<PyObject *>(const_cast<void *>(kept)));
            }};
}

std::shared_ptr<Files> make_files(const nb::bytes &paths, const Array<std::int64_t, 1> &ends, const Array<std::int64_t, 1> &sizes,
                                  std::size_t max_descriptors, std::size_t max_maps, const std::vector<std::uintptr_t> &memory,
                                  nb::object owner) {
    expect(ends.size() == sizes.size(), "files: expected one size per path");
    expect(memory.empty() || memory.size() == sizes.size(), "files: expected one address per path");
    std::vector<const std::byte *> addresses;
    for (const std::uintptr_t address : memory) addresses.push_back(reinterpret_cast<const std::byte *>(address));
    return std::make_shared<Files>(make_paths(paths, ends), to_vector(sizes), max_descriptors, max_maps, std::move(addresses),
                                   keep(std::move(owner)));
}

void read_requests(Files &files, const Array<std::int64_t, 2> &rows, std::uintptr_t address, std::int64_t nbytes, int n_threads) {
    expect(rows.shape(1) == 4 && n_threads >= 1, "files: expected rows of four numbers, and a thread");
    std::vector<Request> requests;
    for (std::size_t i = 0; i < rows.shape(0); ++i) {
        const std::int64_t *row = rows.data() + 4 * i;
        expect(row[0] >= 0 && row[0] < static_cast<std::int64_t>(files.size()), "files: no such file");
        const auto file = static_cast<std::uint32_t>(row[0]);
        const auto lies_within = [&](std::int64_t begin, std::int64_t end) { return begin >= 0 && begin <= end && row[2] <= end - begin; };
        expect(row[2] >= 0 && lies_within(row[1], files.nbytes(file)) && lies_within(row[3], nbytes),
               "files: a request does not lie within its file and the memory");
        requests.push_back({file, row[1], row[2], reinterpret_cast<std::byte *>(address) + row[3]});
    }
    const nb::gil_scoped_release release;
    files.read_all(requests, n_threads);
}

std::shared_ptr<Catalog> make_catalog(const Array<std::uint32_t, 1> &file, const Array<std::int64_t, 1> &offset,
                                      const Array<std::int64_t, 2> &shape, const Array<std::uint8_t, 1> &flags, int dtype,
                                      std::int64_t record_nbytes, std::int64_t element_offset,
                                      std::vector<std::int64_t> sub_shape, int sample_axis,
                                      const std::optional<Array<std::int64_t, 1>> &selected) {
    auto catalog = std::make_shared<Catalog>();
    const std::size_t n = file.size(), ndim = shape.shape(1);
    expect(offset.size() == n && flags.size() == n && shape.shape(0) == n, "catalog: columns differ in length");
    const auto is_negative = [](std::int64_t number) { return number < 0; };
    expect(std::none_of(shape.data(), shape.data() + shape.size(), is_negative) &&
               std::none_of(offset.data(), offset.data() + n, is_negative) &&
               std::none_of(sub_shape.begin(), sub_shape.end(), is_negative) && record_nbytes >= 1 && element_offset >= 0 &&
               sample_axis >= -1,
           "catalog: number out of range");
    const std::int64_t element_nbytes = product(sub_shape.data(), sub_shape.size(), static_cast<std::int64_t>(item_nbytes(to_dtype(dtype))));
    expect(element_nbytes <= record_nbytes && element_offset <= record_nbytes - element_nbytes,
           "catalog: the element does not lie within its record");
    expect(ndim + sub_shape.size() <= kMaxNdim, "catalog: too many axes");
    expect(sample_axis < static_cast<int>(ndim), "catalog: no such sample axis");
    catalog->file = to_vector(file);
    catalog->offset = to_vector(offset);
    catalog->shape = to_vector(shape);
    catalog->flags = to_vector(flags);
    catalog->ndim = static_cast<int>(ndim);
    catalog->element = {to_dtype(dtype), record_nbytes, element_offset, std::move(sub_shape)};
    catalog->sample_axis = sample_axis;
    if (sample_axis >= 0) {
        std::int64_t rows = 0;
        for (std::size_t i = 0; i < n; ++i)
            catalog->row_ends.push_back(rows += catalog->shape[i * ndim + static_cast<std::size_t>(sample_axis)]);
    }
    catalog->is_uniform = catalog->find_uniform();
    const std::int64_t n_all = catalog->n_items();
    if (selected) {
        catalog->selected = to_vector(*selected);
        catalog->has_selection = true;
        for (const std::int64_t item : catalog->selected) expect(item >= 0 && item < n_all, "catalog: no such item");
    }
    return catalog;
}

// ---- Reading ------------------------------------------------------------------------------------------------

// A consumer renames the capsule; the tensor then frees itself, and this destructor must not.
nb::object dlpack_capsule(DlManagedTensor *tensor) {
    PyObject *capsule = PyCapsule_New(tensor, "dltensor", [](PyObject *self) {
        if (!PyCapsule_IsValid(self, "dltensor")) return;
        auto *managed = static_cast<DlManagedTensor *>(PyCapsule_GetPointer(self, "dltensor"));
        managed->deleter(managed);
    });
    if (capsule == nullptr) {
        tensor->deleter(tensor);
        throw nb::python_error();
    }
    return nb::steal(capsule);
}

std::shared_ptr<Reader> make_reader(std::shared_ptr<Catalog> catalog, std::shared_ptr<Files> files, int to, bool maps,
                                    double request_ns, double bytes_per_ns, std::int64_t max_gap, std::int64_t max_nbytes,
                                    bool is_cold, bool raw, const std::optional<std::pair<double, std::vector<double>>> &scaling) {
    Scaling values;
    if (scaling) {
        values = {true, scaling->first, scaling->second};
        expect(!raw && find_scale(catalog->element.dtype, to_dtype(to)) != nullptr && values.channels.size() % 2 == 0,
               "reader: only real values are scaled, and to a floating type");
    }
    expect(raw ? to_dtype(to) == Dtype::uint8 : find_move(catalog->element.dtype, to_dtype(to)) != nullptr,
           raw ? "reader: expected raw bytes as uint8" : "reader: complex values have no real form");
    expect(request_ns >= 0 && bytes_per_ns > 0 && max_gap >= 0 && max_nbytes >= 1, "reader: number out of range");
    for (std::size_t i = 0; i < catalog->file.size(); ++i) {
        expect(catalog->file[i] < files->size(), "reader: no such file");
        const auto ndim = static_cast<std::size_t>(catalog->ndim);
        const std::int64_t nbytes = product(catalog->shape.data() + i * ndim, ndim, catalog->element.record_nbytes);
        const std::int64_t held = files->nbytes(catalog->file[i]);
        expect(catalog->offset[i] <= held && nbytes <= held - catalog->offset[i], "reader: an array ends past its file");
    }
    return std::make_shared<Reader>(std::move(catalog), std::move(files), to_dtype(to),
                                    maps ? Reader::Io::mmap : Reader::Io::pread,
                                    Cost{request_ns, bytes_per_ns, max_gap, max_nbytes, is_cold}, raw, values);
}

nb::object read_item(const Reader &reader, std::int64_t item, int to) {
    expect(item >= 0 && item < reader.catalog().n_items(), "reader: no such item");
    const Windows whole;
    const PieceMaker pieces(reader.catalog(), whole, 0, reader.to_nbytes());
    std::int64_t extent[kMaxNdim];
    const std::int64_t nbytes = pieces.sample_nbytes(item, extent);
    const std::vector<std::int64_t> shape(extent, extent + reader.catalog().item_ndim());
    auto memory = std::make_shared<BatchMemory>(static_cast<std::size_t>(nbytes), 0);
    Block *block = memory->take();
    try {
        const nb::gil_scoped_release release;
        PieceMaker::Made made;
        const Sample sample{item, 0, true};
        reader.fill(pieces.make({&sample, 1}, block->data, nbytes, made), std::atomic<bool>{false});
    } catch (...) {
        block->drop_reference();
        throw;
    }
    return dlpack_capsule(make_tensor(block, block->data, to_dtype(to), shape));
}

std::tuple<std::int64_t, std::int64_t> split_window(const Reader &reader, const Windows &windows, std::int64_t item) {
    expect(item >= 0 && item < reader.catalog().n_items(), "reader: no such item");
    const PieceMaker pieces(reader.catalog(), windows, 0, reader.to_nbytes());
    PieceMaker::Made made;
    const Sample sample{item, 0, true};
    return reader.split(pieces.make({&sample, 1}, nullptr, 0, made).front());
}

// ---- Order and windows --------------------------------------------------------------------------------------

std::shared_ptr<Windows> make_windows(int kind, std::vector<std::int64_t> size, std::vector<std::int64_t> stride,
                                      std::int64_t per_item, const std::optional<Array<std::int64_t, 1>> &ends, bool may_stick_out) {
    auto windows = std::make_shared<Windows>();
    expect(kind >= 0 && kind <= static_cast<int>(Windows::Kind::grid), "windows: unknown kind");
    windows->kind = static_cast<Windows::Kind>(kind);
    windows->size = std::move(size);
    windows->stride = std::move(stride);
    windows->per_item = per_item;
    windows->may_stick_out = may_stick_out;
    if (ends) windows->ends = to_vector(*ends);
    const auto is_size = [](std::int64_t n) { return n >= 1 || n == -1; };
    expect(std::all_of(windows->size.begin(), windows->size.end(), is_size) &&
               std::all_of(windows->stride.begin(), windows->stride.end(), [](std::int64_t n) { return n >= 0; }) &&
               per_item >= 1 && per_item <= UINT32_MAX && is_rising(windows->ends),
           "windows: number out of range");
    return windows;
}

// ---- Arranging ----------------------------------------------------------------------------------------------

std::shared_ptr<Fit> make_fit(std::vector<std::int64_t> to, std::vector<std::int64_t> multiple, std::vector<std::int64_t> size,
                              int align, bool shrinks, std::uint32_t flips, int turn_from, int turn_to) {
    auto fit = std::make_shared<Fit>();
    const auto ndim = static_cast<int>(to.size());
    expect(to.size() <= kMaxNdim && multiple.size() == to.size() && size.size() == to.size(), "fit: expected one number per axis");
    for (std::size_t i = 0; i < to.size(); ++i) {
        expect(to[i] >= -1 && multiple[i] >= 1 && (size[i] == -1 || size[i] >= 1), "fit: number out of range");
        expect(to[i] < 0 || size[i] <= to[i] || shrinks, "fit: resized windows do not fit their samples");
    }
    expect(align >= 0 && align <= 2, "fit: unknown align");
    expect((turn_from == -1 && turn_to == -1) || (turn_from >= 0 && turn_to >= 0 && turn_from < ndim && turn_to < ndim && turn_from != turn_to),
           "fit: no such plane");
    const auto of = [](const std::vector<std::int64_t> &numbers, int axis) { return numbers[static_cast<std::size_t>(axis)]; };
    expect(turn_from < 0 || (of(to, turn_from) == of(to, turn_to) && of(multiple, turn_from) == of(multiple, turn_to)),
           "fit: what is turned does not fit its samples");
    *fit = {std::move(to), std::move(multiple), std::move(size), static_cast<Fit::Align>(align), shrinks, flips, turn_from, turn_to};
    return fit;
}

std::shared_ptr<Form> make_form(std::shared_ptr<Reader> reader, std::shared_ptr<Reader> stored, std::vector<int> axes,
                                std::vector<int> order, int to, int resized, int resize_mode, int pad_mode, const nb::bytes &pad_value,
                                int channel_axis, const std::optional<std::pair<double, std::vector<double>>> &scaling) {
    auto form = std::make_shared<Form>();
    const int ndim = reader->catalog().item_ndim();
    expect(static_cast<int>(axes.size()) == ndim && static_cast<int>(order.size()) == ndim, "form: expected one number per axis");
    std::vector<int> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (int axis = 0; axis < ndim; ++axis) expect(sorted[static_cast<std::size_t>(axis)] == axis && axes[static_cast<std::size_t>(axis)] >= -1, "form: number out of range");
    expect(resize_mode >= -1 && resize_mode <= kArea && pad_mode >= -1 && pad_mode <= kWrap, "form: unknown mode");
    expect(resize_mode < 0 || stored != nullptr, "form: expected a reader of what is resized");
    expect(pad_value.size() == item_nbytes(to_dtype(to)), "form: expected the bytes of an element");
    expect(pad_mode <= kConstant || ndim <= kMaxAxes, "form: too many axes for this mode");
    expect(channel_axis >= -1 && channel_axis < ndim, "form: no such axis");
    if (resize_mode >= 0) {
        const Dtype from = stored->to(), as = to_dtype(resized);
        expect(!is_complex(from) && (as == from || as == Dtype::float32) && find_move(as, to_dtype(to)) != nullptr,
               "form: values cannot be resized like this");
    }
    if (scaling) form->scaling = {true, scaling->first, scaling->second};
    form->reader = std::move(reader);
    form->stored = std::move(stored);
    form->axes = std::move(axes);
    form->order = std::move(order);
    form->to = to_dtype(to);
    form->resized = to_dtype(resized);
    form->resize_mode = resize_mode;
    form->pad_mode = pad_mode;
    std::memcpy(form->pad_value.data(), pad_value.c_str(), pad_value.size());
    form->channel_axis = channel_axis;
    return form;
}

std::shared_ptr<Arranger> make_arranger(const std::vector<std::shared_ptr<Form>> &forms, std::shared_ptr<Windows> windows,
                                        const Fit &fit, std::vector<std::uint8_t> masked, bool is_packed) {
    expect(!forms.empty(), "arranger: expected a field");
    std::vector<Form> fields;
    const auto ndim = static_cast<int>(fit.ndim());
    for (const auto &form : forms) {
        int n_resized = 0;
        std::vector<int> seen(fit.ndim(), 0);
        for (const int axis : form->axes) {
            expect(axis < ndim, "arranger: no such axis");
            if (axis >= 0) expect(++seen[static_cast<std::size_t>(axis)] == 1, "arranger: an axis twice");
            n_resized += axis >= 0 && (fit.size[static_cast<std::size_t>(axis)] >= 0 || (fit.shrinks && fit.to[static_cast<std::size_t>(axis)] >= 0));
        }
        if (fit.is_turned())
            expect(seen[static_cast<std::size_t>(fit.turn_from)] == seen[static_cast<std::size_t>(fit.turn_to)], "arranger: a field with half a plane");
        expect(form->resize_mode < 0 || (n_resized <= 3 && form->axes.size() <= kMaxAxes), "arranger: too many axes to resize");
        expect(form->resize_mode >= 0 || n_resized == 0, "arranger: expected a mode to resize by");
        expect(is_packed ? form->reader->to() == form->resized || form->resize_mode < 0 : form->reader->to() == form->to,
               "arranger: expected a reader of what is delivered");
        fields.push_back(*form);
    }
    expect(fields[0].axes.size() == fit.ndim() && masked.size() == fit.ndim(), "arranger: expected one number per axis");
    for (int axis = 0; axis < ndim; ++axis) expect(fields[0].axes[static_cast<std::size_t>(axis)] == axis, "arranger: windows are those of the first field");
    check_fields(fields, *windows, fit);
    check_sizes(fields[0].reader->catalog(), *windows);
    return std::make_shared<Arranger>(std::move(fields), std::move(windows), fit, std::move(masked), is_packed);
}

// Rows [first, last) of arrays that hold one row for each item, on `n_threads`.
void fill_rows(const Arranger &arranger, const std::vector<std::uintptr_t> &addresses, const std::vector<std::int64_t> &nbytes,
               std::int64_t first, std::int64_t last, int n_threads) {
    const std::int64_t n_items = arranger.form(0).reader->catalog().n_items();
    expect(addresses.size() == arranger.n_fields() && nbytes.size() == addresses.size(), "fill: expected memory for each field");
    expect(first >= 0 && first <= last && last <= n_items && n_threads >= 1 && !arranger.is_packed(), "fill: number out of range");
    const std::int64_t *target = arranger.largest();
    std::vector<FieldColumns> columns;
    std::int64_t row_nbytes = 0;
    for (std::size_t field = 0; field < addresses.size(); ++field) {
        const std::int64_t row = arranger.row_nbytes(field, target);
        expect(product(&n_items, 1, row) <= nbytes[field], "fill: the memory is too small");
        columns.push_back({static_cast<std::int64_t>(addresses[field]) + first * row, -1, -1});
        row_nbytes += row;
    }
    std::vector<Sample> samples;
    for (std::int64_t item = first; item < last; ++item) samples.push_back({item, 0, true});
    const nb::gil_scoped_release release;
    constexpr std::int64_t share_nbytes = 1 << 20;
    const auto share = static_cast<std::size_t>(std::max<std::int64_t>(1, share_nbytes / std::max<std::int64_t>(row_nbytes, 1)));
    const std::atomic<bool> stop{false};
    in_parallel((samples.size() + share - 1) / share, n_threads, [&](std::size_t k) {
        arranger.fill(samples, k * share, std::min(samples.size(), (k + 1) * share), 0, target, nullptr, columns, {}, 0, stop);
    });
}

struct Epoch {
    Order order;
    u64 key;
};

std::shared_ptr<Epoch> make_epoch(std::uint64_t seed, std::uint64_t epoch, int shuffle, std::int64_t block,
                                  std::int64_t blocks_mixed, std::int64_t n_samples, std::int64_t first, std::int64_t rank,
                                  std::int64_t world, std::int64_t n_local, std::int64_t batch,
                                  const std::optional<Array<std::int64_t, 1>> &ends,
                                  const std::optional<Array<std::int64_t, 1>> &listed,
                                  const std::optional<Array<std::uint32_t, 1>> &listed_crop) {
    expect(shuffle >= 0 && shuffle <= Shuffled::kBlocked, "epoch: unknown shuffle");
    expect(block > 0 && blocks_mixed > 0 && batch > 0 && world > 0 && rank >= 0 && rank < world && first >= 0 && n_samples >= 0,
           "epoch: number out of range");
    const u64 key = epoch_key(seed, epoch);
    Order order{.shuffle = Shuffle(shuffle, n_samples, key, block, blocks_mixed),
                .n_samples = n_samples,
                .first = first,
                .rank = rank,
                .world = world,
                .n_local = n_local,
                .batch = batch,
                .ends = ends ? to_vector(*ends) : std::vector<std::int64_t>{},
                .listed = listed ? to_vector(*listed) : std::vector<std::int64_t>{},
                .listed_crop = listed_crop ? to_vector(*listed_crop) : std::vector<std::uint32_t>{}};
    expect(n_local >= 0 && (n_local == 0 || n_samples > 0) && batch <= INT64_MAX / 2, "epoch: number out of range");
    expect(!ends || (is_rising(order.ends) && (order.ends.empty() ? 0 : order.ends.back()) == n_local),
           "epoch: expected ends of batches up to n_local");
    expect(order.listed.size() == order.listed_crop.size(), "epoch: expected one crop number per listed item");
    expect(!listed || static_cast<std::int64_t>(order.listed.size()) == n_samples, "epoch: expected n_samples listed items");
    return std::make_shared<Epoch>(Epoch{std::move(order), key});
}

nb::object epoch_samples(const Epoch &epoch, const Windows &windows, std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> items, crops;
    std::vector<std::uint8_t> valid;
    const auto locate = [&](std::int64_t sample) { return windows.locate(sample); };
    for (std::int64_t i = begin; i < end; ++i) {
        const Sample sample = epoch.order.at(i, locate);
        items.push_back(sample.item);
        crops.push_back(sample.crop);
        valid.push_back(sample.valid);
    }
    return nb::make_tuple(to_numpy(std::move(items)), to_numpy(std::move(crops)), to_numpy(std::move(valid)));
}

nb::object epoch_starts(const Epoch &epoch, const Windows &windows, const Array<std::int64_t, 1> &items,
                         const Array<std::uint32_t, 1> &crops, const Array<std::int64_t, 2> &shapes) {
    const std::size_t n = items.size(), ndim = shapes.shape(1);
    expect(crops.size() == n && shapes.shape(0) == n && ndim <= kMaxNdim, "starts: columns differ in length");
    std::vector<std::int64_t> starts(n * ndim);
    for (std::size_t i = 0; i < n; ++i)
        windows.starts(epoch.key, items.data()[i], crops.data()[i], static_cast<int>(ndim), shapes.data() + i * ndim,
                       starts.data() + i * ndim);
    return to_numpy(std::move(starts), {n, ndim});
}

nb::object philox_words(std::uint64_t key, const Array<std::uint32_t, 2> &counters) {
    expect(counters.shape(1) == 4, "philox: expected counters of four words");
    std::vector<std::uint32_t> out;
    for (std::size_t i = 0; i < counters.shape(0); ++i) {
        const std::uint32_t *c = counters.data() + 4 * i;
        const Words words = philox(key, {{c[0], c[1], c[2], c[3]}});
        out.insert(out.end(), words.w, words.w + 4);
    }
    return to_numpy(std::move(out), {counters.shape(0), 4});
}

nb::object coalesce_spans(const Array<std::uint32_t, 1> &files, const Array<std::int64_t, 1> &offsets,
                          const Array<std::int64_t, 1> &nbytes, std::int64_t max_gap, std::int64_t max_nbytes) {
    std::vector<Span> spans;
    for (std::size_t i = 0; i < files.size(); ++i)
        spans.push_back({files.data()[i], 0, 0, offsets.data()[i], nbytes.data()[i]});
    nb::list reads;
    for (const Read &read : coalesce(spans, max_gap, max_nbytes))
        reads.append(nb::make_tuple(read.file, read.offset, read.nbytes, read.last - read.first));
    return reads;
}

// ---- Running ------------------------------------------------------------------------------------------------

// A child process finds no threads and perhaps locked locks: what it inherits is leaked, not destroyed.
template <class T, class... Args>
std::shared_ptr<T> make_process_bound(Args &&...args) {
    return {new T(std::forward<Args>(args)...), [process = Process()](T *object) {
                if (!process.is_other()) delete object;
            }};
}

// Runs with a read that has not returned: they are destroyed when it has, or never.
class StuckRuns {
  public:
    void add(Run *run) {
        const std::lock_guard guard(mutex_);
        runs_.push_back(run);
    }

    void sweep() {
        const std::lock_guard guard(mutex_);
        std::erase_if(runs_, [](Run *run) {
            if (!run->finish(std::chrono::nanoseconds(0))) return false;
            delete run;
            return true;
        });
    }

  private:
    std::mutex mutex_;
    std::vector<Run *> runs_;
};

StuckRuns &stuck_runs() {
    static auto *runs = new StuckRuns;  // threads may outlive what is destroyed at exit
    return *runs;
}

template <class... Args>
std::shared_ptr<Run> make_run_shared(Args &&...args) {
    return {new Run(std::forward<Args>(args)...), [process = Process()](Run *run) {
                if (process.is_other()) return;
                run->close();
                if (run->is_stuck()) stuck_runs().add(run);
                else delete run;
            }};
}

struct PyRun {
    std::shared_ptr<Run> run;
    std::vector<Output> outputs;
    std::shared_ptr<BatchMemory> others;  // of all columns but x: keeping labels does not keep windows
    std::size_t others_nbytes = 0;        // they lie before x
    std::shared_ptr<const Arranger> arranger;

    // Wait without the GIL; Ctrl-C gets through.
    Filled wait() {
        Filled filled{};
        if (run->process().is_other())
            throw std::runtime_error("loader: expected use in process " + std::to_string(run->process().pid()) +
                                     " that made it, got process " + std::to_string(::getpid()) +
                                     "; make a DataLoader after the fork, or use spawn");
        if (run->is_ready() && run->next(filled, 0)) return filled;
        for (;;) {
            bool got;
            {
                const nb::gil_scoped_release release;
                got = run->next(filled, 100'000'000);
            }
            if (got) return filled;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
    }

    std::vector<std::int64_t> shape_of(const Output &output, const Filled &filled) const {
        std::vector<std::int64_t> shape{filled.n};
        const auto append = [&](const std::vector<std::int64_t> &row) { shape.insert(shape.end(), row.begin(), row.end()); };
        if (!output.is_window) append(output.row_shape);
        else if (!arranger) append({filled.extent, filled.extent + filled.ndim});
        else if (output.field == Output::kMask) append(arranger->mask_shape(filled.extent));
        else append(arranger->shape(static_cast<std::size_t>(output.field), filled.extent));
        return shape;
    }

    // Whether a tensor lies with the windows, and not in memory of its own.
    bool is_with_windows(const Output &output) const { return output.offset >= static_cast<std::int64_t>(others_nbytes); }

    // One DLPack capsule per output; None at the end. The tensors own the memory together.
    nb::object next() {
        const Filled filled = wait();
        if (filled.block == nullptr) return nb::none();
        const auto n_windows = std::count_if(outputs.begin(), outputs.end(), [&](const Output &o) { return is_with_windows(o); });
        Block *own = nullptr;
        if (static_cast<std::size_t>(n_windows) < outputs.size()) {
            try {
                own = others->take();
            } catch (...) {
                filled.block->drop_reference();
                throw;
            }
            std::memcpy(own->data, filled.block->data, others_nbytes);
            own->references.store(static_cast<int>(outputs.size()) - static_cast<int>(n_windows), std::memory_order_relaxed);
        }
        if (n_windows == 0) filled.block->drop_reference();  // nothing looks at it
        else filled.block->references.store(static_cast<int>(n_windows), std::memory_order_relaxed);
        nb::list capsules;
        for (const Output &output : outputs) {
            Block *block = is_with_windows(output) ? filled.block : own;
            capsules.append(dlpack_capsule(make_tensor(block, block->data + output.offset, output.dtype, shape_of(output, filled))));
        }
        return capsules;
    }

    // (slab address, block, windows in it, end of packed bytes, shapes of the outputs); None at the end. Where some were left out there are
    // more windows in it than in the batch. The slab is the caller's until release(block).
    nb::object next_slab() {
        const Filled filled = wait();
        if (filled.block == nullptr) return nb::none();
        nb::list shapes;
        for (const Output &output : outputs) shapes.append(nb::cast(shape_of(output, filled)));
        return nb::make_tuple(reinterpret_cast<std::uintptr_t>(filled.block->data),
                              reinterpret_cast<std::uintptr_t>(filled.block), filled.n_rows, filled.packed_end, shapes);
    }

    void release(std::uintptr_t block) {
        reinterpret_cast<Block *>(block)->drop_reference();
        run->slab_returned();
    }
};

std::shared_ptr<BatchMemory> make_memory(std::size_t nbytes, std::size_t max_idle, const std::vector<std::uintptr_t> &slabs) {
    if (slabs.empty()) return std::make_shared<BatchMemory>(nbytes, max_idle);
    std::vector<std::byte *> pointers;
    for (const std::uintptr_t address : slabs) pointers.push_back(reinterpret_cast<std::byte *>(address));
    return std::make_shared<BatchMemory>(nbytes, pointers);
}

std::shared_ptr<Labels> make_labels(const nb::bytes &bytes, std::size_t row_nbytes) {
    auto labels = std::make_shared<Labels>();
    const auto *begin = reinterpret_cast<const std::byte *>(bytes.c_str());
    labels->bytes.assign(begin, begin + bytes.size());
    labels->row_nbytes = row_nbytes;
    return labels;
}

PyRun *make_run(std::shared_ptr<Workers> workers, std::shared_ptr<Reader> reader, std::shared_ptr<Windows> windows,
                const Epoch &epoch, std::shared_ptr<BatchMemory> memory, std::shared_ptr<Labels> labels,
                const std::vector<std::int64_t> &columns,
                const std::vector<std::tuple<std::int64_t, int, std::optional<std::vector<std::int64_t>>, int>> &outputs, int depth,
                int batches_per_claim, int chunks_per_batch, bool consumer_helps, int on_error, std::int64_t max_errors,
                int delivery, std::int64_t room, int to, std::size_t others_nbytes, std::shared_ptr<Arranger> arranger,
                const std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> &fields,
                const std::vector<std::int64_t> &told) {
    if (workers->process().is_other())
        throw std::runtime_error("loader: expected use in the process that made it, got a forked child; make a DataLoader "
                                 "after the fork, or use spawn");
    expect(depth > 0 && batches_per_claim > 0 && chunks_per_batch > 0 && (batches_per_claim == 1 || chunks_per_batch == 1),
           "run: number out of range");
    expect(on_error >= 0 && on_error <= static_cast<int>(OnError::replace), "run: unknown on_error");
    expect(delivery >= 0 && delivery <= static_cast<int>(Delivery::listed), "run: unknown delivery");
    RunOptions options{depth, batches_per_claim, chunks_per_batch, consumer_helps, static_cast<OnError>(on_error), max_errors,
                       static_cast<Delivery>(delivery), item_nbytes(to_dtype(to)), room};
    options.arranging.arranger = arranger;
    for (const auto &[x, table, pads] : fields) options.arranging.fields.push_back({x, table, pads});
    expect(told.size() == 4, "run: expected the offsets of four columns");
    options.arranging.told = {columns.size() > 4 ? columns[4] : -1, told[0], told[1], told[2], told[3]};
    check_windows(reader->catalog(), *windows, epoch.order);
    expect(!labels || labels->bytes.size() == labels->row_nbytes * static_cast<std::size_t>(reader->catalog().n_items()),
           "run: expected one row of labels per item");
    expect(columns.size() == 9, "run: expected the offsets of nine columns");
    stuck_runs().sweep();
    auto run = std::make_unique<PyRun>();
    for (const auto &[offset, dtype, row_shape, field] : outputs)
        run->outputs.push_back({offset, to_dtype(dtype), !row_shape, row_shape.value_or(std::vector<std::int64_t>{}), field});
    const std::size_t label_nbytes = labels ? labels->row_nbytes : 0;
    if (arranger)
        check_arranged(options.arranging, epoch.order, memory->nbytes(), static_cast<std::int64_t>(label_nbytes), columns, run->outputs, room);
    else
        check_outputs(*reader, *windows, epoch.order, memory->nbytes(), columns, run->outputs, label_nbytes, options);
    run->others_nbytes = others_nbytes;
    run->arranger = std::move(arranger);
    expect(others_nbytes <= memory->nbytes(), "run: expected other columns within the batch memory");
    for (const Output &output : run->outputs) {
        if (output.is_window || output.offset >= static_cast<std::int64_t>(others_nbytes)) continue;
        expect(output.offset >= 0, "run: negative number");
    }
    run->others = std::make_shared<BatchMemory>(std::max<std::size_t>(run->others_nbytes, 1), static_cast<std::size_t>(depth) + 1);
    run->run = make_run_shared(std::move(workers), std::move(reader), std::move(windows), std::move(labels),
                               epoch.order, epoch.key, std::move(memory),
                               Columns{columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], columns[6],
                                       columns[7], columns[8]},
                               options);
    return run.release();
}

// ---- NPY headers --------------------------------------------------------------------------------------------

nb::object scan_npy(const nb::bytes &paths, const Array<std::int64_t, 1> &ends, int n_threads) {
    std::vector<NpyHeader> headers;
    {
        const Paths all = make_paths(paths, ends);
        const nb::gil_scoped_release release;
        headers = read_npy_headers(all, n_threads);
    }
    const std::size_t n = headers.size();
    std::size_t max_ndim = 0;
    for (const NpyHeader &header : headers) max_ndim = std::max(max_ndim, header.shape.size());
    std::vector<std::int32_t> status(n), error(n), version(n), ndim(n);
    std::vector<std::int64_t> nbytes(n), mtime(n), offset(n), shape(n * max_ndim);
    std::vector<std::uint8_t> fortran(n), descr(n * 16);
    nb::dict texts;
    std::unordered_map<const std::string *, nb::object> shared;
    for (std::size_t i = 0; i < n; ++i) {
        const NpyHeader &header = headers[i];
        status[i] = static_cast<std::int32_t>(header.status);
        error[i] = header.error;
        version[i] = header.major * 256 + header.minor;
        ndim[i] = static_cast<std::int32_t>(header.shape.size());
        nbytes[i] = header.file_nbytes;
        mtime[i] = header.mtime_ns;
        offset[i] = header.data_offset;
        fortran[i] = header.fortran;
        std::copy(header.shape.begin(), header.shape.end(), shape.begin() + static_cast<std::ptrdiff_t>(i * max_ndim));
        std::copy_n(header.descr.begin(), std::min<std::size_t>(header.descr.size(), 16), descr.begin() + static_cast<std::ptrdiff_t>(i * 16));
        if (header.status != NpyHeader::Status::other) continue;
        nb::object &text = shared[header.text.get()];
        if (!text.is_valid()) text = nb::bytes(header.text->data(), header.text->size());
        texts[nb::int_(i)] = text;
    }
    nb::dict columns;
    columns["status"] = to_numpy(std::move(status));
    columns["error"] = to_numpy(std::move(error));
    columns["version"] = to_numpy(std::move(version));
    columns["ndim"] = to_numpy(std::move(ndim));
    columns["nbytes"] = to_numpy(std::move(nbytes));
    columns["mtime_ns"] = to_numpy(std::move(mtime));
    columns["offset"] = to_numpy(std::move(offset));
    columns["shape"] = to_numpy(std::move(shape), {n, max_ndim});
    columns["fortran"] = to_numpy(std::move(fortran));
    columns["descr"] = to_numpy(std::move(descr), {n, 16});
    columns["texts"] = texts;
    return columns;
}

nb::object stat_paths(const nb::bytes &paths, const Array<std::int64_t, 1> &ends, int n_threads) {
    std::vector<std::int64_t> nbytes(ends.size()), mtime(ends.size());
    {
        const Paths all = make_paths(paths, ends);
        const nb::gil_scoped_release release;
        stat_files(all, n_threads, nbytes.data(), mtime.data());
    }
    return nb::make_tuple(to_numpy(std::move(nbytes)), to_numpy(std::move(mtime)));
}

void place_box(std::uintptr_t dst, std::uintptr_t src, int from, int to, const std::vector<std::int64_t> &shape,
               const std::vector<std::int64_t> &dst_stride, const std::vector<std::int64_t> &src_stride, bool swap,
               const std::optional<std::tuple<double, std::uintptr_t, int>> &affine) {
    expect(shape.size() <= kMaxNdim && dst_stride.size() == shape.size() && src_stride.size() == shape.size(),
           "place: expected one stride per axis on both sides");
    expect(find_move(to_dtype(from), to_dtype(to)) != nullptr, "place: complex values have no real form");
    expect(!affine || find_scale(to_dtype(from), to_dtype(to)) != nullptr, "place: only real values are scaled, and to a floating type");
    Box box;
    Scaling scaling;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) box.append(shape[axis], src_stride[axis], dst_stride[axis]);
    const nb::gil_scoped_release release;
    if (affine) {
        const auto [scale, channels, axis] = *affine;
        scaling = {true, scale, {}};
        const auto *pairs = reinterpret_cast<const double *>(channels);
        const std::int64_t n = axis < 0 ? 1 : box.shape[axis];
        if (pairs != nullptr) scaling.channels.assign(pairs, pairs + 2 * n);
        box.channel = axis;
    }
    const Shift shift = simplify(box);
    Placer(to_dtype(from), to_dtype(to), scaling)(reinterpret_cast<std::byte *>(dst) + shift.dst,
                                                  reinterpret_cast<const std::byte *>(src) + shift.src, box, swap);
}

// Paths are bytes; Python keeps those that are not UTF-8 as surrogates.
nb::object decode(const std::string &text) {
    return nb::steal(PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

void raise_read_error(const ReadError &error) {
    const nb::object type = nb::module_::import_("gpuload.errors").attr("ReadError");
    const nb::object made = type(decode(error.what()), "errno"_a = error.code, "filename"_a = decode(error.path));
    PyErr_SetObject(type.ptr(), made.ptr());
}

}  // namespace

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // an epoch in progress at exit is no leak
    nb::register_exception_translator([](const std::exception_ptr &p, void *) {
        try {
            std::rethrow_exception(p);
        } catch (const ReadError &error) {
            raise_read_error(error);
        }
    });

    nb::class_<Files>(m, "Files", "The files of a source: descriptors and maps within bounds.")
        .def(nb::new_(&make_files), "paths"_a, "ends"_a, "sizes"_a, "max_descriptors"_a, "max_maps"_a,
             "memory"_a = std::vector<std::uintptr_t>{}, "owner"_a.none() = nb::none(),
             "`memory` has an address for each file that is memory and no file, 0 for the others; `owner` keeps it.")
        .def("resident_share",
             [](Files &files, const std::vector<std::pair<std::uint32_t, std::int64_t>> &places) {
                 for (const auto &place : places) expect(place.first < files.size(), "files: no such file");
                 const nb::gil_scoped_release release;
                 return files.resident_share(places);
             }, "places"_a)
        .def("read_all", &read_requests, "requests"_a, "address"_a, "nbytes"_a, "n_threads"_a,
             "Read rows of (file, offset, nbytes, byte of the memory at `address`), which has `nbytes`.")
        .def_prop_ro("is_memory", &Files::is_all_memory)
        .def_prop_ro("open_descriptors", &Files::open_descriptors)
        .def_prop_ro("kept_maps", &Files::kept_maps)
        .def_prop_ro("is_out_of_maps", &Files::is_out_of_maps)
        .def_prop_ro("read_nbytes", [](const Files &files) { return files.count.nbytes.load(); })
        .def_prop_ro("read_requests", [](const Files &files) { return files.count.requests.load(); });

    nb::class_<Resident>(m, "Resident", "Memory of the host that is filled once and then read like a file.")
        .def(nb::init<std::size_t>(), "nbytes"_a)
        .def_prop_ro("address", [](const Resident &memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); })
        .def_prop_ro("nbytes", &Resident::nbytes);

    nb::class_<Catalog>(m, "Catalog", "Where every array lies and how.")
        .def(nb::new_(&make_catalog), "file"_a, "offset"_a, "shape"_a, "flags"_a, "dtype"_a, "record_nbytes"_a,
             "element_offset"_a, "sub_shape"_a, "sample_axis"_a, "selected"_a.none())
        .def_prop_ro("n_items", &Catalog::n_items)
        .def("locate", [](const Catalog &catalog, std::int64_t item) {
            expect(item >= 0 && item < catalog.n_items(), "catalog: no such item");
            const auto [array, row] = catalog.locate(item);
            return nb::make_tuple(array, row);
        }, nb::sig("def locate(self, item: int) -> tuple[int, int]"));

    nb::class_<Reader>(m, "Reader", "Windows of items, read from files into batches.")
        .def(nb::new_(&make_reader), "catalog"_a, "files"_a, "to"_a, "maps"_a, "request_ns"_a, "bytes_per_ns"_a, "max_gap"_a,
             "max_nbytes"_a, "is_cold"_a = false, "raw"_a = false, "scaling"_a.none() = nb::none(),
             "`scaling`: the scale, and mean and std of each channel behind one another; none for 0 and 1.")
        .def_prop_ro("is_uniform", [](const Reader &reader) { return reader.catalog().is_uniform; })
        .def("read", &read_item, "item"_a, "to"_a)
        .def("split", &split_window, "windows"_a, "item"_a);

    nb::class_<Windows>(m, "Windows", "Which box of an item each sample shows.")
        .def(nb::new_(&make_windows), "kind"_a, "size"_a, "stride"_a, "per_item"_a, "ends"_a.none(),
             "may_stick_out"_a = false);

    nb::class_<Fit>(m, "Fit", "How windows fill samples of one shape.")
        .def(nb::new_(&make_fit), "to"_a, "multiple"_a, "size"_a, "align"_a, "shrinks"_a, "flips"_a, "turn_from"_a, "turn_to"_a);

    nb::class_<Form>(m, "Form", "How one field is delivered.")
        .def(nb::new_(&make_form), "reader"_a, "stored"_a.none(), "axes"_a, "order"_a, "to"_a, "resized"_a, "resize_mode"_a,
             "pad_mode"_a, "pad_value"_a, "channel_axis"_a, "scaling"_a.none());

    nb::class_<Arranger>(m, "Arranger", "Puts windows of several fields into the rows of a batch.")
        .def(nb::new_(&make_arranger), "forms"_a, "windows"_a, "fit"_a, "masked"_a, "is_packed"_a)
        .def("fill", &fill_rows, "addresses"_a, "nbytes"_a, "first"_a, "last"_a, "n_threads"_a,
             "Fill rows [first, last) of one array for each field, with one row for each item.")
        .def_prop_ro("room", &Arranger::room, "Bytes that a sample needs at most where windows are packed.");

    nb::class_<Epoch>(m, "Epoch", "Which sample stands where in an epoch.")
        .def(nb::new_(&make_epoch), "seed"_a, "epoch"_a, "shuffle"_a, "block"_a, "blocks_mixed"_a, "n_samples"_a, "first"_a,
             "rank"_a, "world"_a, "n_local"_a, "batch"_a, "ends"_a.none(), "listed"_a.none(), "listed_crop"_a.none())
        .def_prop_ro("n_batches", [](const Epoch &epoch) { return epoch.order.n_batches(); })
        .def_prop_ro("key", [](const Epoch &epoch) { return epoch.key; })
        .def_prop_ro("shuffled", [](const Epoch &epoch) {
            return nb::bytes(reinterpret_cast<const char *>(&epoch.order.shuffle.data()), sizeof(Shuffled));
        })
        .def("samples", &epoch_samples, "windows"_a, "begin"_a, "end"_a,
             nb::sig("def samples(self, windows: Windows, begin: int, end: int) -> "
                     "tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.uint8]]"))
        .def("starts", &epoch_starts, "windows"_a, "items"_a, "crops"_a, "shapes"_a);

    nb::class_<BatchMemory>(m, "BatchMemory", "Memory that batches are filled in.")
        .def(nb::new_(&make_memory), "nbytes"_a, "max_idle"_a, "slabs"_a)
        .def_prop_ro("n_blocks", &BatchMemory::n_blocks)
        .def_prop_ro("nbytes", &BatchMemory::nbytes);

    nb::class_<Labels>(m, "Labels", "One row of label bytes per item.").def(nb::new_(&make_labels), "rows"_a, "row_nbytes"_a);

    nb::class_<Workers>(m, "Workers", "Threads that fill batches.")
        .def(nb::new_([](int n_threads) { return make_process_bound<Workers>(n_threads); }), "n_threads"_a)
        .def_prop_ro("n_threads", &Workers::n_threads);

    nb::class_<PyRun>(m, "Run", "One epoch in progress.")
        .def(nb::new_(&make_run), "workers"_a, "reader"_a, "windows"_a, "epoch"_a, "memory"_a, "labels"_a.none(), "columns"_a,
             "outputs"_a, "depth"_a, "batches_per_claim"_a, "chunks_per_batch"_a, "consumer_helps"_a, "on_error"_a, "max_errors"_a, "delivery"_a, "room"_a,
             "to"_a, "others_nbytes"_a, "arranger"_a.none(), "fields"_a, "told"_a)
        .def("next", &PyRun::next, nb::sig("def next(self) -> list[object] | None"))
        .def("next_slab", &PyRun::next_slab,
             nb::sig("def next_slab(self) -> tuple[int, int, int, int, list[list[int]]] | None"))
        .def("release", &PyRun::release, "block"_a)
        .def("close", [](PyRun &self) {
            const nb::gil_scoped_release release;
            self.run->close();
        })
        .def("failures", [](const PyRun &self) {
            nb::list failures;
            if (self.run->process().is_other()) return failures;
            for (const Failure &failure : self.run->failures())
                failures.append(nb::make_tuple(failure.batch, failure.item, failure.crop, decode(failure.message)));
            return failures;
        }, nb::sig("def failures(self) -> list[tuple[int, int, int, str]]"))
        .def_prop_ro("useful_nbytes", [](const PyRun &self) { return self.run->useful_nbytes(); })
        .def_prop_ro("is_stuck", [](const PyRun &self) { return self.run->is_stuck(); })
        .def_prop_ro("fill_ns", [](const PyRun &self) { return self.run->fill_ns(); })
        .def_prop_ro("wait_ns", [](const PyRun &self) { return self.run->wait_ns(); });

    m.def("scan_npy", &scan_npy, "paths"_a, "ends"_a, "n_threads"_a,
          nb::sig("def scan_npy(paths: bytes, ends: NDArray[numpy.int64], n_threads: int) -> dict[str, object]"),
          "Headers of NPY files as columns, read on several threads without the GIL.");
    m.def("stat_paths", &stat_paths, "paths"_a, "ends"_a, "n_threads"_a,
          nb::sig("def stat_paths(paths: bytes, ends: NDArray[numpy.int64], n_threads: int) -> "
                  "tuple[NDArray[numpy.int64], NDArray[numpy.int64]]"), "Sizes and modification times; -1 for what is not there.");
    m.def("philox", &philox_words, "key"_a, "counters"_a);
    m.def("coalesce", &coalesce_spans, "files"_a, "offsets"_a, "nbytes"_a, "max_gap"_a, "max_nbytes"_a);
    // Parameters are those of devices/params.py, by address.
    m.def("pad_boxes", [](std::uintptr_t params) {
        const nb::gil_scoped_release release;
        pad_boxes(*reinterpret_cast<const PadParams *>(params));
    }, "params"_a);
    m.def("resize_boxes", [](std::uintptr_t params, int from, int to) {
        const Dtype of[] = {to_dtype(from), to_dtype(to)};
        const nb::gil_scoped_release release;
        resize_boxes(*reinterpret_cast<const ResizeParams *>(params), of[0], of[1]);
    }, "params"_a, "from_dtype"_a, "to_dtype"_a);
    m.def("unshuffle_chunks", [](std::uintptr_t params) {
        const nb::gil_scoped_release release;
        unshuffle_chunks(*reinterpret_cast<const UnshuffleParams *>(params));
    }, "params"_a);
    m.def("place", &place_box, "dst"_a, "src"_a, "from_dtype"_a, "to_dtype"_a, "shape"_a, "dst_stride"_a, "src_stride"_a, "swap"_a,
          "affine"_a = nb::none());
}
