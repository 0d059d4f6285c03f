// z_i + sum_j L_ij z_j^2 in rows.
#pragma once

#include "rows.h"

// A lane with channel j of a block takes part in one product for each channel e of the block: of blocks that share a
// vector the d-th is with e = (j + d) % size, else with d. Forward its eigenvalue is L_je, backward L_ej.
inline void Layer::fill_full(const Piece &p, const Block &block) {
    const int s = block.size, base = block.start - p.at;
    if (s > WIDEST) {
        for (int i = 0; i < s * s; i++) summed[p.table + i] = block.offset + i;
        for (int j = 0; j < s; j++) own(p.lanes + j, block.start + j);
        return;
    }
    if (block.start == first_channel(p))
        for (int64_t i = 0; i < (int64_t)p.size * p.width; i++) from[p.table + i] = i % p.width;
    for (int j = 0; j < s; j++) {
        own(p.lanes + base + j, block.start + j);
        for (int d = 0; d < s; d++) {
            const int e = !p.shares() ? d : j + d < s ? j + d : j + d - s;
            const int64_t here = p.table + d * p.width + base + j;
            from[here] = base + e, forward[here] = block.offset + j * s + e;
            backward[here] = summed[here] = block.offset + e * s + j;
        }
    }
}

// Other types than float take the longer way everywhere, so that the compiler has less to do.
template <class T> static constexpr bool is_float() { return sizeof(T) == sizeof(float); }
template <class T> static bool edge(const Piece &p) { return p.edge || !is_float<T>(); }
template <int S> static constexpr bool shares() { return 2 * S <= LANES; }

template <class T, int S, bool EDGE>
static void full_forward_piece(const Layer &layer, const Piece &p, const float *table, const T *z, T *y, int64_t rows) {
    const int64_t channels = layer.b.channels, n = EDGE ? channels - p.at : p.width;
    const int first = EDGE ? layer.first_channel(p) - p.at : 0;
    if constexpr (shares<S>()) {
        V m[S];
        I from[S];
#pragma GCC unroll 16
        for (int d = 0; d < S; d++) m[d] = load(table + d * LANES), from[d] = lanes(&layer.from[p.table + d * LANES]);
        const I mine = lanes(&layer.mine[p.lanes]);
        z += p.at, y += p.at;
        for (int64_t r = 0; r < rows; r++, z += channels, y += channels) {
            const V x = load(z, n), q = x * x;
            V a = x + m[0] * q, c = {};
#pragma GCC unroll 16
            for (int d = 1; d < S; d++) (d % 2 ? c : a) += m[d] * pick(q, from[d]);
            store(y, choose(mine, a + c, EDGE ? load(y, n) : x), n);
        }
    } else {
        constexpr int NV = (S + LANES - 1) / LANES;
        I mine[NV];
        for (int v = 0; v < NV; v++) mine[v] = lanes(&layer.mine[p.lanes + v * LANES]);
        V m[S][NV];
#pragma GCC unroll 16
        for (int d = 0; d < S; d++)
            for (int v = 0; v < NV; v++) m[d][v] = load(table + (d * NV + v) * LANES);
        alignas(64) float q[NV * LANES];
        z += p.at, y += p.at;
        for (int64_t r = 0; r < rows; r++, z += channels, y += channels) {
            V x[NV], a[NV], c[NV];
            for (int v = 0; v < NV; v++) {
                x[v] = a[v] = load(z + v * LANES, n - v * LANES);
                c[v] = V{};
                store(q + v * LANES, x[v] * x[v]);
            }
#pragma GCC unroll 16
            for (int d = 0; d < S; d++)
                for (int v = 0; v < NV; v++) (d % 2 ? c : a)[v] += q[first + d] * m[d][v];
            for (int v = 0; v < NV; v++) {
                const int64_t left = n - v * LANES;
                T *to = y + v * LANES;
                store(to, choose(mine[v], a[v] + c[v], EDGE ? load(to, left) : x[v]), left);
            }
        }
    }
}

