// The kernels of gpuload/kernels on the host, without the grid of a launch: what the CPU device runs. Parameters
// are those of a launch, with host addresses. Nothing is checked: boxes must lie within their memory.
#pragma once

#include "dtype.hpp"
#include "pad.h"
#include "resize.h"
#include "unshuffle.h"

namespace gpuload {

void pad_boxes(const PadParams &params);

// `to` is `from` or float32; neither is complex.
void resize_boxes(const ResizeParams &params, Dtype from, Dtype to);

void unshuffle_chunks(const UnshuffleParams &params);

}  // namespace gpuload
