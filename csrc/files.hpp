// The files of a source: descriptors within a bound, positioned reads, kept maps.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "error.hpp"

namespace gpuload {

// Paths in one block of bytes: path i is [ends[i - 1], ends[i]).
class Paths {
  public:
    Paths(std::string bytes, std::vector<std::int64_t> ends) : bytes_(std::move(bytes)), ends_(std::move(ends)) {}

    std::size_t size() const { return ends_.size(); }
    std::string operator[](std::size_t i) const {
        const std::int64_t begin = i == 0 ? 0 : ends_[i - 1];
        return bytes_.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(ends_[i] - begin));
    }

  private:
    std::string bytes_;
    std::vector<std::int64_t> ends_;
};

// Bytes read or copied from maps, and read requests, by all readers of one set of files.
struct ReadCount {
    std::atomic<std::int64_t> nbytes{0};
    std::atomic<std::int64_t> requests{0};
};

// Memory of the host that is filled once and then read like a file.
class Resident {
  public:
    explicit Resident(std::size_t nbytes);  // throws std::bad_alloc
    ~Resident();
    Resident(const Resident &) = delete;
    Resident &operator=(const Resident &) = delete;

    std::byte *data() const { return data_; }
    std::size_t nbytes() const { return nbytes_; }

  private:
    std::byte *data_;
    std::size_t nbytes_;
};

// A part of a file, and where its bytes go.
struct Request {
    std::uint32_t file;
    std::int64_t offset, nbytes;
    std::byte *dst;
};

class Files {
  public:
    // `sizes` are the bytes of each file when it was scanned; a file of another size is an error when it is
    // opened. At most `max_descriptors` stay open and at most `max_maps` files stay mapped, by all objects of this
    // class together: both are limits of the process.
    //
    // `memory` has an address for each file that is memory and no file, nullptr for the others; it may be empty. `owner`
    // keeps that memory.
    Files(Paths paths, std::vector<std::int64_t> sizes, std::size_t max_descriptors, std::size_t max_maps,
          std::vector<const std::byte *> memory = {}, std::shared_ptr<const void> owner = nullptr);
    ~Files();
    Files(const Files &) = delete;
    Files &operator=(const Files &) = delete;

    // Read [offset, offset + nbytes) of a file to `dst`. Throws ReadError.
    void read(std::uint32_t file, std::int64_t offset, std::int64_t nbytes, std::byte *dst);

    // Carry out requests on `n_threads`. Throws the ReadError of one that failed, when all threads have stopped.
    void read_all(const std::vector<Request> &requests, int n_threads);

    // Begin to bring [offset, offset + nbytes) into the page cache; does not wait for it.
    void announce(std::uint32_t file, std::int64_t offset, std::int64_t nbytes);

    // The first byte of a file in memory, kept until this object dies; nullptr when no more may be mapped.
    // The map covers the whole file as it was scanned. Throws ReadError.
    const std::byte *map(std::uint32_t file) {
        const std::byte *begin = maps_[file].load(std::memory_order_acquire);
        return begin != nullptr ? begin : map_now(file);
    }

    // The same when it is mapped already, else nullptr.
    const std::byte *mapped(std::uint32_t file) const { return maps_[file].load(std::memory_order_acquire); }

    // The error of touching a mapped file that has become shorter since (SIGBUS).
    ReadError shrunk(std::uint32_t file) const;

    // Whether every one of them is memory.
    bool is_all_memory() const {
        return !memory_.empty() && std::find(memory_.begin(), memory_.end(), nullptr) == memory_.end();
    }

    std::string path(std::uint32_t file) const { return paths_[file]; }
    std::int64_t nbytes(std::uint32_t file) const { return sizes_[file]; }
    std::size_t size() const { return sizes_.size(); }
    std::size_t open_descriptors() const;
    std::size_t kept_maps() const { return kept_maps_.load(); }
    bool is_out_of_maps() const { return is_out_of_maps_.load(); }  // some files are read because no more may be mapped

    // Share of these (file, offset) bytes that the page cache holds.
    // Reads nothing from the device. -1 where the system cannot tell.
    double resident_share(const std::vector<std::pair<std::uint32_t, std::int64_t>> &places);

    ReadCount count;

  private:
    struct Descriptor {
        int fd = -1;
        int users = 0;
        std::list<std::uint32_t>::iterator place;
    };
    class Lease;

    bool is_memory(std::uint32_t file) const { return !memory_.empty() && memory_[file] != nullptr; }
    int open_checked(std::uint32_t file);
    int open_retrying(const std::string &path);
    bool close_one_idle();
    const std::byte *map_now(std::uint32_t file);
    [[noreturn]] void fail_short(std::uint32_t file, std::int64_t offset, std::int64_t nbytes, std::int64_t got);

    Paths paths_;
    std::vector<std::int64_t> sizes_;
    const std::vector<const std::byte *> memory_;
    const std::shared_ptr<const void> owner_;
    const std::size_t max_descriptors_, max_maps_;

    mutable std::mutex descriptors_mutex_;
    std::unordered_map<std::uint32_t, Descriptor> descriptors_;
    std::list<std::uint32_t> by_use_;  // most recent first

    std::unique_ptr<std::atomic<const std::byte *>[]> maps_;
    std::mutex maps_mutex_;
    std::atomic<std::size_t> kept_maps_{0};
    std::atomic<bool> is_out_of_maps_{false};
};

// Make SIGBUS reach the guard below; other handlers are called for faults that are not ours. Call before a run.
void install_bus_error_handler();

// Run `touch` with SIGBUS turned into a false return. `touch` must own nothing that needs a destructor: a page
// of a mapped file that is no longer there ends it at once.
bool without_bus_error(void (*touch)(void *), void *argument);

}  // namespace gpuload
