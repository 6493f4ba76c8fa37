#include "files.hpp"

#include "workers.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include <csetjmp>
#include <csignal>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace gpuload {
namespace {

// Of all sets of files in the process.
std::atomic<std::size_t> all_descriptors{0}, all_maps{0};

// A map of no bytes is not possible; an empty file shows this byte.
const std::byte kNothing{};

thread_local sigjmp_buf *bus_error_exit = nullptr;
struct sigaction previous_action;

void on_bus_error(int signal, siginfo_t *info, void *context) {
    static volatile sig_atomic_t forwarding = 0;
    if (bus_error_exit != nullptr) siglongjmp(*bus_error_exit, 1);
    if (forwarding) {  // the handler we called has called us: two that both came first would go on for ever
        ::signal(SIGBUS, SIG_DFL);
        return;
    }
    forwarding = 1;
    if (previous_action.sa_flags & SA_SIGINFO) {
        previous_action.sa_sigaction(signal, info, context);
    } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
        previous_action.sa_handler(signal);
    } else {  // not ours: die as without a handler when the instruction is tried again
        sigaction(SIGBUS, &previous_action, nullptr);
    }
    forwarding = 0;
}

}  // namespace

// Ours must be the innermost handler; another library may have set its own since the last call.
void install_bus_error_handler() {
    static std::mutex mutex;
    const std::lock_guard guard(mutex);
    struct sigaction now;
    if (sigaction(SIGBUS, nullptr, &now) != 0) return;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == &on_bus_error) return;
    previous_action = now;
    struct sigaction ours = {};
    ours.sa_sigaction = &on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, nullptr);
}

bool without_bus_error(void (*touch)(void *), void *argument) {
    struct Reset {
        ~Reset() { bus_error_exit = nullptr; }
    } reset;
    sigjmp_buf here;
    if (sigsetjmp(here, 0) != 0) return false;
    bus_error_exit = &here;
    touch(argument);
    return true;
}

// A descriptor in use: it is not closed before the lease ends.
class Files::Lease {
  public:
    Lease(Files &files, std::uint32_t file) : files_(files), file_(file) {
        {
            const std::lock_guard guard(files_.descriptors_mutex_);
            if (take()) return;
        }
        const int fd = files_.open_checked(file_);
        const std::lock_guard guard(files_.descriptors_mutex_);
        if (take()) {  // another thread was faster
            ::close(fd);
            return;
        }
        while (all_descriptors.load() >= files_.max_descriptors_ && files_.close_one_idle()) {}
        fd_ = fd;
        kept_ = all_descriptors.load() < files_.max_descriptors_;
        if (kept_) {
            all_descriptors.fetch_add(1);
            files_.by_use_.push_front(file_);
            files_.descriptors_[file_] = {fd_, 1, files_.by_use_.begin()};
        }
    }

    ~Lease() {
        if (!kept_) {
            ::close(fd_);
            return;
        }
        const std::lock_guard guard(files_.descriptors_mutex_);
        --files_.descriptors_[file_].users;
    }

    Lease(const Lease &) = delete;
    Lease &operator=(const Lease &) = delete;

    int fd() const { return fd_; }

  private:
    bool take() {
        const auto found = files_.descriptors_.find(file_);
        if (found == files_.descriptors_.end()) return false;
        ++found->second.users;
        files_.by_use_.splice(files_.by_use_.begin(), files_.by_use_, found->second.place);
        fd_ = found->second.fd;
        return true;
    }

    Files &files_;
    std::uint32_t file_;
    int fd_ = -1;
    bool kept_ = true;
};

