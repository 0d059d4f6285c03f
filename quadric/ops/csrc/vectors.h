// Registers of floats, numbers of 16 bits as floats, and where the blocks of S stand.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

// As many floats as one register holds. The compiler splits wider vectors, but through memory.
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef float V __attribute__((vector_size(BYTES)));
typedef int32_t I __attribute__((vector_size(BYTES)));
typedef uint32_t U __attribute__((vector_size(BYTES)));
typedef uint16_t H __attribute__((vector_size(BYTES / 2)));
static const int LANES = sizeof(V) / sizeof(float);

struct bfloat16 { uint16_t bits; };
struct float16 { uint16_t bits; };

static inline V only(I where, V v) { return (V)((I)v & where); }
static inline V choose(I where, V yes, V no) { return (V)(((I)yes & where) | ((I)no & ~where)); }
static inline U choose(I where, U yes, U no) { return (yes & (U)where) | (no & ~(U)where); }

// Lane i of the result is lane at[i] of v.
static inline V pick(V v, I at) {
#if defined(__clang__)
    V out = v;
    for (int i = 0; i < LANES; i++) out[i] = v[at[i]];
    return out;
#else
    return __builtin_shuffle(v, at);
#endif
}

// The same of two vectors, the lanes of the second counted after those of the first.
static inline V pick(V a, V b, I at) {
#if defined(__clang__)
    V out = a;
    for (int i = 0; i < LANES; i++) out[i] = at[i] < LANES ? a[at[i]] : b[at[i] - LANES];
    return out;
#else
    return __builtin_shuffle(a, b, at);
#endif
}

static inline float sum(V v) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += v[i];
    return s;
}

static inline V widen(const bfloat16 *, U bits) { return (V)(bits << 16); }

// Rounded to the nearest, to the even one of two.
static inline U narrow(const bfloat16 *, V v) {
    const U u = (U)v, rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return choose(v != v, U{} + 0x7fc0, rounded);
}

// The exponent has 5 bits instead of 8: 15 in place of 127 stands for 1. Its least and its greatest value are special.
static inline V widen(const float16 *, U bits) {
    const U most = U{} + (0x7c00u << 13), all = (bits & 0x7fff) << 13, exponent = all & most;
    const U normal = all + (112u << 23), tiny = normal + (1u << 23);
    const U less = (U)((V)tiny - (V)(U{} + (113u << 23)));
    U out = choose(exponent == most, normal + (112u << 23), normal);
    out = choose(exponent == 0, less, out);
    return (V)(out | (bits & 0x8000) << 16);
}

static inline U narrow(const float16 *, V v) {
    const U u = (U)v, sign = u & 0x80000000u, all = u ^ sign;
    const U magic = U{} + (126u << 23);
    const U tiny = (U)((V)all + (V)magic) - magic;
    const U normal = (all - (112u << 23) + 0xfff + ((all >> 13) & 1)) >> 13;
    U out = choose(all < (113u << 23), tiny, normal);
    out = choose(all >= (143u << 23), choose(all > (255u << 23), U{} + 0x7e00, U{} + 0x7c00), out);
    return out | sign >> 16;
}

static inline V load(const float *p) { V v; std::memcpy(&v, p, sizeof v); return v; }
static inline I lanes(const int32_t *p) { I i; std::memcpy(&i, p, sizeof i); return i; }
static inline void store(float *p, V v) { std::memcpy(p, &v, sizeof v); }
template <class T> static inline V load(const T *p) {
    H h;
    std::memcpy(&h, p, sizeof h);
    return widen(p, __builtin_convertvector(h, U));
}
template <class T> static inline void store(T *p, V v) {
    const H h = __builtin_convertvector(narrow(p, v), H);
    std::memcpy(p, &h, sizeof h);
}

// The first n lanes, where a whole vector would reach beyond the tensor.
template <class T> static inline V load(const T *p, int64_t n) {
    if (n >= LANES) return load(p);
    T part[LANES] = {};
    if (n > 0) std::memcpy(part, p, n * sizeof(T));
    return load(part);
}
template <class T> static inline void store(T *p, V v, int64_t n) {
    if (n >= LANES) return store(p, v);
    T part[LANES];
    store(part, v);
    if (n > 0) std::memcpy(p, part, n * sizeof(T));
}

static inline float get(const float *p) { return *p; }
static inline void set(float *p, float x) { *p = x; }
template <class T> static inline float get(const T *p) { return widen(p, U{} + p->bits)[0]; }
template <class T> static inline void set(T *p, float x) { p->bits = narrow(p, V{} + x)[0]; }

struct Block { int64_t start, size, offset; };  // channels, and the first eigenvalue

// S of a layer, as quadric/ops/blocks.py wrote it down: whether its blocks are stars, channels, convolution groups,
// eigenvalues of a group, then for each run of equal blocks the first channel, how many, their size, the first
// eigenvalue, and how many a block has.
struct Blocks {
    bool star;
    int64_t channels, eigenvalues;
    std::vector<Block> all;

    explicit Blocks(const int64_t *p) : star(p[0]), channels(p[1]), eigenvalues(p[2] * p[3]) {
        const int64_t groups = p[2], per_group = channels / groups;
        for (int64_t g = 0; g < groups; g++)
            for (const int64_t *run = p + 5; run < p + 5 + 5 * p[4]; run += 5)
                for (int64_t i = 0; i < run[1]; i++)
                    all.push_back({g * per_group + run[0] + i * run[2], run[2], g * p[3] + run[3] + i * run[4]});
    }
};
