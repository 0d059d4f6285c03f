// Planes: the positions of a channel lie next to each other, as in NCHW. A vector holds positions of one channel.
#pragma once

#include "full_rows.h"
#include "star_rows.h"

static const int64_t PIXELS = 256;  // of a plane at once: the channels of a block stay in the first cache

// The blocks of all images, shared by the threads; `part` gets a thread's sums, a block, its first number of a stretch
// of positions, and how many.
template <class Part>
static void in_blocks(const Blocks &b, Totals *totals, int64_t outer, int64_t inner, int threads, Part part) {
    const int64_t count = b.all.size(), jobs = outer * count;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Totals own(b, totals && !totals->bias.empty());
#pragma omp for schedule(static)
        for (int64_t job = 0; job < jobs; job++) {
            const Block &block = b.all[job % count];
            const int64_t at = (job / count * b.channels + block.start) * inner;
            for (int64_t p = 0; p < inner; p += PIXELS)
                part(own, block, at + p, inner - p < PIXELS ? inner - p : PIXELS);
        }
#pragma omp critical
        if (totals) {
            for (size_t e = 0; e < own.eigenvalues.size(); e++) totals->eigenvalues[e] += own.eigenvalues[e];
            for (size_t c = 0; c < own.bias.size(); c++) totals->bias[c] += own.bias[c];
        }
    }
}

template <class T>
static void star_forward_planes(const T *z, T *y, const float *lam, const Blocks &b, int64_t outer, int64_t inner,
                                int threads) {
    in_blocks(b, nullptr, outer, inner, threads, [&](Totals &, const Block &b, int64_t at, int64_t pixels) {
        const float *l = lam + b.offset;
        for (int64_t p = 0; p < pixels; p += LANES) {
            const int64_t n = pixels - p;
            const T *from = z + at + p;
            T *to = y + at + p;
            V a = load(from, n), c = {};
            for (int64_t j = 1; j < b.size; j++) {
                const V x = load(from + j * inner, n);
                (j % 2 ? a : c) += l[j - 1] * x * x;
                if (y != z) store(to + j * inner, x, n);
            }
            store(to, a + c, n);
        }
    });
}

template <class T>
static void star_backward_planes(const T *grad, const T *out, const float *lam, T *result, Totals &totals,
                                 const Blocks &b, int64_t outer, int64_t inner, int threads) {
    in_blocks(b, &totals, outer, inner, threads, [&](Totals &own, const Block &b, int64_t at, int64_t pixels) {
        const T *gy = grad + at;
        for (int64_t j = 0; j < b.size; j++) {  // y itself is a feature that takes part in nothing
            const T *g = gy + j * inner, *f = out + at + j * inner;
            T *r = result + at + j * inner;
            const float twice = j ? 2 * lam[b.offset + j - 1] : 0;
            V acc = {}, sums = {};
            for (int64_t p = 0; p < pixels; p += LANES) {
                const int64_t n = pixels - p;
                V back = load(g + p, n);
                if (j) {
                    const V x = load(f + p, n), gf = load(gy + p, n) * x;
                    back += twice * gf, acc += gf * x;
                }
                store(r + p, back, n);
                sums += back;
            }
            if (j) own.eigenvalues[b.offset + j - 1] += sum(acc);
            if (!own.bias.empty()) own.bias[b.start + j] += sum(sums);
        }
    });
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
    in_blocks(b, nullptr, outer, inner, threads, [&](Totals &, const Block &b, int64_t at, int64_t pixels) {
        const float *L = lam + b.offset;
        switch (b.size) {
#define CASE(S) case S: full_forward_block<T, is_float<T>() ? S : 0>(z + at, y + at, L, S, inner, pixels); break;
            EACH_SIZE(CASE)
#undef CASE
            default: full_forward_block<T, 0>(z + at, y + at, L, b.size, inner, pixels);
        }
    });
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
static void full_backward_block(const T *g, const T *z, const float *L, T *r, double *dL, double *bias, int size,
                                int64_t inner, int64_t pixels) {
    const int s = S ? S : size;
    V some[S ? 2 * S : 1];
    std::vector<V> many(S ? 0 : 2 * s);
    V *gv = S ? some : many.data(), *total = gv + s;
    for (int j = 0; j < s; j++) total[j] = V{};
    for (int64_t p = 0; p < pixels; p += LANES) {
        const int64_t n = pixels - p;
        for (int i = 0; i < s; i++) gv[i] = load(g + i * inner + p, n);
        for (int j = 0; j < s; j++) {
            V a = {}, c = {};
            for (int i = 0; i < s; i++) (i % 2 ? c : a) += L[i * s + j] * gv[i];
            const V back = gv[j] + 2.0f * load(z + j * inner + p, n) * (a + c);
            total[j] += back;
            store(r + j * inner + p, back, n);
        }
    }
    for (int j = 0; j < s && bias; j++) bias[j] += sum(total[j]);
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
    in_blocks(b, &totals, outer, inner, threads, [&](Totals &own, const Block &b, int64_t at, int64_t pixels) {
        const T *g = grad + at, *x = z + at;
        T *r = result + at;
        const float *L = lam + b.offset;
        double *d = own.eigenvalues.data() + b.offset, *bias = own.bias.empty() ? nullptr : &own.bias[b.start];
        switch (b.size) {
#define CASE(S) case S: full_backward_block<T, is_float<T>() ? S : 0>(g, x, L, r, d, bias, S, inner, pixels); break;
            EACH_SIZE(CASE)
#undef CASE
            default: full_backward_block<T, 0>(g, x, L, r, d, bias, b.size, inner, pixels);
        }
    });
}
