// y + sum_j lambda_j f_j^2 in rows.
#pragma once

#include "rows.h"

inline void Layer::fill_star(const Piece &p, const Block &block) {
    for (int64_t j = 0; j < block.size; j++)
        for (int v = 0; v < p.vectors(); v++) {
            const int64_t lane = block.start + j - at(p, v), here = p.lanes + v * LANES + lane;
            if (lane < 0 || lane >= LANES) continue;
            mine[here] = -(p.width == LANES || j >= v * LANES);
            if (j == 0) heads[here] = -1;
            else features[here] = -1, forward[here] = block.offset + j - 1;
            for (int k = 0; k < 3; k++) {
                const bool inside = p.shares() && j + (1 << k) < block.size;
                next[k][here] = inside ? lane + (1 << k) : lane, within[k][here] = -inside;
            }
        }
}

// Backward a lane needs the gradient of its y alone, so the vectors of a row are filled whatever the blocks are. The y
// of the first lanes stands in another vector, which is read from that y on.
inline void Layer::fill_spans() {
    int64_t i = 0;
    for (int64_t c = 0; c < b.channels; c += LANES) {
        const bool last = c + LANES > b.channels;
        Span span = {last && b.channels > LANES ? b.channels - LANES : c, 0, last};
        while (b.all[i].start + b.all[i].size <= span.at) i++;
        while (b.all[i].start > span.at) i--;
        span.before = b.all[i].start < span.at ? b.all[i].start : span.at;
        int64_t own = i;
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t at = span.at + lane, here = spans.size() * LANES + lane;
            if (at >= b.channels) break;
            if (at >= b.all[own].start + b.all[own].size) own++;
            const Block &block = b.all[own];
            const int64_t eigenvalue = at == block.start ? -1 : block.offset + at - block.start - 1;
            backward[here] = eigenvalue, feature[here] = -(eigenvalue >= 0);
            head_of[here] = block.start < span.at ? 0 : LANES + block.start - span.at;
            if (at >= c) summed[here] = eigenvalue, channel[here] = at, fresh[here] = -1;
        }
        spans.push_back(span);
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

// Lane i of the result is the sum of the lanes of all[i].
static inline V sums_of(V *all) {
#pragma GCC unroll 4
    for (int k = 1; k < LANES; k *= 2) {
        I odd, other;
        for (int c = 0; c < LANES; c++) odd[c] = c & k ? -1 : 0, other[c] = (c & k ? LANES + c : c) ^ k;
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2 / k; i++)
            all[i] = choose(odd, all[2 * i + 1], all[2 * i]) + pick(all[2 * i], all[2 * i + 1], other);
    }
    return all[0];
}

// A block with vectors of its own: the sums of as many rows as a vector has lanes are made together.
template <class T, bool EDGE>
static void star_forward_alone(const Layer &layer, const Piece &p, const float *weights, const T *z, T *y, int64_t rows) {
    const int64_t channels = layer.b.channels, start = layer.first_channel(p), n = EDGE ? channels - p.at : LANES;
    if (y != z)
        for (int64_t r = 0; r < rows; r++)
            std::memcpy(y + r * channels + start, z + r * channels + start, p.size * sizeof(T));
    for (int64_t r0 = 0; r0 < rows; r0 += LANES) {
        const int64_t count = rows - r0 < LANES ? rows - r0 : LANES;
        V all[LANES] = {};
        for (int v = 0; v < p.vectors(); v++) {
            // Of features that stand in two vectors, and of y, nothing is added.
            const I own = lanes(&layer.features[p.lanes + v * LANES]) & lanes(&layer.mine[p.lanes + v * LANES]);
            const V w = load(weights + v * LANES);
            const T *x = z + r0 * channels + layer.at(p, v);
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                if (r < count) {
                    const V f = load(x + r * channels, n);
                    all[r] += only(own, w * f * f);
                }
        }
        const V sums = sums_of(all);
        T *to = y + r0 * channels + start;
        for (int r = 0; r < count; r++, to += channels) set(to, get(to) + sums[r]);
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

// r_y = g_y, r_j = g_j + 2 lambda_j g_y f_j and dlambda_j += g_y f_j^2, and sums of r for the gradient of the bias.
template <class T, bool EDGE>
static void star_backward_span(const Layer &layer, int64_t lane, const float *weights, const T *grad, const T *out,
                               T *result, float *sums, float *bias, int64_t rows) {
    const Span &span = layer.spans[lane / LANES];
    const int64_t channels = layer.b.channels, n = EDGE ? channels - span.at : LANES;
    const V twice = 2.0f * load(weights + lane);
    const I feature = lanes(&layer.feature[lane]), head_of = lanes(&layer.head_of[lane]);
    const I fresh = lanes(&layer.fresh[lane]);
    V acc = load(sums + lane), total = load(bias + lane);
    const T *gs = grad + span.at, *before = grad + span.before, *fs = out + span.at;
    T *to = result + span.at;
    for (int64_t r = 0; r < rows; r++, gs += channels, before += channels, fs += channels, to += channels) {
        const V g = load(gs, n), f = load(fs, n), gf = pick(load(before, n), g, head_of) * f;
        acc += gf * f;
        const V back = choose(feature, g + twice * gf, g);
        total += back;
        store(to, EDGE ? choose(fresh, back, load(to, n)) : back, n);
    }
    store(sums + lane, acc), store(bias + lane, total);
}

template <class T>
static void star_forward_rows(const T *z, T *y, const float *lam, const Layer &layer, int64_t outer, int threads) {
    const std::vector<float> weights = spread(layer.forward, lam);
    in_tiles(outer, threads, [&](int64_t r, int64_t rows) {
        const int64_t at = r * layer.b.channels;
        for (const Piece &p : layer.pieces)
            (p.edge && p.width == LANES ? star_forward_any<T, true> : star_forward_any<T, false>)(
                layer, p, weights.data() + p.lanes, z + at, y + at, rows);
    });
}

template <class T>
static void star_backward_rows(const T *grad, const T *out, const float *lam, T *result, Totals &totals,
                               const Layer &layer, int64_t outer, int threads) {
    const std::vector<float> weights = spread(layer.backward, lam);
    summed_in_tiles(layer, totals, outer, threads, [&](int64_t r, int64_t rows, float *sums, float *bias) {
        const int64_t at = r * layer.b.channels;
        for (size_t i = 0; i < layer.spans.size(); i++)
            (layer.spans[i].edge ? star_backward_span<T, true> : star_backward_span<T, false>)(
                layer, i * LANES, weights.data(), grad + at, out + at, result + at, sums, bias, rows);
    });
}
