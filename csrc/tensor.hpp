// Tensors over batch memory, for torch.from_dlpack. No Python here: the capsule is made in module.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "dtype.hpp"
#include "memory.hpp"

namespace gpuload {

// The C structures of DLPack 0.x, "Python specification for DLPack": https://dmlc.github.io/dlpack/latest
struct DlDevice { std::int32_t type, id; };
struct DlDtype { std::uint8_t code, bits; std::uint16_t lanes; };
struct DlTensor {
    void *data;
    DlDevice device;
    std::int32_t ndim;
    DlDtype dtype;
    std::int64_t *shape, *strides;
    std::uint64_t byte_offset;
};
struct DlManagedTensor {
    DlTensor tensor;
    void *context;
    void (*deleter)(DlManagedTensor *);
};

// A row-major tensor at `data`, inside `block`. It takes over one reference to the block, and drops it in its deleter.
DlManagedTensor *make_tensor(Block *block, std::byte *data, Dtype dtype, const std::vector<std::int64_t> &shape);

}  // namespace gpuload
