#include "tensor.hpp"

#include <memory>

namespace gpuload {
namespace {

struct Owned {
    DlManagedTensor managed;
    Block *block;
    std::vector<std::int64_t> shape, strides;
};

DlDtype describe(Dtype dtype) {
    constexpr std::uint8_t integer = 0, natural = 1, real = 2, bfloat = 4, complex = 5, boolean = 6;
    std::uint8_t code = integer;
    if (dtype == Dtype::boolean) code = boolean;
    else if (dtype <= Dtype::uint64) code = natural;
    else if (dtype <= Dtype::int64) code = integer;
    else if (dtype == Dtype::bfloat16) code = bfloat;
    else if (is_complex(dtype)) code = complex;
    else code = real;
    return {code, static_cast<std::uint8_t>(8 * item_nbytes(dtype)), 1};
}

}  // namespace

DlManagedTensor *make_tensor(Block *block, std::byte *data, Dtype dtype, const std::vector<std::int64_t> &shape) {
    auto owned = std::make_unique<Owned>();
    owned->block = block;
    owned->shape = shape;
    owned->strides.resize(shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) owned->strides[axis] = stride;
    constexpr std::int32_t cpu = 1;
    owned->managed = {{data, {cpu, 0}, static_cast<std::int32_t>(shape.size()), describe(dtype), owned->shape.data(),
                       owned->strides.data(), 0},
                      owned.get(),
                      [](DlManagedTensor *managed) {
                          const std::unique_ptr<Owned> dying(static_cast<Owned *>(managed->context));
                          dying->block->drop_reference();
                      }};
    return &owned.release()->managed;
}

}  // namespace gpuload
