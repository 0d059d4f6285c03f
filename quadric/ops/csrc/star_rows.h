// y + sum_j lambda_j f_j^2 in rows.
#pragma once

#include "rows.h"

inline void Layer::fill_star(const Piece &p, const Block &block) {
    for (int64_t j = 0; j < block.size; j++)
        for (int v = 0; v < p.vectors(); v++) {
            const int64_t lane = block.start + j - at(p, v), here = p.lanes + v * LANES + lane;
            if (lane < 0 || lane >= LANES) continue;
            const bool first = p.width == LANES || j >= v * LANES;
            if (first) own(here, block.start + j);
            if (j == 0) heads[here] = -1;
            else {
                features[here] = -1, forward[here] = backward[here] = block.offset + j - 1;
                if (first) summed[here] = block.offset + j - 1;
            }
            head_of[here] = p.width == LANES ? lane - j : 0;
            for (int k = 0; k < 3; k++) {
                const bool inside = p.shares() && j + (1 << k) < block.size;
                next[k][here] = inside ? lane + (1 << k) : lane, within[k][here] = -inside;
            }
        }
}

// Blocks that share a vector: after steps of 1, 2, 4 lanes the first lane of a block has the sum of all.
template <class T, int STEPS, bool EDGE>
static void star_forward_piece(const Layer &layer, const Piece &p, const float *weights, const T *z, T *y, int64_t rows) {
    const int64_t channels = layer.b.channels, n = EDGE ? channels - p.at : LANES;
    const V w = load(weights);
    const I features = lanes(&layer.features[p.lanes]), heads = lanes(&layer.heads[p.lanes]), mine = lanes(&layer.mine[p.lanes]);
    I next[3], within[3];
    for (int k = 0; k < 3; k++) next[k] = lanes(&layer.next[k][p.lanes]), within[k] = lanes(&layer.within[k][p.lanes]);
    z += p.at, y += p.at;
    for (int64_t r = 0; r < rows; r++, z += channels, y += channels) {
        const V x = load(z, n);
        V sums = only(features, w * x * x);
#pragma GCC unroll 3
        for (int k = 0; k < STEPS; k++) sums += only(within[k], pick(sums, next[k]));
        const V out = choose(heads, x + sums, x);
        store(y, EDGE ? choose(mine, out, load(y, n)) : out, n);
    }
}

// A block with vectors of its own: the sum of all lanes.
template <class T, bool EDGE>
static void star_forward_alone(const Layer &layer, const Piece &p, const float *weights, const T *z, T *y, int64_t rows) {
    const int64_t channels = layer.b.channels, first = layer.at(p, 0), n = EDGE ? channels - first : LANES;
    const int vectors = p.vectors();
    const I heads = lanes(&layer.heads[p.lanes]), mine = lanes(&layer.mine[p.lanes]);
    I turn[4], one = {};
    for (int c = 0; c < LANES; c++) one[c] = c;
    for (int k = 0; k < 4; k++) turn[k] = (one + (1 << k)) & (LANES - 1);
    for (int64_t r = 0; r < rows; r++, z += channels, y += channels) {
        const V x = load(z + first, n);
        V sums = only(lanes(&layer.features[p.lanes]), load(weights) * x * x);
        for (int v = 1; v < vectors; v++) {
            const int64_t lane = p.lanes + v * LANES, at = layer.at(p, v);
            const V other = load(z + at);
            sums += only(lanes(&layer.mine[lane]), load(weights + lane - p.lanes) * other * other);
            if (y != z) store(y + at, other);
        }
#pragma GCC unroll 4
        for (int k = 0; 1 << k < LANES; k++) sums += pick(sums, turn[k]);
        const V out = choose(heads, x + sums, x);
        store(y + first, EDGE ? choose(mine, out, load(y + first, n)) : out, n);
    }
}

template <class T, bool EDGE>
static void star_forward_any(const Layer &layer, const Piece &p, const float *weights, const T *z, T *y, int64_t rows) {
    if (!p.shares()) star_forward_alone<T, EDGE>(layer, p, weights, z, y, rows);
    else if (p.size == 1) star_forward_piece<T, 0, EDGE>(layer, p, weights, z, y, rows);
    else if (p.size == 2) star_forward_piece<T, 1, EDGE>(layer, p, weights, z, y, rows);
    else if (p.size <= 4) star_forward_piece<T, 2, EDGE>(layer, p, weights, z, y, rows);
    else star_forward_piece<T, 3, EDGE>(layer, p, weights, z, y, rows);
}

template <class T, bool EDGE>
static void star_backward_piece(const Layer &layer, const Piece &p, const float *weights, const T *grad, const T *out, T *result, float *sums,
                                float *bias, int64_t rows) {
    const int64_t channels = layer.b.channels, first = layer.at(p, 0);
    const I head_of = lanes(&layer.head_of[p.lanes]);
    for (int v = 0; v < p.vectors(); v++) {
        const int64_t lane = p.lanes + v * LANES, at = layer.at(p, v), n = EDGE ? channels - at : LANES;
        const V twice = 2.0f * load(weights + lane - p.lanes);
        const I features = lanes(&layer.features[lane]), mine = lanes(&layer.mine[lane]);
        V acc = load(sums + v * LANES), total = load(bias + v * LANES);
        const T *gs = grad + at, *heads = grad + first, *fs = out + at;
        T *to = result + at;
        for (int64_t r = 0; r < rows; r++, gs += channels, heads += channels, fs += channels, to += channels) {
            const V g = load(gs, n), f = load(fs, n), gf = pick(v ? load(heads) : g, head_of) * f;
            acc += gf * f;
            const V back = choose(features, g + twice * gf, g);
            total += back;
            store(to, EDGE ? choose(mine, back, load(to, n)) : back, n);
        }
        store(sums + v * LANES, acc), store(bias + v * LANES, total);
    }
}

template <class T> struct StarForward {
    const Layer &layer;
    const T *z;
    T *y;
    const float *weights;
    void tile(int64_t r, int64_t rows) {
        const int64_t at = r * layer.b.channels;
        for (const Piece &p : layer.pieces)
            (p.edge && p.width == LANES ? star_forward_any<T, true> : star_forward_any<T, false>)(
                layer, p, weights + p.lanes, z + at, y + at, rows);
    }
    void finish() {}
};

template <class T>
static void star_forward_rows(const T *z, T *y, const float *lam, const Layer &layer, int64_t outer, int threads) {
    const std::vector<float> weights = spread(layer.forward, lam);
    in_tiles(outer, threads, [&] { return StarForward<T>{layer, z, y, weights.data()}; });
}

template <class T> struct StarBackward {
    const Layer &layer;
    const T *grad, *out;
    T *result;
    const float *weights;
    Sums sums;
    void tile(int64_t r, int64_t rows) {
        const int64_t at = r * layer.b.channels;
        for (const Piece &p : layer.pieces)
            (p.edge && p.width == LANES ? star_backward_piece<T, true> : star_backward_piece<T, false>)(
                layer, p, weights + p.lanes, grad + at, out + at, result + at, sums.part.data() + p.lanes,
                sums.bias_part.data() + p.lanes, rows);
        sums.count(rows);
    }
    void finish() { sums.finish(layer); }
};

template <class T>
static void star_backward_rows(const T *grad, const T *out, const float *lam, T *result, Totals &totals,
                               const Layer &layer, int64_t outer, int threads) {
    const std::vector<float> weights = spread(layer.backward, lam);
    in_tiles(outer, threads, [&] {
        return StarBackward<T>{layer, grad, out, result, weights.data(), Sums(totals, layer)};
    });
}
