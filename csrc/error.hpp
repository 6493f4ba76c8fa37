// What goes wrong while reading a file, as Python will raise it.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>

namespace gpuload {

// Becomes gpuload.ReadError in Python: `code` is an errno or 0, `path` the file.
struct ReadError : std::runtime_error {
    ReadError(int error, std::string file, const std::string &text)
        : std::runtime_error(file + ": " + text), code(error), path(std::move(file)) {}

    static ReadError system(int error, const std::string &file, const std::string &doing) {
        return {error, file, doing + " failed, got \"" + std::strerror(error) + "\""};
    }

    int code;
    std::string path;
};

}  // namespace gpuload