Files::Files(Paths paths, std::vector<std::int64_t> sizes, std::size_t max_descriptors, std::size_t max_maps,
             std::vector<const std::byte *> memory, std::shared_ptr<const void> owner)
    : paths_(std::move(paths)),
      sizes_(std::move(sizes)),
      memory_(std::move(memory)),
      owner_(std::move(owner)),
      max_descriptors_(std::max<std::size_t>(max_descriptors, 1)),
      max_maps_(max_maps),
      maps_(new std::atomic<const std::byte *>[sizes_.size()]) {
    for (std::size_t i = 0; i < sizes_.size(); ++i)
        maps_[i].store(memory_.empty() ? nullptr : memory_[i], std::memory_order_relaxed);
}

Resident::Resident(std::size_t nbytes) : nbytes_(nbytes) {
    void *data = ::mmap(nullptr, std::max<std::size_t>(nbytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    ::madvise(data, nbytes, MADV_HUGEPAGE);  // windows lie all over it: fewer walks of the page tables
    data_ = static_cast<std::byte *>(data);
}

Resident::~Resident() { ::munmap(data_, std::max<std::size_t>(nbytes_, 1)); }

Files::~Files() {
    for (const auto &[file, descriptor] : descriptors_) ::close(descriptor.fd);
    all_descriptors.fetch_sub(descriptors_.size());
    all_maps.fetch_sub(kept_maps_.load());
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
        const std::byte *begin = maps_[i].load();
        if (begin != nullptr && begin != &kNothing && !is_memory(static_cast<std::uint32_t>(i)))
            ::munmap(const_cast<std::byte *>(begin), static_cast<std::size_t>(sizes_[i]));
    }
}

std::size_t Files::open_descriptors() const {
    const std::lock_guard guard(descriptors_mutex_);
    return descriptors_.size();
}

// Call with the mutex held. False when all are in use.
bool Files::close_one_idle() {
    for (auto it = by_use_.rbegin(); it != by_use_.rend(); ++it) {
        const auto found = descriptors_.find(*it);
        if (found->second.users > 0) continue;
        ::close(found->second.fd);
        by_use_.erase(std::next(it).base());
        descriptors_.erase(found);
        all_descriptors.fetch_sub(1);
        return true;
    }
    return false;
}

// The process may have used up its descriptors elsewhere: give up ours, then wait a little for others'.
int Files::open_retrying(const std::string &path) {
    using namespace std::chrono_literals;
    for (int attempt = 0;; ++attempt) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd >= 0 || (errno != EMFILE && errno != ENFILE && errno != EINTR)) return fd;
        if (errno == EINTR) continue;
        const int error = errno;
        bool closed = false;
        {
            const std::lock_guard guard(descriptors_mutex_);
            closed = close_one_idle();
        }
        if (attempt >= 200) {
            errno = error;
            return -1;
        }
        if (!closed) std::this_thread::sleep_for(5ms);
    }
}

int Files::open_checked(std::uint32_t file) {
    const std::string name = path(file);
    const int fd = open_retrying(name);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE)
            throw ReadError(errno, name, "expected a free file descriptor, got none in one second; raise `ulimit -n` "
                                         "or lower threads=");
        if (errno == ENOENT)
            throw ReadError(ENOENT, name, "expected the file that was there when the source was opened, got none; it "
                                          "was deleted or moved");
        throw ReadError::system(errno, name, "opening the file");
    }
    struct stat status;
    if (::fstat(fd, &status) != 0) {
        const int error = errno;
        ::close(fd);
        throw ReadError::system(error, name, "fstat");
    }
    if (status.st_size != sizes_[file]) {
        ::close(fd);
        throw ReadError(EIO, name, "expected " + std::to_string(sizes_[file]) + " bytes as when the source was opened, got " +
                                       std::to_string(status.st_size) + "; the file was " +
                                       (status.st_size < sizes_[file] ? "truncated" : "changed") + ", open the source again");
    }
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);  // windows are read as planned: read-ahead would add bytes
    return fd;
}

void Files::fail_short(std::uint32_t file, std::int64_t offset, std::int64_t nbytes, std::int64_t got) {
    throw ReadError(EIO, path(file), "expected " + std::to_string(nbytes) + " bytes at byte " + std::to_string(offset) +
                                         ", got " + std::to_string(got) + "; the file was truncated");
}

