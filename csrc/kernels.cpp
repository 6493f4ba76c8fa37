#include "kernels.hpp"

namespace gpuload {
namespace {

template <int kNbytes>
void pad_all(const PadParams &params) {
    for (i64 k = 0; k < params.n_pieces; ++k) {
        const PadPiece piece = pad_piece(params, k);
        for (int i = 0; i < 2 * params.ndim; ++i) {
            const PadSide side = side_of(params, piece, i);
            const u32 n = side.along(params.ndim - 1).n, rows = n == 0 ? 0 : pad_rows(side, params.ndim);
            for (u32 row = 0; row < rows; ++row) pad_row<kNbytes>(params, piece, side, row, 0, n, 0, 1);
        }
    }
}

template <int kNbytes>
void unshuffle_all(const UnshuffleParams &params) {
    for (i64 k = 0; k < params.n_pieces; ++k)
        unshuffle_share<kNbytes>(unshuffle_chunk(params, k), static_cast<u64>(params.item_nbytes), 0, 1);
}

}  // namespace

void pad_boxes(const PadParams &params) {
    switch (params.item_nbytes) {
        case 1: return pad_all<1>(params);
        case 2: return pad_all<2>(params);
        case 4: return pad_all<4>(params);
        case 8: return pad_all<8>(params);
        default: return pad_all<16>(params);
    }
}

void unshuffle_chunks(const UnshuffleParams &params) {
    switch (params.item_nbytes) {
        case 2: return unshuffle_all<2>(params);
        case 4: return unshuffle_all<4>(params);
        case 8: return unshuffle_all<8>(params);
        case 16: return unshuffle_all<16>(params);
        default: return unshuffle_all<0>(params);
    }
}

}  // namespace gpuload
