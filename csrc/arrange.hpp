// Put windows of several fields into the rows of a batch: cut, resized, turned, cast, scaled and padded.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fit.hpp"
#include "kernels.hpp"
#include "reader.hpp"

namespace gpuload {

// How one field is delivered.
struct Form {
    std::shared_ptr<const Reader> reader;   // delivers elements of `to`, scaled; or what is packed
    std::shared_ptr<const Reader> stored;   // delivers stored elements, where windows are resized
    std::vector<int> axes;                  // which axis of the first field each axis is; -1: its own, kept whole
    std::vector<int> order;                 // axis j of a sample is axis order[j] of an item
    Dtype to;
    Dtype resized;                          // what windows are resized as
    int resize_mode = -1;                   // of kernels/resize.h; -1: they are not resized
    int pad_mode = 0;                       // of kernels/pad.h; -1: memory is as it is to be
    std::array<std::byte, 16> pad_value{};  // the bytes of an element
    int channel_axis = -1;                  // of an item: what `scaling` counts channels along
    Scaling scaling;
};

// Where a batch has the windows of a field; where they are packed, the bytes of all fields and the tables of this one.
// In bytes of its block.
struct FieldColumns {
    std::int64_t x = 0, table = -1, pads = -1;
};

// What is told about samples, beside their windows, in bytes of the block; -1 for what is not wanted.
struct FitColumns {
    std::int64_t start = -1;    // where the window begins in its item
    std::int64_t mask = -1;     // true on data, along the axes that are padded
    std::int64_t lengths = -1;  // extents of the data in the first field
    std::int64_t flips = -1, turns = -1;
};

// What became of some rows.
struct Filling {
    std::int64_t packed_end = 0;     // of the bytes that were packed
    std::int64_t useful_nbytes = 0;  // stored bytes of windows
};

class Arranger {
  public:
    // Windows are those of the first field. `masked` says which axes of a sample the mask has; of the others it has one.
    Arranger(std::vector<Form> forms, std::shared_ptr<const Windows> windows, Fit fit, std::vector<std::uint8_t> masked,
             bool is_packed);

    std::size_t n_fields() const { return forms_.size(); }
    const Form &form(std::size_t field) const { return forms_[field]; }
    const Fit &fit() const { return fit_; }
    bool is_packed() const { return is_packed_; }

    // The shape of the samples of a batch, along the axes of the first field. `key` as of the epoch.
    void target(std::span<const Sample> batch, u64 key, std::int64_t *target) const;

    // Whether a sample fits a batch of samples of this shape.
    bool fits(const Sample &sample, u64 key, const std::int64_t *target) const;

    // The largest shape that any batch can have, along the axes of the first field.
    const std::int64_t *largest() const { return largest_.data(); }

    // The shape of a row of a field, or of the mask, in the order it is delivered in.
    std::vector<std::int64_t> shape(std::size_t field, const std::int64_t *target) const;
    std::vector<std::int64_t> mask_shape(const std::int64_t *target) const;
    std::int64_t row_nbytes(std::size_t field, const std::int64_t *target) const;

    // Bytes that a sample needs at most where windows are packed.
    std::int64_t room() const { return room_; }

    // Fill rows [first, last) of a batch, in the block at `data`. Packed windows lie `room` apart, or where that is 0,
    // close together. Throws as Reader::fill.
    Filling fill(std::span<const Sample> batch, std::size_t first, std::size_t last, u64 key, const std::int64_t *target,
                 std::byte *data, const std::vector<FieldColumns> &columns, const FitColumns &told, std::int64_t room,
                 const std::atomic<bool> &stop) const;

    // Numbers of a row of the tables. Of windows: where one is packed, where it goes in the batch, its extents and its
    // strides in the packed bytes, in the order of the sample. Of padding: where data begin in the sample, their extents.
    std::int64_t table_length(std::size_t field) const { return 2 + 2 * static_cast<std::int64_t>(forms_[field].order.size()); }
    std::int64_t pads_length(std::size_t field) const { return 2 * static_cast<std::int64_t>(forms_[field].order.size()); }

    ~Arranger();
    Arranger(const Arranger &) = delete;
    Arranger &operator=(const Arranger &) = delete;

  private:
    struct Spot;
    struct Steady;

    std::int64_t n_items() const { return forms_[0].reader->catalog().n_items(); }
    bool is_uniform() const;
    void look_at_sizes();
    void find_steady();
    bool is_steady() const;
    Filling fill_steady(std::span<const Sample> samples, std::size_t first, u64 key, std::byte *data,
                        const std::vector<FieldColumns> &columns, const FitColumns &told, const std::atomic<bool> &stop) const;
    Shown show(const Sample &sample, u64 key) const;
    View view(std::size_t field, std::int64_t item) const { return forms_[field].reader->catalog().view(item); }
    Spot spot(std::size_t field, const View &view, const Shown &shown, const std::int64_t *target) const;
    Dtype packed(const Form &form) const { return form.resize_mode >= 0 ? form.resized : form.reader->to(); }
    std::int64_t packed_nbytes(std::size_t field, const View &view, const Shown &shown) const;
    void place(std::size_t field, std::span<const Spot> spots, std::byte *rows, std::int64_t row_nbytes,
               const std::atomic<bool> &stop) const;
    void find_places(std::span<const Sample> batch, std::size_t first, std::size_t last, u64 key, const std::vector<Shown> &shown,
                     std::int64_t room, std::vector<std::int64_t> &places) const;
    void pack(std::size_t field, std::span<const Spot> spots, const std::vector<std::int64_t> &places, std::size_t first,
              std::int64_t row_nbytes, std::byte *data, const FieldColumns &columns, const std::atomic<bool> &stop) const;
    void resize(const Form &form, const Spot &spot, std::byte *to, const std::atomic<bool> &stop) const;
    void pad(const Form &form, const Spot &spot, std::byte *row) const;
    void write_tables(std::size_t field, const Spot &spot, std::int64_t row, std::int64_t row_nbytes, std::int64_t at,
                      std::byte *data, const FieldColumns &columns) const;
    void tell(const Spot &spot, const Shown &shown, std::int64_t row, std::byte *data, const FitColumns &told) const;

    std::vector<Form> forms_;
    std::vector<Placer> resized_;  // from what windows are resized as
    std::shared_ptr<const Windows> windows_;
    Fit fit_;
    std::vector<std::uint8_t> masked_;
    bool is_packed_;
    std::array<std::int64_t, kMaxNdim> largest_{};
    std::int64_t room_ = 0;
    std::vector<Steady> steady_;  // of each field, where all samples lie alike
};

}  // namespace gpuload
