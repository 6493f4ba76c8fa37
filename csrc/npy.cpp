#include "npy.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "workers.hpp"

namespace gpuload {
namespace {

// Reads the subset of Python literals that np.save writes, in any order and spacing.
class Parser {
  public:
    explicit Parser(std::string_view text) : rest_(text) {}

    bool take(char c) {
        skip_space();
        if (rest_.empty() || rest_.front() != c) return false;
        rest_.remove_prefix(1);
        return true;
    }

    bool word(std::string_view w) {
        skip_space();
        if (rest_.substr(0, w.size()) != w) return false;
        rest_.remove_prefix(w.size());
        return true;
    }

    bool quoted(std::string &out) {
        skip_space();
        if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) return false;
        const std::size_t end = rest_.find(rest_.front(), 1);
        if (end == std::string_view::npos) return false;
        out = rest_.substr(1, end - 1);
        rest_.remove_prefix(end + 1);
        return out.find('\\') == std::string::npos;
    }

    bool number(std::int64_t &out) {
        skip_space();
        std::size_t n = 0;
        out = 0;
        while (n < rest_.size() && rest_[n] >= '0' && rest_[n] <= '9') {
            if (__builtin_mul_overflow(out, 10, &out) || __builtin_add_overflow(out, rest_[n] - '0', &out)) return false;
            ++n;
        }
        if (n == 0 || (n > 1 && rest_.front() == '0')) return false;
        rest_.remove_prefix(n);
        return true;
    }

    bool tuple(std::vector<std::int64_t> &out) {
        if (!take('(')) return false;
        while (!take(')')) {
            std::int64_t value;
            if (!number(value)) return false;
            out.push_back(value);
            if (take(',')) continue;
            return out.size() > 1 && take(')');  // "(3)" is a number, not a tuple
        }
        return true;
    }

    bool at_end() {
        skip_space();
        return rest_.empty();
    }

  private:
    void skip_space() {
        const std::size_t n = rest_.find_first_not_of(" \t\n");
        rest_.remove_prefix(n == std::string_view::npos ? rest_.size() : n);
    }

    std::string_view rest_;
};

// Keeps one copy of each text: the headers of structured arrays are long, and files of one kind have the same.
class Texts {
  public:
    std::shared_ptr<const std::string> share(std::string text) {
        const std::lock_guard guard(mutex_);
        auto &kept = kept_[text];
        if (!kept) kept = std::make_shared<const std::string>(std::move(text));
        return kept;
    }

