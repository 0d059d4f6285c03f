// Planes: the positions of a channel lie next to each other, as in NCHW. A vector holds positions of one channel.
#pragma once

#include "full_rows.h"
#include "star_rows.h"

static const int64_t PIXELS = 512;  // of a plane at once: ten channels of them stay in the first cache

// The blocks of all images, shared by the threads; `block` gets a block, its first number and how many positions.
template <class Make> static void in_blocks(const Blocks &b, int64_t outer, int64_t inner, int threads, Make make) {
    const int64_t count = b.all.size(), jobs = outer * count;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        auto worker = make();
#pragma omp for schedule(static)
        for (int64_t job = 0; job < jobs; job++) {
            const Block &block = b.all[job % count];
            const int64_t at = (job / count * b.channels + block.start) * inner;
            for (int64_t p = 0; p < inner; p += PIXELS)
                worker.block(block, at + p, inner - p < PIXELS ? inner - p : PIXELS);
        }
        worker.finish();
    }
}

template <class T>
static void star_forward_planes(const T *z, T *y, const float *lam, const Blocks &b, int64_t outer, int64_t inner,
                                int threads) {
    struct Worker {
        const T *z;
        T *y;
        const float *lam;
        int64_t inner;
        void block(const Block &b, int64_t at, int64_t pixels) {
            const float *l = lam + b.offset;
            for (int64_t p = 0; p < pixels; p += LANES) {
                const int64_t n = pixels - p;
                const T *from = z + at + p;
                V a = load(from, n), c = {};
                for (int64_t j = 1; j < b.size; j++) {
                    const V x = load(from + j * inner, n);
                    (j % 2 ? a : c) += l[j - 1] * x * x;
                    if (y != z) store(y + at + p + j * inner, x, n);
                }
                store(y + at + p, a + c, n);
            }
        }
        void finish() {}
    };
    in_blocks(b, outer, inner, threads, [&] { return Worker{z, y, lam, inner}; });
}

// What both backward passes add up: eigenvalues in float for a block, then in double.
struct PlaneSums {
    Totals &totals, own;
    PlaneSums(Totals &totals, const Blocks &b) : totals(totals), own(b, !totals.bias.empty()) {}
    void add_bias(int64_t channel, V v) {
        if (!own.bias.empty()) own.bias[channel] += sum(v);
    }
    void finish() {
#pragma omp critical
        {
            for (size_t e = 0; e < own.eigenvalues.size(); e++) totals.eigenvalues[e] += own.eigenvalues[e];
            for (size_t c = 0; c < own.bias.size(); c++) totals.bias[c] += own.bias[c];
        }
    }
};

template <class T>
static void star_backward_planes(const T *grad, const T *out, const float *lam, T *result, Totals &totals,
                                 const Blocks &b, int64_t outer, int64_t inner, int threads) {
    struct Worker : PlaneSums {
        const T *grad, *out;
        T *result;
        const float *lam;
        int64_t inner;
        Worker(Totals &t, const Blocks &b, const T *grad, const T *out, T *result, const float *lam, int64_t inner)
            : PlaneSums(t, b), grad(grad), out(out), result(result), lam(lam), inner(inner) {}
        void block(const Block &b, int64_t at, int64_t pixels) {
            const T *gy = grad + at;
            V total = {};
            for (int64_t p = 0; p < pixels; p += LANES) {
                const V g = load(gy + p, pixels - p);
                total += g;
                store(result + at + p, g, pixels - p);
            }
            add_bias(b.start, total);
            for (int64_t j = 1; j < b.size; j++) {
                const T *g = gy + j * inner, *f = out + at + j * inner;
                T *r = result + at + j * inner;
                const float l = lam[b.offset + j - 1], twice = 2 * l;
                V acc = {}, sums = {};
                for (int64_t p = 0; p < pixels; p += LANES) {
                    const int64_t n = pixels - p;
                    const V x = load(f + p, n), gf = load(gy + p, n) * x, back = load(g + p, n) + twice * gf;
                    store(r + p, back, n);
                    acc += gf * x, sums += back;
                }
                own.eigenvalues[b.offset + j - 1] += sum(acc);
                add_bias(b.start + j, sums);
            }
        }
    };
    in_blocks(b, outer, inner, threads, [&] { return Worker(totals, b, grad, out, result, lam, inner); });
}

// One block over n positions: y_i = z_i + sum_j L_ij z_j^2. z may be y: all channels of a vector are read first.
template <class T, int S>
static void full_forward_block(const T *z, T *y, const float *L, int size, int64_t inner, int64_t pixels) {
    const int s = S ? S : size;
    V some[S ? S : 1];
    std::vector<V> many(S ? 0 : s);
    V *q = S ? some : many.data();
    for (int64_t p = 0; p < pixels; p += LANES) {
        const int64_t n = pixels - p;
        for (int j = 0; j < s; j++) {
            const V x = load(z + j * inner + p, n);
            q[j] = x * x;
        }
        for (int i = 0; i < s; i++) {
            V a = load(z + i * inner + p, n), c = {};
            const float *l = L + i * s;
            for (int j = 0; j < s; j++) (j % 2 ? c : a) += l[j] * q[j];
            store(y + i * inner + p, a + c, n);
        }
    }
}

