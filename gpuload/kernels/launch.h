// Where a thread stands in its launch. Kernels are plain functions of it, so that the host can run every
// thread of a launch one after the other. Threads share nothing, but for kernels that say so.
#pragma once

#include "numbers.h"

namespace gpuload {

inline constexpr u32 kLanes = 256;   // threads of a block
inline constexpr int kMaxAxes = 8;   // of a box on the device, once axes that lie together are joined

struct Thread {
    u32 block, n_blocks;    // along x: parts of a piece
    u32 piece, n_pieces;    // along y: blocks that start at pieces piece, piece + n_pieces, ...
    u32 lane;               // of kLanes
};

// Load and store as one instruction where the address is known to be aligned to the type.
template <class T>
GL_FN T load_aligned(const u8 *p) {
#if defined(__CUDA_ARCH__)
    return *reinterpret_cast<const T *>(p);
#else
    if (reinterpret_cast<u64>(p) % alignof(T) != 0) __builtin_trap();  // as the device would
    T value;
    GL_COPY(&value, p, sizeof(T));
    return value;
#endif
}

template <class T>
GL_FN void store_aligned(u8 *p, const T &value) {
#if defined(__CUDA_ARCH__)
    *reinterpret_cast<T *>(p) = value;
#else
    if (reinterpret_cast<u64>(p) % alignof(T) != 0) __builtin_trap();
    GL_COPY(p, &value, sizeof(T));
#endif
}

template <class T>
GL_FN T load_anywhere(const u8 *p) {
    T value;
    u8 *to = reinterpret_cast<u8 *>(&value);
    for (u32 i = 0; i < sizeof(T); ++i) to[i] = p[i];
    return value;
}

template <class T>
GL_FN void store_anywhere(u8 *p, const T &value) {
    const u8 *from = reinterpret_cast<const u8 *>(&value);
    for (u32 i = 0; i < sizeof(T); ++i) p[i] = from[i];
}

// `kCount` elements that are moved together: at most 16 bytes.
template <class T, u32 kCount>
struct alignas(sizeof(T) * kCount) Pack {
    T of[kCount];
};

GL_FN u32 log2_of(u32 power_of_two) {
#if defined(__CUDA_ARCH__)
    return 31u - static_cast<u32>(__clz(static_cast<int>(power_of_two)));
#else
    return 31u - static_cast<u32>(__builtin_clz(power_of_two));
#endif
}

GL_FN bool is_multiple(u64 number, u32 power_of_two) { return (number & (power_of_two - 1u)) == 0; }
GL_FN u64 address(const void *p) { return reinterpret_cast<u64>(p); }

}  // namespace gpuload

// GL_KERNEL(name, Params, call): a kernel whose threads each make `call` with the parameters `p` and their place `t`.
// GL_KERNEL_SHARED(name, Params, Shared, prepare, call): one thread of each block first makes `prepare` on the
// block's `shared`, then all make `call`.
// Three blocks per multiprocessor leave 80 registers to a thread: without a bound the compiler spills some to get by
// with 64 (tests/test_nvrtc.py).
#if defined(__CUDACC__)
#define GL_KERNEL_SHARED(name, Params, Shared, prepare, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(256, 3) name(const __grid_constant__ gpuload::Params p) {            \
        using namespace gpuload;                                                                                      \
        __shared__ Shared shared;                                                                                     \
        const Thread t{blockIdx.x, gridDim.x, blockIdx.y, gridDim.y, threadIdx.x};                                    \
        if (threadIdx.x == 0) prepare;                                                                                \
        __syncthreads();                                                                                              \
        __VA_ARGS__;                                                                                                  \
    }
#define GL_KERNEL(name, Params, ...)                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 3) name(const __grid_constant__ gpuload::Params p) {            \
        using namespace gpuload;                                                                                      \
        const Thread t{blockIdx.x, gridDim.x, blockIdx.y, gridDim.y, threadIdx.x};                                    \
        __VA_ARGS__;                                                                                                  \
    }
#else  // every thread of every block, one after the other
#define GL_KERNEL_SHARED(name, Params, Shared, prepare, ...)                                                          \
    extern "C" void name(const gpuload::Params &p, gpuload::u32 n_blocks, gpuload::u32 n_pieces) {                    \
        using namespace gpuload;                                                                                      \
        for (u32 piece = 0; piece < n_pieces; ++piece)                                                                \
            for (u32 block = 0; block < n_blocks; ++block) {                                                          \
                Shared shared;                                                                                        \
                for (u32 lane = 0; lane < kLanes; ++lane) {                                                           \
                    const Thread t{block, n_blocks, piece, n_pieces, lane};                                           \
                    if (lane == 0) prepare;                                                                           \
                    __VA_ARGS__;                                                                                      \
                }                                                                                                     \
            }                                                                                                         \
    }
#define GL_KERNEL(name, Params, ...)                                                                                  \
    extern "C" void name(const gpuload::Params &p, gpuload::u32 n_blocks, gpuload::u32 n_pieces) {                    \
        using namespace gpuload;                                                                                      \
        for (u32 piece = 0; piece < n_pieces; ++piece)                                                                \
            for (u32 block = 0; block < n_blocks; ++block)                                                            \
                for (u32 lane = 0; lane < kLanes; ++lane) {                                                           \
                    const Thread t{block, n_blocks, piece, n_pieces, lane};                                           \
                    __VA_ARGS__;                                                                                      \
                }                                                                                                     \
    }
#endif