void Files::read_all(const std::vector<Request> &requests, int n_threads) {
    in_parallel(requests.size(), n_threads, [&](std::size_t i) {
        const Request &request = requests[i];
        read(request.file, request.offset, request.nbytes, request.dst);
    });
}

void Files::read(std::uint32_t file, std::int64_t offset, std::int64_t nbytes, std::byte *dst) {
    if (is_memory(file)) {
        std::memcpy(dst, memory_[file] + offset, static_cast<std::size_t>(nbytes));
        return;
    }
    const Lease lease(*this, file);
    std::int64_t done = 0;
    while (done < nbytes) {
        const ssize_t n = ::pread(lease.fd(), dst + done, static_cast<std::size_t>(nbytes - done), offset + done);
        if (n > 0) {
            done += n;
        } else if (n == 0) {
            fail_short(file, offset, nbytes, done);
        } else if (errno != EINTR) {
            throw ReadError::system(errno, path(file), "reading " + std::to_string(nbytes) + " bytes at byte " +
                                                           std::to_string(offset));
        }
    }
    count.nbytes.fetch_add(nbytes, std::memory_order_relaxed);
    count.requests.fetch_add(1, std::memory_order_relaxed);
}

void Files::announce(std::uint32_t file, std::int64_t offset, std::int64_t nbytes) {
    if (is_memory(file)) return;
    const Lease lease(*this, file);
    ::posix_fadvise(lease.fd(), offset, nbytes, POSIX_FADV_WILLNEED);
}

const std::byte *Files::map_now(std::uint32_t file) {
    if (is_out_of_maps_.load()) return nullptr;
    const std::lock_guard guard(maps_mutex_);
    const std::byte *begin = maps_[file].load();
    if (begin != nullptr) return begin;
    if (all_maps.load() >= max_maps_) {
        is_out_of_maps_.store(true);
        return nullptr;
    }
    const int fd = open_checked(file);
    if (sizes_[file] == 0) {
        begin = &kNothing;
    } else {
        void *address = ::mmap(nullptr, static_cast<std::size_t>(sizes_[file]), PROT_READ, MAP_SHARED, fd, 0);
        if (address == MAP_FAILED) {  // out of maps, or a file system without them: the caller reads instead
            ::close(fd);
            is_out_of_maps_.store(true);
            return nullptr;
        }
        ::madvise(address, static_cast<std::size_t>(sizes_[file]), MADV_RANDOM);
        begin = static_cast<const std::byte *>(address);
    }
    ::close(fd);
    kept_maps_.fetch_add(1);
    all_maps.fetch_add(1);
    maps_[file].store(begin, std::memory_order_release);
    return begin;
}

ReadError Files::shrunk(std::uint32_t file) const {
    struct stat status;
    const std::string name = path(file);
    const std::string got = ::stat(name.c_str(), &status) == 0 ? std::to_string(status.st_size) : "no such file";
    return {EIO, name, "expected " + std::to_string(sizes_[file]) + " bytes as when it was mapped, got " + got +
                           "; the file was truncated"};
}

double Files::resident_share(const std::vector<std::pair<std::uint32_t, std::int64_t>> &places) {
    int resident = 0, asked = 0;
    for (const auto &[file, offset] : places) {
        if (offset >= sizes_[file]) continue;
        if (is_memory(file)) {
            ++resident, ++asked;
            continue;
        }
        const int fd = open_checked(file);  // not kept: a file that will be mapped needs no descriptor
        std::byte byte;
        iovec part{&byte, 1};
        const ssize_t n = ::preadv2(fd, &part, 1, offset, RWF_NOWAIT);
        const int error = errno;
        ::close(fd);
        errno = error;
        if (n < 0 && errno != EAGAIN) return -1;
        resident += n == 1;
        ++asked;
    }
    return asked == 0 ? -1 : static_cast<double>(resident) / asked;
}

}  // namespace gpuload