template <class T>
static void full_forward_planes(const T *z, T *y, const float *lam, const Blocks &b, int64_t outer, int64_t inner,
                                int threads) {
    struct Worker {
        const T *z;
        T *y;
        const float *lam;
        int64_t inner;
        void block(const Block &b, int64_t at, int64_t pixels) {
            const float *L = lam + b.offset;
            switch (b.size) {
#define CASE(S) case S: full_forward_block<T, is_float<T>() ? S : 0>(z + at, y + at, L, S, inner, pixels); break;
                EACH_SIZE(CASE)
#undef CASE
                default: full_forward_block<T, 0>(z + at, y + at, L, b.size, inner, pixels);
            }
        }
        void finish() {}
    };
    in_blocks(b, outer, inner, threads, [&] { return Worker{z, y, lam, inner}; });
}

// Four by four sums at a time fit the registers; the block is in the first cache by now.
template <class T, int NI, int NJ>
static inline void products(const T *g, const T *z, double *dL, int s, int64_t inner, int64_t pixels) {
    V acc[NI][NJ] = {};
    for (int64_t p = 0; p < pixels; p += LANES) {
        V q[NJ];
        for (int j = 0; j < NJ; j++) {
            const V x = load(z + j * inner + p, pixels - p);
            q[j] = x * x;
        }
        for (int i = 0; i < NI; i++) {
            const V x = load(g + i * inner + p, pixels - p);
            for (int j = 0; j < NJ; j++) acc[i][j] += x * q[j];
        }
    }
    for (int i = 0; i < NI; i++)
        for (int j = 0; j < NJ; j++) dL[i * s + j] += sum(acc[i][j]);
}

template <class T, int NI>
static inline void products(const T *g, const T *z, double *dL, int s, int nj, int64_t inner, int64_t pixels) {
    switch (nj) {
        case 1: return products<T, NI, 1>(g, z, dL, s, inner, pixels);
        case 2: return products<T, NI, 2>(g, z, dL, s, inner, pixels);
        case 3: return products<T, NI, 3>(g, z, dL, s, inner, pixels);
        default: return products<T, NI, 4>(g, z, dL, s, inner, pixels);
    }
}

// One block over n positions: r_j = g_j + 2 z_j sum_i L_ij g_i and dL_ij += sum g_i z_j^2.
template <class T, int S>
static void full_backward_block(const T *g, const T *z, const float *L, T *r, double *dL, V *bias, int size,
                                int64_t inner, int64_t pixels) {
    const int s = S ? S : size;
    V some[S ? S : 1];
    std::vector<V> many(S ? 0 : s);
    V *gv = S ? some : many.data();
    for (int64_t p = 0; p < pixels; p += LANES) {
        const int64_t n = pixels - p;
        for (int i = 0; i < s; i++) gv[i] = load(g + i * inner + p, n);
        for (int j = 0; j < s; j++) {
            V a = {}, c = {};
            for (int i = 0; i < s; i++) (i % 2 ? c : a) += L[i * s + j] * gv[i];
            const V back = gv[j] + 2.0f * load(z + j * inner + p, n) * (a + c);
            bias[j] += back;
            store(r + j * inner + p, back, n);
        }
    }
    for (int i = 0; i < s; i += 4)
        for (int j = 0; j < s; j += 4) {
            const int nj = s - j < 4 ? s - j : 4;
            const T *gi = g + i * inner, *zj = z + j * inner;
            double *d = dL + i * s + j;
            switch (s - i) {
                case 1: products<T, 1>(gi, zj, d, s, nj, inner, pixels); break;
                case 2: products<T, 2>(gi, zj, d, s, nj, inner, pixels); break;
                case 3: products<T, 3>(gi, zj, d, s, nj, inner, pixels); break;
                default: products<T, 4>(gi, zj, d, s, nj, inner, pixels);
            }
        }
}

template <class T>
static void full_backward_planes(const T *grad, const T *z, const float *lam, T *result, Totals &totals,
                                 const Blocks &b, int64_t outer, int64_t inner, int threads) {
    struct Worker : PlaneSums {
        const T *grad, *z;
        T *result;
        const float *lam;
        int64_t inner;
        std::vector<V> bias;
        Worker(Totals &t, const Blocks &b, const T *grad, const T *z, T *result, const float *lam, int64_t inner)
            : PlaneSums(t, b), grad(grad), z(z), result(result), lam(lam), inner(inner) {}
        void block(const Block &b, int64_t from, int64_t pixels) {
            const float *L = lam + b.offset;
            double *d = own.eigenvalues.data() + b.offset;
            bias.assign(b.size, V{});
            for (int64_t p = 0; p < pixels; p += PIXELS / 2) {
                const int64_t at = from + p, n = pixels - p < PIXELS / 2 ? pixels - p : PIXELS / 2;
                switch (b.size) {
#define CASE(S)                                                                                            \
    case S:                                                                                                \
        full_backward_block<T, is_float<T>() ? S : 0>(grad + at, z + at, L, result + at, d, bias.data(), S, inner, n);         \
        break;
                    EACH_SIZE(CASE)
#undef CASE
                    default:
                        full_backward_block<T, 0>(grad + at, z + at, L, result + at, d, bias.data(), b.size, inner, n);
                }
            }
            for (int64_t j = 0; j < b.size; j++) add_bias(b.start + j, bias[j]);
        }
    };
    in_blocks(b, outer, inner, threads, [&] { return Worker(totals, b, grad, z, result, lam, inner); });
}
