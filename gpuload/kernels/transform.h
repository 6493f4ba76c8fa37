// What happens to one element on its way into a batch: byte order, scale, mean and standard deviation, cast.
//
// Scaled values are computed as (x * scale - mean) / std, each step rounded once: in float64 when the
// delivered or the stored type holds more than 24 bits, in float32 otherwise. No step is fused with another
// (compile with --fmad=false, -ffp-contract=off), so that every device gives the same bits.
#pragma once

#include "convert.h"

namespace gpuload {

// `channels` holds mean and standard deviation of each channel; nullptr: 0 and 1.
struct Affine {
    const double *channels;
    double scale;
};

template <class T> struct Wide { static constexpr bool value = false; };  // more than 24 bits of precision
template <> struct Wide<double> { static constexpr bool value = true; };
template <> struct Wide<i32> { static constexpr bool value = true; };
template <> struct Wide<u32> { static constexpr bool value = true; };
template <> struct Wide<i64> { static constexpr bool value = true; };
template <> struct Wide<u64> { static constexpr bool value = true; };

template <bool kWide> struct Arithmetic { using Type = float; };
template <> struct Arithmetic<true> { using Type = double; };

template <class To, class From, bool kAffine>
GL_FN To transform(From value, bool swap, const Affine &affine, u64 channel) {
    value = swap_bytes(value, swap);
    if constexpr (!kAffine) {
        if constexpr (IsSame<To, From>::value) return value;
        else return convert<To>(value);
    } else {
        using Real = typename Arithmetic<Wide<To>::value || Wide<From>::value>::Type;
        Real x = static_cast<Real>(widen(value)) * static_cast<Real>(affine.scale);
        if (affine.channels != nullptr) {
            x -= static_cast<Real>(affine.channels[2 * channel]);
            x /= static_cast<Real>(affine.channels[2 * channel + 1]);
        }
        return Narrow<To>::from(x);
    }
}

}  // namespace gpuload
