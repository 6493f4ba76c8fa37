// Counter-based random numbers and keyed permutations: the same values on the host and the device.
// Everything drawn is a pure function of (seed, epoch, item, crop); see docs/order.md.
#pragma once

#include "numbers.h"

namespace gpuload {

// What a number is drawn for. Part of the counter, so that no two uses share a number. From 0x100 on they are those of
// gpuload/randomness.py.
enum Purpose : u32 { kEpochKey = 0, kShuffle = 1, kBlocks = 2, kWithinBlocks = 3, kWindow = 4, kReplace = 5, kTurn = 6, kBuckets = 7 };

struct Words {
    u32 w[4];

    GL_FN u64 low() const { return w[0] | static_cast<u64>(w[1]) << 32; }
    GL_FN u64 high() const { return w[2] | static_cast<u64>(w[3]) << 32; }
};

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
GL_FN Words philox(u64 key, Words x) {
    u32 key_0 = static_cast<u32>(key), key_1 = static_cast<u32>(key >> 32);
#pragma unroll 1
    for (int round = 0; round < 10; ++round) {
        const u64 a = static_cast<u64>(0xD2511F53u) * x.w[0];
        const u64 b = static_cast<u64>(0xCD9E8D57u) * x.w[2];
        x = {{static_cast<u32>(b >> 32) ^ x.w[1] ^ key_0, static_cast<u32>(b),
              static_cast<u32>(a >> 32) ^ x.w[3] ^ key_1, static_cast<u32>(a)}};
        key_0 += 0x9E3779B9u;
        key_1 += 0xBB67AE85u;
    }
    return x;
}

// The numbers of (item, crop): `block` counts calls for one purpose, two 64-bit words each.
GL_FN Words draw(u64 key, u64 item, u32 crop, Purpose purpose, u32 block) {
    return philox(key, {{static_cast<u32>(item), static_cast<u32>(item >> 32), crop, purpose << 16 | block}});
}

// Seed and epoch hashed together, so that (seed 0, epoch 1) is not (seed 1, epoch 0).
GL_FN u64 epoch_key(u64 seed, u64 epoch) { return draw(seed, epoch, 0, kEpochKey, 0).low(); }

// A bijective mixer of 64 bits (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
GL_FN u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// A keyed bijection of [0, n): a Feistel network on Z_rows x Z_columns with rows * columns barely
// above n, walked until it falls below n (Black, Rogaway, "Ciphers with arbitrary finite domains", 2002).
// O(1) memory and random access. `rows` is even, so that odd permutations are reached as well.
struct Permutation {
    static constexpr int kMaxRounds = 16;

    u64 n, rows, columns;
    i32 rounds, padding;
    u64 keys[kMaxRounds];

    GL_FN u64 once(u64 i) const {
        u64 row = i / columns, column = i - row * columns;
#pragma unroll 1
        for (int r = 0; r < rounds; r += 2) {
            row += multiply_high(mix(column ^ keys[r]), rows);
            row -= row >= rows ? rows : 0;
            column += multiply_high(mix(row ^ keys[r + 1]), columns);
            column -= column >= columns ? columns : 0;
        }
        return row * columns + column;
    }

    GL_FN u64 operator()(u64 i) const {
        do i = once(i);
        while (i >= n);
        return i;
    }

    GL_FN u64 once_back(u64 i) const {
        u64 row = i / columns, column = i - row * columns;
#pragma unroll 1
        for (int r = rounds - 2; r >= 0; r -= 2) {
            column += columns - multiply_high(mix(row ^ keys[r + 1]), columns);
            column -= column >= columns ? columns : 0;
            row += rows - multiply_high(mix(column ^ keys[r]), rows);
            row -= row >= rows ? rows : 0;
        }
        return row * columns + column;
    }

    GL_FN u64 inverse(u64 i) const {
        do i = once_back(i);
        while (i >= n);
        return i;
    }
};

// The permutation of [0, n) under `key`; `which` tells apart several of one purpose. n >= 1.
GL_FN Permutation make_permutation(u64 n, u64 key, Purpose purpose, u64 which) {
    Permutation p;
    u64 root = n, next = n / 2 + 1;
#pragma unroll 1
    while (next < root) {  // Newton's method, from above
        root = next;
        next = (root + n / root) / 2;
    }
    root += root * root < n;
    p.n = n;
    p.rows = root + (root & 1);
    p.columns = (n + p.rows - 1) / p.rows;
    // Small domains need more rounds to reach every permutation equally often (tests/test_order.py).
    p.rounds = n < 1024 ? Permutation::kMaxRounds : 6;
    p.padding = 0;
#pragma unroll 1
    for (int r = 0; r < p.rounds; r += 2) {
        // n is hashed in: domains of nearly the same size would share most of their mapping.
        const Words words = draw(key, which, static_cast<u32>(mix(n)), purpose, static_cast<u32>(r));
        p.keys[r] = words.low();
        p.keys[r + 1] = words.high();
    }
    return p;
}

}  // namespace gpuload
