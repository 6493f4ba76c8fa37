// Conversion of one element from any stored type to any delivered type: the same bits on every device.
//
// float -> integer truncates toward zero, saturates, and takes NaN to 0. Integer -> integer keeps the low
// bits, as NumPy's astype does. Anything -> bool is "not zero". float64 -> float16 rounds once, as NumPy
// does; bfloat16 rounds from float32, as PyTorch does. Rounding is to nearest, ties to even.
#pragma once

#include "numbers.h"

namespace gpuload {

struct Bool { u8 byte; };
struct Half { u16 bits; };
struct Bfloat { u16 bits; };
struct Complex64 { float re, im; };
struct Complex128 { double re, im; };

template <class To, class From>
GL_FN To bit_cast_to(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast_to keeps the size");
    To to;
    GL_COPY(&to, &from, sizeof(to));
    return to;
}

template <class A, class B> struct IsSame { static constexpr bool value = false; };
template <class A> struct IsSame<A, A> { static constexpr bool value = true; };

// The bytes of a word in the other order, or as they are. Without a branch on the device.
GL_FN u32 swap_word(u32 x, bool swap) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(x, 0, swap ? 0x0123 : 0x3210);
#else
    return swap ? __builtin_bswap32(x) : x;
#endif
}

template <class T>
GL_FN T swap_bytes(T value, bool swap = true) {
    if constexpr (IsSame<T, Complex64>::value || IsSame<T, Complex128>::value) {
        return {swap_bytes(value.re, swap), swap_bytes(value.im, swap)};
    } else if constexpr (sizeof(T) == 1) {
        return value;
    } else if constexpr (sizeof(T) == 2) {
        const u32 x = bit_cast_to<u16>(value);
        return bit_cast_to<T>(static_cast<u16>(swap ? x << 8 | x >> 8 : x));
    } else if constexpr (sizeof(T) == 4) {
        return bit_cast_to<T>(swap_word(bit_cast_to<u32>(value), swap));
    } else {
        const u64 x = bit_cast_to<u64>(value);
        const u32 low = swap_word(static_cast<u32>(x), swap), high = swap_word(static_cast<u32>(x >> 32), swap);
        return bit_cast_to<T>(swap ? static_cast<u64>(low) << 32 | high : static_cast<u64>(high) << 32 | low);
    }
}

GL_FN float half_to_float(Half half) {
    const u32 sign = (half.bits & 0x8000u) << 16, magnitude = half.bits & 0x7fffu;
    // Subnormals are converted as integers: right even where float32 subnormals are flushed to zero.
    const u32 small = bit_cast_to<u32>(static_cast<float>(magnitude) * 5.9604644775390625e-8f);
    const u32 normal = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
    return bit_cast_to<float>(sign | (magnitude < 0x400u ? small : normal));
}

GL_FN Half half_from_float(float value) {
    const u32 bits = bit_cast_to<u32>(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<u16>(sign | 0x7e00u)};   // NaN
    if (magnitude >= 0x477ff000u) return {static_cast<u16>(sign | 0x7c00u)};  // 65520 and above: infinity
    if (magnitude >= 0x38800000u) {                                           // 2^-14 and above: normal
        const u32 rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        return {static_cast<u16>(sign | ((rounded - 0x38000000u) >> 13))};
    }
    if (magnitude <= 0x33000000u) return {static_cast<u16>(sign)};  // 2^-25 and below: zero
    const u32 shift = 126u - (magnitude >> 23), mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const u32 kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
    return {static_cast<u16>(sign | (kept + (rest > tie || (rest == tie && (kept & 1u)))))};
}

// Round to odd first: rounding twice then gives the once-rounded result (Boldo, Melquiond, 2008).
GL_FN Half half_from_double(double value) {
    float near = static_cast<float>(value);
    u32 bits = bit_cast_to<u32>(near);
    const double back = static_cast<double>(near);
    if (value == value && back != value) {
        if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) --bits;
        bits |= 1u;
    }
    return half_from_float(bit_cast_to<float>(bits));
}

GL_FN float bfloat_to_float(Bfloat value) { return bit_cast_to<float>(static_cast<u32>(value.bits) << 16); }

GL_FN Bfloat bfloat_from_float(float value) {
    const u32 bits = bit_cast_to<u32>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0u};  // NaN
    return {static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <class T>
struct Traits {
    static constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);
    static constexpr T highest = static_cast<T>(is_signed ? (1ULL << (8 * sizeof(T) - 1)) - 1 : ~0ULL);
    static constexpr T lowest = static_cast<T>(is_signed ? 1ULL << (8 * sizeof(T) - 1) : 0ULL);
};

template <class T> struct IsFloat { static constexpr bool value = false; };
template <> struct IsFloat<float> { static constexpr bool value = true; };
template <> struct IsFloat<double> { static constexpr bool value = true; };

// float32 or float64 -> integer.
template <class T, class F>
GL_FN T saturate(F value) {
    constexpr F low = static_cast<F>(Traits<T>::lowest), high = static_cast<F>(Traits<T>::highest);
    if (!(value == value)) return 0;
    return value <= low ? Traits<T>::lowest : value >= high ? Traits<T>::highest : static_cast<T>(value);
}

// A stored element as the arithmetic type its value is computed in.
template <class T> GL_FN T widen(T value) { return value; }
GL_FN u8 widen(Bool value) { return value.byte != 0; }
GL_FN float widen(Half value) { return half_to_float(value); }
GL_FN float widen(Bfloat value) { return bfloat_to_float(value); }

template <class To> struct Narrow {  // integers
    template <class From> GL_FN static To from(From value) {
        if constexpr (IsFloat<From>::value) return saturate<To>(value);
        else return static_cast<To>(value);
    }
};
template <> struct Narrow<float> { template <class From> GL_FN static float from(From v) { return static_cast<float>(v); } };
template <> struct Narrow<double> { template <class From> GL_FN static double from(From v) { return static_cast<double>(v); } };
template <> struct Narrow<Bool> { template <class From> GL_FN static Bool from(From v) { return {static_cast<u8>(v != 0)}; } };
template <> struct Narrow<Bfloat> {
    template <class From> GL_FN static Bfloat from(From v) { return bfloat_from_float(static_cast<float>(v)); }
};
template <> struct Narrow<Half> {
    GL_FN static Half from(float v) { return half_from_float(v); }
    template <class From> GL_FN static Half from(From v) { return half_from_double(static_cast<double>(v)); }
};
template <> struct Narrow<Complex64> {
    template <class From> GL_FN static Complex64 from(From v) { return {static_cast<float>(v), 0.0f}; }
    GL_FN static Complex64 from(Complex64 v) { return v; }
    GL_FN static Complex64 from(Complex128 v) { return {static_cast<float>(v.re), static_cast<float>(v.im)}; }
};
template <> struct Narrow<Complex128> {
    template <class From> GL_FN static Complex128 from(From v) { return {static_cast<double>(v), 0.0}; }
    GL_FN static Complex128 from(Complex64 v) { return {static_cast<double>(v.re), static_cast<double>(v.im)}; }
    GL_FN static Complex128 from(Complex128 v) { return v; }
};

template <class To, class From>
GL_FN To convert(From value) { return Narrow<To>::from(widen(value)); }

}  // namespace gpuload
