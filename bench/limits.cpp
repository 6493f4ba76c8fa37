// What the machine allows: the same samples made by loops that know the files' layout beforehand.
//
//     limits time METHOD THREADS BATCH SECONDS LIST     prints the samples and the seconds they took
//     limits write METHOD LIST PLAN OUT                 writes the samples and labels of a plan
//     limits load FORM THREADS LIST                     prints the seconds of one array of all files
//
// METHOD is `maps` (files stay mapped, rows are copied), `cached` (descriptors stay open, one pread
// of the span from the window's first to its last byte), `open` (open, fstat, read header, read
// span and close for every window), `volume` (rows of 96^3 windows of one mapped file), `pad` and
// `pad-pread` (whole arrays centred in zeros, from maps or by one pread), `stack` and `stack-pread`
// (samples of one file, uint8 to float32 in [0, 1]).
// FORM is `place` (arrays centred in zeros, by one pread each, in fresh memory) or `read-and-zero`
// (all bytes read into a buffer, then fresh memory for the result filled with zeros).
// LIST has one "label path" a line. PLAN has one "file start start ..." a line.
//
// Each thread fills whole batches, in four buffers that it uses again and again. There is no Python, no
// permutation, no header parsing and no hand-over to a consumer: these are bounds, not loaders.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kHeader = 128;  // bytes before the data in the files that data.py makes
constexpr std::size_t kSide = 200, kCrop = 20;
constexpr std::size_t kVolumeSide = 512, kVolumeCrop = 96;
constexpr std::size_t kPadSide = 400, kChannels = 6;
constexpr std::size_t kPixelBytes = kChannels * sizeof(float);
constexpr std::size_t kPadBytes = kPadSide * kPadSide * kPixelBytes;
constexpr std::size_t kStackSamples = 20000, kStackElements = 3 * 64 * 64;
constexpr int kBuffers = 4;

struct File {
    std::string path;
    std::int64_t label;
    int fd = -1;
    const char *map = nullptr;
    std::size_t height = 0, width = 0;  // of arrays to pad
};

struct Window {
    std::size_t file;
    std::size_t start[3];  // row, column; or plane, row, column
};

[[noreturn]] void fail(const std::string &what) {
    std::perror(what.c_str());
    std::exit(1);
}

// splitmix64: cheap enough not to count, good enough to spread the windows.
struct Random {
    std::uint64_t state;
    std::size_t below(std::size_t n) {
        std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return static_cast<std::size_t>(((z ^ (z >> 31)) >> 32) * n >> 32);
    }
};

void read_fully(int fd, char *to, std::size_t nbytes, std::size_t offset) {
    if (::pread(fd, to, nbytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(nbytes))
        fail("pread");
}

constexpr std::size_t kRowBytes = kCrop * sizeof(float);
constexpr std::size_t kPitch = kSide * sizeof(float);
constexpr std::size_t kSpanBytes = (kCrop - 1) * kPitch + kRowBytes;

std::size_t span_offset(const Window &w) {
    return kHeader + (w.start[0] * kSide + w.start[1]) * sizeof(float);
}

void copy_rows(char *to, const char *from) {
    for (std::size_t row = 0; row < kCrop; ++row)
        std::memcpy(to + row * kRowBytes, from + row * kPitch, kRowBytes);
}

void crop_from_map(const File &file, const Window &w, char *to) {
    copy_rows(to, file.map + span_offset(w));
}

void crop_from_descriptor(const File &file, const Window &w, char *to) {
    char span[kSpanBytes];
    read_fully(file.fd, span, kSpanBytes, span_offset(w));
    copy_rows(to, span);
}

void crop_opening_file(const File &file, const Window &w, char *to) {
    char header[kHeader], span[kSpanBytes];
    struct stat status;
    const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::fstat(fd, &status) != 0) fail(file.path);
    read_fully(fd, header, kHeader, 0);
    read_fully(fd, span, kSpanBytes, span_offset(w));
    ::close(fd);
    copy_rows(to, span);
}

void crop_volume(const File &file, const Window &w, char *to) {
    constexpr std::size_t row_bytes = kVolumeCrop * sizeof(float);
    for (std::size_t z = w.start[0]; z < w.start[0] + kVolumeCrop; ++z)
        for (std::size_t y = w.start[1]; y < w.start[1] + kVolumeCrop; ++y, to += row_bytes) {
            const std::size_t row = (z * kVolumeSide + y) * kVolumeSide + w.start[2];
            std::memcpy(to, file.map + kHeader + row * sizeof(float), row_bytes);
        }
}

