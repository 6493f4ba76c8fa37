#include "dtype.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace gpuload {
namespace {

template <class T>
T load(const std::byte *p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
}

// The stride and the byte order are compile-time constants where they are the usual ones, so that these loops vectorise.
template <class To, class From, bool kSwap, bool kDense>
void move_loop(std::byte *dst, const std::byte *src, std::ptrdiff_t stride, std::size_t n) {
    const std::ptrdiff_t step = kDense ? static_cast<std::ptrdiff_t>(sizeof(From)) : stride;
    for (std::size_t i = 0; i < n; ++i) {
        From value = load<From>(src + static_cast<std::ptrdiff_t>(i) * step);
        if constexpr (kSwap) value = swap_bytes(value);
        if constexpr (std::is_same_v<To, From>) {
            std::memcpy(dst + i * sizeof(To), &value, sizeof(To));
        } else {
            const To out = convert<To>(value);
            std::memcpy(dst + i * sizeof(To), &out, sizeof(To));
        }
    }
}

template <class From>
void gather_swapped(std::byte *dst, const std::byte *src, std::ptrdiff_t stride, std::size_t n) {
    move_loop<From, From, true, false>(dst, src, stride, n);
}

template <class To, class From>
void move_row(std::byte *dst, const std::byte *src, std::ptrdiff_t stride, std::size_t n, bool swap) {
    constexpr bool same = std::is_same_v<To, From>;
    const bool dense = stride == static_cast<std::ptrdiff_t>(sizeof(From));
    if (same && dense && !swap) {
        std::memcpy(dst, src, n * sizeof(From));
    } else if (!swap || sizeof(From) == 1) {
        dense ? move_loop<To, From, false, true>(dst, src, stride, n)
              : move_loop<To, From, false, false>(dst, src, stride, n);
    } else if constexpr (same) {
        dense ? move_loop<To, From, true, true>(dst, src, stride, n) : gather_swapped<From>(dst, src, stride, n);
    } else {  // other byte order and another type: through a block that stays in the first-level cache
        constexpr std::size_t block = 256;
        alignas(64) std::byte native[block * sizeof(From)];
        for (std::size_t i = 0; i < n; i += block) {
            const std::size_t count = std::min(block, n - i);
            gather_swapped<From>(native, src + static_cast<std::ptrdiff_t>(i) * stride, stride, count);
            move_loop<To, From, false, true>(dst + i * sizeof(To), native, 0, count);
        }
    }
}

// One channel for a whole row, as constants, so that these loops vectorise.
template <class To, class From, bool kDense, bool kChannel>
void scale_loop(std::byte *dst, const std::byte *src, std::ptrdiff_t stride, std::size_t n, double scale, double mean, double std) {
    const double pair[2] = {mean, std};
    const Affine affine{kChannel ? pair : nullptr, scale};
    const std::ptrdiff_t step = kDense ? static_cast<std::ptrdiff_t>(sizeof(From)) : stride;
    for (std::size_t i = 0; i < n; ++i) {
        const From value = load<From>(src + static_cast<std::ptrdiff_t>(i) * step);
        const To out = transform<To, From, true>(value, false, affine, 0);
        std::memcpy(dst + i * sizeof(To), &out, sizeof(To));
    }
}

template <class To, class From>
void scale_row(std::byte *dst, const std::byte *src, std::ptrdiff_t stride, std::size_t n, bool swap, const Affine &affine,
               u64 channel, u64 channel_step) {
    const bool dense = stride == static_cast<std::ptrdiff_t>(sizeof(From));
    if (!swap && affine.channels == nullptr) {
        dense ? scale_loop<To, From, true, false>(dst, src, stride, n, affine.scale, 0, 1)
              : scale_loop<To, From, false, false>(dst, src, stride, n, affine.scale, 0, 1);
    } else if (!swap && channel_step == 0) {
        const double mean = affine.channels[2 * channel], std = affine.channels[2 * channel + 1];
        dense ? scale_loop<To, From, true, true>(dst, src, stride, n, affine.scale, mean, std)
              : scale_loop<To, From, false, true>(dst, src, stride, n, affine.scale, mean, std);
    } else {
        for (std::size_t i = 0; i < n; ++i) {
            const From value = load<From>(src + static_cast<std::ptrdiff_t>(i) * stride);
            const To out = transform<To, From, true>(value, swap, affine, channel + i * channel_step);
            std::memcpy(dst + i * sizeof(To), &out, sizeof(To));
        }
    }
}

template <class T>
constexpr bool kComplex = std::is_same_v<T, Complex64> || std::is_same_v<T, Complex128>;

template <class To, class From>
constexpr MoveRow pick() {
    if constexpr (kComplex<From> && !kComplex<To>) return nullptr;
    else return &move_row<To, From>;
}

template <class T>
constexpr bool kFloating =
    std::is_same_v<T, Half> || std::is_same_v<T, Bfloat> || std::is_same_v<T, float> || std::is_same_v<T, double>;

template <class To, class From>
constexpr ScaleRow pick_scale() {
    if constexpr (kComplex<From> || !kFloating<To>) return nullptr;
    else return &scale_row<To, From>;
}

template <class From>
constexpr auto row_of_scales() {
    return std::array{
#define X(name, type) pick_scale<type, From>(),
        GPULOAD_DTYPES(X)
#undef X
    };
}

constexpr std::array kScales = {
#define X(name, type) row_of_scales<type>(),
    GPULOAD_DTYPES(X)
#undef X
};

template <class From>
constexpr auto row_of_moves() {
    return std::array{
#define X(name, type) pick<type, From>(),
        GPULOAD_DTYPES(X)
#undef X
    };
}

constexpr std::array kMoves = {
#define X(name, type) row_of_moves<type>(),
    GPULOAD_DTYPES(X)
#undef X
};

constexpr std::size_t kSizes[] = {
#define X(name, type) sizeof(type),
    GPULOAD_DTYPES(X)
#undef X
};

}  // namespace

std::size_t item_nbytes(Dtype dtype) { return kSizes[static_cast<int>(dtype)]; }

bool is_complex(Dtype dtype) { return dtype == Dtype::complex64 || dtype == Dtype::complex128; }

MoveRow find_move(Dtype from, Dtype to) { return kMoves[static_cast<int>(from)][static_cast<int>(to)]; }

ScaleRow find_scale(Dtype from, Dtype to) { return kScales[static_cast<int>(from)][static_cast<int>(to)]; }

}  // namespace gpuload
