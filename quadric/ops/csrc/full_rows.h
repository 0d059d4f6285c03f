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
            in_memory(q);
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
            in_memory(own);
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

// Blocks that are too large for vectors.
template <class T> struct WideBlock {
    std::vector<float> x, q, g, t;
    void forward(const T *z, T *y, const float *L, int s, int64_t channels, int64_t rows) {
        x.resize(s), q.resize(s), t.resize(s + LANES);
        for (int64_t r = 0; r < rows; r++, z += channels, y += channels) {
            read(z, x.data(), s);
            for (int j = 0; j < s; j++) q[j] = x[j] * x[j];
            for (int i = 0; i < s; i++) {
                float a = x[i];
                for (int j = 0; j < s; j++) a += L[i * s + j] * q[j];
                t[i] = a;
            }
            write(t.data(), y, s);
        }
    }
    void backward(const T *grad, const T *z, const float *L, T *result, float *sums, float *bias, int s,
                  int64_t channels, int64_t rows) {
        x.resize(s), q.resize(s), g.resize(s), t.resize(s);
        for (int64_t r = 0; r < rows; r++, grad += channels, z += channels, result += channels) {
            read(z, x.data(), s), read(grad, g.data(), s);
            for (int j = 0; j < s; j++) q[j] = x[j] * x[j], t[j] = 0;
            for (int i = 0; i < s; i++)
                for (int j = 0; j < s; j++) t[j] += L[i * s + j] * g[i], sums[i * s + j] += g[i] * q[j];
            for (int j = 0; j < s; j++) t[j] = g[j] + 2 * x[j] * t[j], bias[j] += t[j];
            write(t.data(), result, s);
        }
    }
    static void read(const T *from, float *to, int n) {
        for (int i = 0; i < n; i += LANES) {
            alignas(64) float part[LANES];
            store(part, load(from + i, n - i));
            std::memcpy(to + i, part, (n - i < LANES ? n - i : LANES) * sizeof(float));
        }
    }
    static void write(const float *from, T *to, int n) {
        for (int i = 0; i < n; i += LANES) store(to + i, load(from + i, n - i), n - i);
    }
};

#define EACH_SIZE(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15) DO(16)

template <class T> struct FullForward {
    const Layer &layer;
    const T *z;
    T *y;
    const float *lam, *table;
    WideBlock<T> wide;
    void tile(int64_t r, int64_t rows) {
        const int64_t channels = layer.b.channels;
        const T *from = z + r * channels;
        T *to = y + r * channels;
        for (const Piece &p : layer.pieces) {
            const float *L = table + p.table;
            switch (p.size) {
#define CASE(S)                                                                                                    \
    case S:                                                                                                        \
        (edge<T>(p) ? full_forward_piece<T, S, true> : full_forward_piece<T, S, !is_float<T>()>)(layer, p, L, from, to, rows);  \
        break;
                EACH_SIZE(CASE)
#undef CASE
                default:
                    const Block &block = layer.b.all[p.first];
                    wide.forward(from + block.start, to + block.start, lam + block.offset, p.size, channels, rows);
            }
        }
    }
    void finish() {}
};

template <class T>
static void full_forward_rows(const T *z, T *y, const float *lam, const Layer &layer, int64_t outer, int threads) {
    const std::vector<float> table = spread(layer.forward, lam);
    in_tiles(outer, threads, [&] { return FullForward<T>{layer, z, y, lam, table.data(), {}}; });
}

template <class T> struct FullBackward {
    const Layer &layer;
    const T *grad, *z;
    T *result;
    const float *lam, *table;
    Sums sums;
    WideBlock<T> wide;
    void tile(int64_t r, int64_t rows) {
        const int64_t channels = layer.b.channels, at = r * channels;
        for (const Piece &p : layer.pieces) {
            const float *L = table + p.table;
            float *own = sums.part.data() + p.table, *bias = sums.bias_part.data() + p.lanes;
            switch (p.size) {
#define CASE(S)                                                                              \
    case S:                                                                                  \
        (edge<T>(p) ? full_backward_piece<T, S, true> : full_backward_piece<T, S, !is_float<T>()>)(       \
            layer, p, L, grad + at, z + at, result + at, own, bias, rows);                   \
        break;
                EACH_SIZE(CASE)
#undef CASE
                default:
                    const Block &block = layer.b.all[p.first];
                    const int64_t here = at + block.start;
                    wide.backward(grad + here, z + here, lam + block.offset, result + here, own, bias, p.size, channels,
                                  rows);
            }
        }
        sums.count(rows);
    }
    void finish() { sums.finish(layer); }
};

template <class T>
static void full_backward_rows(const T *grad, const T *z, const float *lam, T *result, Totals &totals,
                               const Layer &layer, int64_t outer, int threads) {
    const std::vector<float> table = spread(layer.backward, lam);
    in_tiles(outer, threads, [&] {
        return FullBackward<T>{layer, grad, z, result, lam, table.data(), Sums(totals, layer), {}};
    });
}