// Rows with the zeros between them in one pass: memory is written once, from front to back.
void pad(const File &file, const char *from, char *to) {
    const std::size_t row = file.width * kPixelBytes, pitch = kPadSide * kPixelBytes;
    const std::size_t top = (kPadSide - file.height) / 2, left = (kPadSide - file.width) / 2;
    const char *const end = to + kPadBytes;
    std::size_t zeros = top * pitch + left * kPixelBytes;
    for (std::size_t y = 0; y < file.height; ++y, from += row, to += row) {
        std::memset(to, 0, zeros);
        std::memcpy(to += zeros, from, row);
        zeros = pitch - row;
    }
    std::memset(to, 0, static_cast<std::size_t>(end - to));
}

void pad_from_map(const File &file, const Window &, char *to) {
    pad(file, file.map + kHeader, to);
}

// The bytes of the array, in memory that the thread keeps.
const char *array_read(const File &file) {
    thread_local std::vector<char> array(kPadBytes);
    read_fully(file.fd, array.data(), file.height * file.width * kPixelBytes, kHeader);
    return array.data();
}

void pad_from_descriptor(const File &file, const Window &, char *to) {
    pad(file, array_read(file), to);
}

void scale(const unsigned char *from, char *to) {
    float *out = reinterpret_cast<float *>(to);
    for (std::size_t i = 0; i < kStackElements; ++i)
        out[i] = static_cast<float>(from[i]) * (1.0f / 255);
}

void stack_from_map(const File &file, const Window &w, char *to) {
    const char *sample = file.map + kHeader + w.start[0] * kStackElements;
    scale(reinterpret_cast<const unsigned char *>(sample), to);
}

void stack_from_descriptor(const File &file, const Window &w, char *to) {
    unsigned char sample[kStackElements];
    read_fully(file.fd, reinterpret_cast<char *>(sample), kStackElements,
               kHeader + w.start[0] * kStackElements);
    scale(sample, to);
}

struct Method {
    void (*crop)(const File &, const Window &, char *);
    int dims;
    std::size_t n_starts, nbytes;  // legal starts on each axis; bytes of a sample
    bool mapped, open;             // whether files are mapped, and kept open, beforehand
    bool ragged = false;           // whether the header tells height and width
};

Method method_named(const std::string &name) {
    constexpr std::size_t starts = kSide - kCrop + 1, nbytes = kCrop * kRowBytes;
    if (name == "maps") return {crop_from_map, 2, starts, nbytes, true, false};
    if (name == "cached") return {crop_from_descriptor, 2, starts, nbytes, false, true};
    if (name == "open") return {crop_opening_file, 2, starts, nbytes, false, false};
    if (name == "volume")
        return {crop_volume, 3, kVolumeSide - kVolumeCrop + 1,
                kVolumeCrop * kVolumeCrop * kVolumeCrop * sizeof(float), true, false};
    if (name == "pad") return {pad_from_map, 0, 0, kPadBytes, true, false, true};
    if (name == "pad-pread") return {pad_from_descriptor, 0, 0, kPadBytes, false, true, true};
    constexpr std::size_t scaled = kStackElements * sizeof(float);
    if (name == "stack") return {stack_from_map, 1, kStackSamples, scaled, true, false};
    if (name == "stack-pread") return {stack_from_descriptor, 1, kStackSamples, scaled, false, true};
    std::fprintf(stderr, "method: expected one that is named in the source, got %s\n", name.c_str());
    std::exit(2);
}

void find_shape(int fd, File &file) {
    char header[kHeader + 1] = {};
    read_fully(fd, header, kHeader, 0);
    const char *shape = std::strstr(header + 10, "'shape': (");
    if (!shape || std::sscanf(shape, "'shape': (%zu, %zu", &file.height, &file.width) != 2)
        fail(file.path);
}

std::vector<File> files_listed(const std::string &list, const Method &method) {
    std::vector<File> files;
    std::ifstream in(list);
    for (File file; in >> file.label && std::getline(in >> std::ws, file.path);) {
        if (method.mapped || method.open) {
            struct stat status;
            const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
            if (fd < 0 || ::fstat(fd, &status) != 0) fail(file.path);
            if (method.ragged) find_shape(fd, file);
            if (method.mapped) {
                void *map = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ,
                                   MAP_SHARED | MAP_POPULATE, fd, 0);
                if (map == MAP_FAILED) fail(file.path);
                file.map = static_cast<const char *>(map);
                ::close(fd);
            } else {
                file.fd = fd;
            }
        }
        files.push_back(file);
    }
    if (files.empty()) fail(list);
    return files;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Memory for the batches of one thread, in huge pages where the kernel has some.
struct Buffers {
    Buffers(std::size_t nbytes, std::size_t n_labels, bool touched = true) : y(n_labels) {
        constexpr std::size_t huge = std::size_t{2} << 20;
        const std::size_t rounded = (nbytes + huge - 1) / huge * huge;
        x.reset(static_cast<char *>(std::aligned_alloc(huge, rounded)));
        if (!x) fail("aligned_alloc");
        ::madvise(x.get(), rounded, MADV_HUGEPAGE);
        if (touched) std::memset(x.get(), 0, rounded);
    }
    struct Free {
        void operator()(char *p) const { std::free(p); }
    };
    std::unique_ptr<char, Free> x;
    std::vector<std::int64_t> y;
};

