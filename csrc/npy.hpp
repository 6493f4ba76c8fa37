// Headers of NPY files, many at a time. Plain headers are understood here; whatever else is legal is left to Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "files.hpp"
#include "place.hpp"

namespace gpuload {

// What a file's header says. Format: numpy/lib/format.py, "NPY format version 1.0" to "3.0".
struct NpyHeader {
    enum class Status : std::int32_t {
        plain,         // all fields below are set
        other,         // legal as far as seen: `text` points to the dictionary for a full parser
        no_access,     // `error` holds the errno
        no_magic,      // the file does not begin with \x93NUMPY
        bad_version,   // `major`, `minor`
        cut,           // the file ends within its header; `data_offset` is where it should end, when known
        too_long,      // a header of more than kMaxHeader bytes
    };

    static constexpr std::int64_t kMaxHeader = 1 << 20;

    Status status = Status::no_access;
    int error = 0;
    int major = 0, minor = 0;
    std::int64_t file_nbytes = 0, mtime_ns = 0;
    std::int64_t data_offset = 0;
    bool fortran = false;
    std::string descr;  // such as "<f4"
    std::vector<std::int64_t> shape;
    std::shared_ptr<const std::string> text;  // files with the same header share it
};

// Sizes in bytes and modification times in ns; -1 for a file that cannot be reached.
void stat_files(const Paths &paths, int n_threads, std::int64_t *nbytes, std::int64_t *mtime_ns);

std::vector<NpyHeader> read_npy_headers(const Paths &paths, int n_threads);

// The dictionary of a header; false when it is anything but a plain one. Exposed for tests.
bool parse_npy_dictionary(const std::string &text, NpyHeader &header);

}  // namespace gpuload