  private:
    std::mutex mutex_;
    std::unordered_map<std::string, std::shared_ptr<const std::string>> kept_;
};

std::int64_t read_up_to(int fd, char *dst, std::int64_t nbytes, std::int64_t offset) {
    std::int64_t done = 0;
    while (done < nbytes) {
        const ssize_t n = ::pread(fd, dst + done, static_cast<std::size_t>(nbytes - done), offset + done);
        if (n == 0) break;
        if (n > 0) done += n;
        else if (errno != EINTR) return -1;
    }
    return done;
}

std::int64_t mtime_of(const struct stat &status) {
    return static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
}

NpyHeader read_from(int fd, Texts &texts) {
    NpyHeader header;
    const auto ends_as = [&](NpyHeader::Status status) {
        header.status = status;
        return header;
    };
    struct stat status;
    char head[512];  // holds nearly every header, so that one read does
    if (::fstat(fd, &status) != 0) {
        header.error = errno;
        return header;
    }
    header.file_nbytes = status.st_size;
    header.mtime_ns = mtime_of(status);
    if (S_ISDIR(status.st_mode)) {
        header.error = EISDIR;
        return header;
    }
    const std::int64_t n = read_up_to(fd, head, sizeof(head), 0);
    if (n < 0) {
        header.error = errno;
        return header;
    }
    if (std::memcmp(head, "\x93NUMPY", static_cast<std::size_t>(std::min<std::int64_t>(n, 6))) != 0 || n == 0)
        return ends_as(n == 0 ? NpyHeader::Status::cut : NpyHeader::Status::no_magic);
    if (n < 10) return ends_as(NpyHeader::Status::cut);
    header.major = static_cast<unsigned char>(head[6]);
    header.minor = static_cast<unsigned char>(head[7]);
    if (header.major < 1 || header.major > 3 || header.minor != 0) return ends_as(NpyHeader::Status::bad_version);
    const int length_nbytes = header.major == 1 ? 2 : 4;  // little-endian uint16 in version 1, uint32 after
    if (n < 8 + length_nbytes) return ends_as(NpyHeader::Status::cut);
    std::int64_t length = 0;
    for (int i = length_nbytes - 1; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(head[8 + i]);
    const std::int64_t begin = 8 + length_nbytes;
    header.data_offset = begin + length;
    if (header.data_offset > header.file_nbytes) return ends_as(NpyHeader::Status::cut);
    if (length > NpyHeader::kMaxHeader) return ends_as(NpyHeader::Status::too_long);
    std::string text(static_cast<std::size_t>(length), '\0');
    const std::int64_t held = std::min(length, n - begin);
    std::memcpy(text.data(), head + begin, static_cast<std::size_t>(held));
    if (held < length && read_up_to(fd, text.data() + held, length - held, begin + held) != length - held)
        return ends_as(NpyHeader::Status::cut);
    if (parse_npy_dictionary(text, header)) return ends_as(NpyHeader::Status::plain);
    header.descr.clear();  // what a failed parse has left is not to be used
    header.shape.clear();
    header.fortran = false;
    header.text = texts.share(std::move(text));
    return ends_as(NpyHeader::Status::other);
}

// Call `work(i)` for i of [0, n), on several threads that take blocks of them.
template <class Function>
void in_blocks(std::size_t n, int n_threads, const Function &work) {
    constexpr std::size_t block = 64;
    in_parallel((n + block - 1) / block, n_threads, [&](std::size_t k) {
        for (std::size_t i = k * block; i < std::min((k + 1) * block, n); ++i) work(i);
    });
}

}  // namespace

bool parse_npy_dictionary(const std::string &text, NpyHeader &header) {
    Parser parser(text);
    header.shape.clear();
    bool seen[3] = {};
    if (!parser.take('{')) return false;
    while (!parser.take('}')) {
        std::string key;
        if (!parser.quoted(key) || !parser.take(':')) return false;
        bool good = false;
        if (key == "descr" && !std::exchange(seen[0], true)) {
            good = parser.quoted(header.descr) && header.descr.size() < 16;
        } else if (key == "fortran_order" && !std::exchange(seen[1], true)) {
            header.fortran = parser.word("True");
            good = header.fortran || parser.word("False");
        } else if (key == "shape" && !std::exchange(seen[2], true)) {
            good = parser.tuple(header.shape) && header.shape.size() <= kMaxNdim;
        }
        if (!good) return false;
        if (!parser.take(',')) {
            if (!parser.take('}')) return false;
            break;
        }
    }
    return seen[0] && seen[1] && seen[2] && parser.at_end();
}

namespace {

NpyHeader read_npy_header(const std::string &path, Texts &texts) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        NpyHeader header;
        header.error = errno;
        return header;
    }
    NpyHeader header = read_from(fd, texts);
    ::close(fd);
    return header;
}

}  // namespace

std::vector<NpyHeader> read_npy_headers(const Paths &paths, int n_threads) {
    std::vector<NpyHeader> headers(paths.size());
    Texts texts;
    in_blocks(paths.size(), n_threads, [&](std::size_t i) { headers[i] = read_npy_header(paths[i], texts); });
    return headers;
}

void stat_files(const Paths &paths, int n_threads, std::int64_t *nbytes, std::int64_t *mtime_ns) {
    in_blocks(paths.size(), n_threads, [&](std::size_t i) {
        struct stat status;
        const bool found = ::stat(paths[i].c_str(), &status) == 0;
        nbytes[i] = found ? status.st_size : -1;
        mtime_ns[i] = found ? mtime_of(status) : -1;
    });
}

}  // namespace gpuload