// Fill batches until `seconds` are over; return how many samples that were.
std::size_t fill_batches(const Method &method, const std::vector<File> &files, std::size_t batch,
                         double seconds, std::uint64_t seed, Buffers &buffers) {
    char *x = buffers.x.get();
    std::int64_t *y = buffers.y.data();
    Random random{seed};
    std::size_t batches = 0;
    for (const auto begin = std::chrono::steady_clock::now(); seconds_since(begin) < seconds;) {
        const std::size_t first = batches++ % kBuffers * batch;
        for (std::size_t i = first; i < first + batch; ++i) {
            Window window{random.below(files.size()), {}};
            for (int axis = 0; axis < method.dims; ++axis)
                window.start[axis] = random.below(method.n_starts);
            method.crop(files[window.file], window, x + i * method.nbytes);
            y[i] = files[window.file].label;
        }
    }
    volatile std::int64_t sink = x[batch / 2] + y[batch / 2];  // the work must not be removed
    (void)sink;
    return batches * batch;
}

int time_method(const std::string &name, unsigned n_threads, std::size_t batch, double seconds,
                const std::string &list) {
    const Method method = method_named(name);
    const std::vector<File> files = files_listed(list, method);
    std::vector<Buffers> buffers;
    for (unsigned t = 0; t < n_threads; ++t)
        buffers.emplace_back(kBuffers * batch * method.nbytes, kBuffers * batch);
    fill_batches(method, files, batch, 0.1, 1, buffers[0]);  // page tables, caches
    std::atomic<std::size_t> samples{0};
    std::vector<std::thread> threads;
    const auto begin = std::chrono::steady_clock::now();
    for (unsigned t = 0; t < n_threads; ++t)
        threads.emplace_back([&, t] {
            samples += fill_batches(method, files, batch, seconds, 1000 + t, buffers[t]);
        });
    for (std::thread &thread : threads) thread.join();
    std::printf("%zu %.6f\n", samples.load(), seconds_since(begin));
    return 0;
}

int write_plan(const std::string &name, const std::string &list, const std::string &plan,
               const std::string &out) {
    const Method method = method_named(name);
    const std::vector<File> files = files_listed(list, method);
    std::ifstream in(plan);
    std::ofstream windows(out + ".x", std::ios::binary), labels(out + ".y", std::ios::binary);
    std::vector<char> x(method.nbytes);
    for (std::string line; std::getline(in, line);) {
        std::istringstream fields(line);
        Window window{};
        fields >> window.file;
        for (int axis = 0; axis < method.dims; ++axis) fields >> window.start[axis];
        const File &file = files.at(window.file);
        method.crop(file, window, x.data());
        windows.write(x.data(), static_cast<std::streamsize>(x.size()));
        labels.write(reinterpret_cast<const char *>(&file.label), sizeof file.label);
    }
    return windows.flush() && labels.flush() ? 0 : 1;
}

// Whether all bytes are read first and the result is filled with zeros, or each array is placed.
int load(const std::string &form, unsigned n_threads, const std::string &list) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<File> files = files_listed(list, method_named("pad-pread"));
    Buffers result(files.size() * kPadBytes, 0, false);
    const auto in_threads = [&](auto work) {
        std::atomic<std::size_t> next{0};
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < n_threads; ++t)
            threads.emplace_back([&] {
                for (std::size_t i; (i = next++) < files.size();)
                    work(files[i], result.x.get() + i * kPadBytes);
            });
        for (std::thread &thread : threads) thread.join();
    };
    if (form == "place") {
        in_threads([](const File &file, char *to) { pad_from_descriptor(file, {}, to); });
    } else {
        in_threads([](const File &file, char *) { array_read(file); });
        in_threads([](const File &, char *to) { std::memset(to, 0, kPadBytes); });
    }
    std::printf("%.6f\n", seconds_since(begin));
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    const std::vector<std::string> args(argv + 1, argv + argc);
    if (args.size() == 6 && args[0] == "time")
        return time_method(args[1], static_cast<unsigned>(std::stoul(args[2])), std::stoul(args[3]),
                           std::stod(args[4]), args[5]);
    if (args.size() == 5 && args[0] == "write")
        return write_plan(args[1], args[2], args[3], args[4]);
    if (args.size() == 4 && args[0] == "load")
        return load(args[1], static_cast<unsigned>(std::stoul(args[2])), args[3]);
    std::fprintf(stderr, "usage: limits time METHOD THREADS BATCH SECONDS LIST\n"
                         "       limits write METHOD LIST PLAN OUT\n"
                         "       limits load FORM THREADS LIST\n");
    return 2;
}