// r_j = g_j + 2 z_j sum_i L_ij g_i and dL_ij += g_i z_j^2, and sums of r for the gradient of the bias.
template <class T, int S, bool EDGE>
static void full_backward_piece(const Layer &layer, const Piece &p, const float *table, const T *grad,
                                const T *z, T *result, float *sums, float *bias, int64_t rows) {
    const int64_t channels = layer.b.channels, n = EDGE ? channels - p.at : p.width;
    const int first = EDGE ? layer.first_channel(p) - p.at : 0;
    grad += p.at, z += p.at, result += p.at;
    if constexpr (shares<S>()) {
        V m[S], acc[S], total = load(bias);
        I from[S];
#pragma GCC unroll 16
        for (int d = 0; d < S; d++) {
            m[d] = load(table + d * LANES), acc[d] = load(sums + d * LANES);
            from[d] = lanes(&layer.from[p.table + d * LANES]);
        }
        const I mine = lanes(&layer.mine[p.lanes]);
        for (int64_t r = 0; r < rows; r++, grad += channels, z += channels, result += channels) {
            const V g = load(grad, n), x = load(z, n), q = x * x;
            V a = m[0] * g, c = {};
            acc[0] += g * q;
#pragma GCC unroll 16
            for (int d = 1; d < S; d++) {
                const V other = pick(g, from[d]);
                (d % 2 ? c : a) += m[d] * other;
                acc[d] += other * q;
            }
            const V out = g + 2.0f * x * (a + c);
            total += out;
            store(result, EDGE ? choose(mine, out, load(result, n)) : out, n);
        }
#pragma GCC unroll 16
        for (int d = 0; d < S; d++) store(sums + d * LANES, acc[d]);
        store(bias, total);
    } else {
        constexpr int NV = (S + LANES - 1) / LANES;
        I mine[NV];
        V acc[S][NV], total[NV];
        for (int v = 0; v < NV; v++) mine[v] = lanes(&layer.mine[p.lanes + v * LANES]), total[v] = load(bias + v * LANES);
#pragma GCC unroll 16
        for (int d = 0; d < S; d++)
            for (int v = 0; v < NV; v++) acc[d][v] = load(sums + (d * NV + v) * LANES);
        alignas(64) float own[NV * LANES];
        for (int64_t r = 0; r < rows; r++, grad += channels, z += channels, result += channels) {
            V g[NV], x[NV], q[NV], a[NV], c[NV];
            for (int v = 0; v < NV; v++) {
                g[v] = load(grad + v * LANES, n - v * LANES), x[v] = load(z + v * LANES, n - v * LANES);
                q[v] = x[v] * x[v], a[v] = c[v] = V{};
                store(own + v * LANES, g[v]);
            }
#pragma GCC unroll 16
            for (int d = 0; d < S; d++)
                for (int v = 0; v < NV; v++) {
                    (d % 2 ? c : a)[v] += own[first + d] * load(table + (d * NV + v) * LANES);
                    acc[d][v] += own[first + d] * q[v];
                }
            for (int v = 0; v < NV; v++) {
                const int64_t left = n - v * LANES;
                T *to = result + v * LANES;
                const V out = g[v] + 2.0f * x[v] * (a[v] + c[v]);
                total[v] += out;
                store(to, EDGE ? choose(mine[v], out, load(to, left)) : out, left);
            }
        }
#pragma GCC unroll 16
        for (int d = 0; d < S; d++)
            for (int v = 0; v < NV; v++) store(sums + (d * NV + v) * LANES, acc[d][v]);
        for (int v = 0; v < NV; v++) store(bias + v * LANES, total[v]);
    }
}

// Blocks that are too large for vectors, as floats.
template <class A, class B> static void copy(const A *from, B *to, int n) {
    for (int i = 0; i < n; i += LANES) store(to + i, load(from + i, n - i), n - i);
}

template <class T>
static void wide_forward(const T *z, T *y, const float *L, int s, int64_t channels, int64_t rows) {
    std::vector<float> x(s), q(s), t(s);
    for (int64_t r = 0; r < rows; r++, z += channels, y += channels) {
        copy(z, x.data(), s);
        for (int j = 0; j < s; j++) q[j] = x[j] * x[j];
        for (int i = 0; i < s; i++) {
            float a = x[i];
            for (int j = 0; j < s; j++) a += L[i * s + j] * q[j];
            t[i] = a;
        }
        copy(t.data(), y, s);
    }
}

template <class T>
static void wide_backward(const T *grad, const T *z, const float *L, T *result, float *sums, float *bias, int s,
                          int64_t channels, int64_t rows) {
    std::vector<float> x(s), q(s), g(s), t(s);
    for (int64_t r = 0; r < rows; r++, grad += channels, z += channels, result += channels) {
        copy(z, x.data(), s), copy(grad, g.data(), s);
        for (int j = 0; j < s; j++) q[j] = x[j] * x[j], t[j] = 0;
        for (int i = 0; i < s; i++)
            for (int j = 0; j < s; j++) t[j] += L[i * s + j] * g[i], sums[i * s + j] += g[i] * q[j];
        for (int j = 0; j < s; j++) t[j] = g[j] + 2 * x[j] * t[j], bias[j] += t[j];
        copy(t.data(), result, s);
    }
}

#define EACH_SIZE(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15) DO(16)

template <class T>
static void full_forward_rows(const T *z, T *y, const float *lam, const Layer &layer, int64_t outer, int threads) {
    const std::vector<float> table = spread(layer.forward, lam);
    const int64_t channels = layer.b.channels;
    in_tiles(outer, threads, [&](int64_t r, int64_t rows) {
        const T *from = z + r * channels;
        T *to = y + r * channels;
        for (const Piece &p : layer.pieces) {
            const float *L = table.data() + p.table;
            const Block &b = layer.b.all[p.first];
            switch (p.size) {
#define CASE(S)                                                                                       \
    case S:                                                                                           \
        (edge<T>(p) ? full_forward_piece<T, S, true> : full_forward_piece<T, S, !is_float<T>()>)(     \
            layer, p, L, from, to, rows);                                                             \
        break;
                EACH_SIZE(CASE)
#undef CASE
                default: wide_forward(from + b.start, to + b.start, lam + b.offset, b.size, channels, rows);
            }
        }
    });
}

template <class T>
static void full_backward_rows(const T *grad, const T *z, const float *lam, T *result, Totals &totals,
                               const Layer &layer, int64_t outer, int threads) {
    const std::vector<float> table = spread(layer.backward, lam);
    const int64_t channels = layer.b.channels;
    summed_in_tiles(layer, totals, outer, threads, [&](int64_t r, int64_t rows, float *sums, float *bias) {
        const T *g = grad + r * channels, *x = z + r * channels;
        T *to = result + r * channels;
        for (const Piece &p : layer.pieces) {
            const float *L = table.data() + p.table;
            float *own = sums + p.table, *of_bias = bias + p.lanes;
            const Block &b = layer.b.all[p.first];
            switch (p.size) {
#define CASE(S)                                                                                       \
    case S:                                                                                           \
        (edge<T>(p) ? full_backward_piece<T, S, true> : full_backward_piece<T, S, !is_float<T>()>)(   \
            layer, p, L, g, x, to, own, of_bias, rows);                                               \
        break;
                EACH_SIZE(CASE)
#undef CASE
                default:
                    wide_backward(g + b.start, x + b.start, lam + b.offset, to + b.start, own, of_bias, b.size,
                                  channels, rows);
            }
        }
    });
}
