// Integer types and small arithmetic shared by the host build (g++) and the device build (NVRTC).
// No standard headers here: NVRTC has none.
#pragma once

#ifdef __CUDACC__
#define GL_FN __host__ __device__ inline
#define GL_COPY memcpy  // NVRTC knows it without a header
#else
#define GL_FN inline
#define GL_COPY __builtin_memcpy
#endif

namespace gpuload {

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using i16 = short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long;  // std::uint64_t where it matters: on Linux
using i64 = long;
static_assert(sizeof(u64) == 8 && sizeof(u32) == 4, "the kernels count on these sizes");

// The upper 64 bits of a 128-bit product: maps a random 64-bit word to [0, b) when `a` is that word.
GL_FN u64 multiply_high(u64 a, u64 b) {
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#elif defined(__SIZEOF_INT128__)
    return static_cast<u64>((static_cast<unsigned __int128>(a) * b) >> 64);
#else
    const u64 a_low = a & 0xffffffffULL, a_high = a >> 32, b_low = b & 0xffffffffULL, b_high = b >> 32;
    const u64 middle = a_high * b_low + ((a_low * b_low) >> 32);
    const u64 carry = (middle & 0xffffffffULL) + a_low * b_high;
    return a_high * b_high + (middle >> 32) + (carry >> 32);
#endif
}

}  // namespace gpuload
