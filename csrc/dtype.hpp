// Element types: numbers shared with gpuload/dtypes.py, and the loops that move rows of elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transform.h"

namespace gpuload {

// X(name, element type). The position is the number that Python passes.
#define GPULOAD_DTYPES(X)                                                                               \
    X(boolean, Bool) X(uint8, u8) X(uint16, u16) X(uint32, u32) X(uint64, u64) X(int8, i8) X(int16, i16) \
    X(int32, i32) X(int64, i64) X(float16, Half) X(bfloat16, Bfloat) X(float32, float)                  \
    X(float64, double) X(complex64, Complex64) X(complex128, Complex128)

enum class Dtype : int {
#define X(name, type) name,
    GPULOAD_DTYPES(X)
#undef X
};

std::size_t item_nbytes(Dtype dtype);
bool is_complex(Dtype dtype);

// Move `n` elements, `src_stride` bytes apart, to consecutive elements at `dst`. Neither side needs to
// be aligned. `swap` says that the source is in the other byte order.
using MoveRow = void (*)(std::byte *dst, const std::byte *src, std::ptrdiff_t src_stride, std::size_t n, bool swap);

// The loop for one pair of types; nullptr for complex -> real.
MoveRow find_move(Dtype from, Dtype to);

// The same for scaled values (kernels/transform.h), to floating types: element i belongs to channel
// `channel` + i * `channel_step`. nullptr for other types.
using ScaleRow = void (*)(std::byte *dst, const std::byte *src, std::ptrdiff_t src_stride, std::size_t n, bool swap,
                          const Affine &affine, u64 channel, u64 channel_step);
ScaleRow find_scale(Dtype from, Dtype to);

}  // namespace gpuload
