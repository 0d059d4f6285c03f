// Rows: the channels of a position lie next to each other. A vector holds neighboring blocks of a row, as many as fit.
//
// In the last vector of a row the blocks stand at its end, so that it does not reach beyond the row. Its other lanes,
// which belong to other blocks, keep what they have. Zero times infinity is NaN: no lane may get in from another block.
#pragma once

#include "vectors.h"

static const int64_t ROWS = 16;    // of a tile: wide rows still fit the near caches
static const int64_t FLUSH = 128;  // rows that are summed as float before they are added to a double
static const int WIDEST = 16;      // of full blocks that stand in vectors

// The channels from `at` on: blocks first to first + count of the layer, in `width` lanes.
struct Piece {
    int64_t at;
    int first, count, size, width;
    int64_t table, lanes;  // where its products start, one vector for each channel of the largest block, and its lanes
    bool edge;             // whether the blocks do not start with the vector, or the row ends before it
    bool shares() const { return 2 * size <= LANES; }
    int vectors() const { return width / LANES; }
};

// A vector of a row: the channels from `at` on, and where the y of the first of them stands.
struct Span {
    int64_t at, before;
    bool edge;
};

// The blocks of a layer and how they stand in vectors; made once for a layer.
struct Layer {
    Blocks b;
    std::vector<Piece> pieces;
    int64_t floats = 0, lanes = 0;  // of all products, and of all pieces
    std::vector<int32_t> mine;      // of a lane: whether its channel belongs to the piece, and to no vector before
    // Of a product, which for stars is a lane: its eigenvalue forward and backward and the one whose sum it has, or -1.
    std::vector<int32_t> forward, backward, summed;
    std::vector<int32_t> channel;                     // of a lane backward: the channel that it sums, or -1
    std::vector<int32_t> from;                        // full: the lane of a product's other channel
    std::vector<int32_t> features, heads;             // star: the kind of a lane
    std::vector<int32_t> next[3], within[3];          // star: the lane 1, 2, 4 on, if in the same block
    std::vector<Span> spans;                          // star: the vectors of a row backward
    std::vector<int32_t> feature, fresh, head_of;     // and of their lanes

    explicit Layer(const int64_t *facts) : b(facts) {
        const int n = b.all.size();
        for (int i = 0; i < n;) {
            Piece p = {b.all[i].start, i, 1, (int)b.all[i].size, LANES, floats, lanes, false};
            if (p.shares()) {
                const int64_t end = p.at + LANES;
                for (i++; i < n && 2 * b.all[i].size <= LANES && b.all[i].start + b.all[i].size <= end; i++, p.count++)
                    if (b.all[i].size > p.size) p.size = b.all[i].size;
            } else {
                i++;
                p.width = (p.size + LANES - 1) / LANES * LANES;
            }
            if (p.at + p.width > b.channels) p.at = b.channels > p.width ? b.channels - p.width : 0;
            p.edge = p.at < first_channel(p) || p.at + p.width > b.channels;
            floats += (int64_t)p.size * p.width, lanes += p.width;
            pieces.push_back(p);
        }
        const int64_t back = b.star ? (b.channels + LANES - 1) / LANES * LANES : lanes;
        forward.resize(b.star ? lanes : floats, -1), channel.resize(back, -1);
        for (auto *each : {&backward, &summed}) each->resize(b.star ? back : floats, -1);
        for (auto *each : {&mine, &features, &heads, &next[0], &next[1], &next[2]}) each->resize(lanes);
        for (auto &each : within) each.resize(lanes);
        for (auto *each : {&feature, &fresh, &head_of}) each->resize(back);
        from.resize(floats);
        for (const Piece &p : pieces)
            for (int i = p.first; i < p.first + p.count; i++) b.star ? fill_star(p, b.all[i]) : fill_full(p, b.all[i]);
        if (b.star) fill_spans();
    }
    int64_t first_channel(const Piece &p) const { return b.all[p.first].start; }
    // The first channel of vector v of a star: the last vector of a large one stands at its end.
    int64_t at(const Piece &p, int v) const {
        const int64_t past = v * LANES + LANES - p.size;
        return p.width == LANES ? p.at : first_channel(p) + v * LANES - (past > 0 ? past : 0);
    }
    void own(int64_t lane, int64_t c) { channel[lane] = c, mine[lane] = -1; }
    void fill_full(const Piece &p, const Block &block);
    void fill_star(const Piece &p, const Block &block);
    void fill_spans();
};

// The eigenvalues of products, zero where there is none.
static std::vector<float> spread(const std::vector<int32_t> &which, const float *lam) {
    std::vector<float> all(which.size());
    for (size_t i = 0; i < which.size(); i++) all[i] = which[i] < 0 ? 0 : lam[which[i]];
    return all;
}

// What the backward pass adds up over all positions.
struct Totals {
    std::vector<double> eigenvalues, bias;
    Totals(const Blocks &b, bool biased) : eigenvalues(b.eigenvalues, 0.0), bias(biased ? b.channels : 0, 0.0) {}
};

// A thread's sums of products and of lanes: short ones in float, which go into long ones in double.
struct Sums {
    std::vector<float> part, bias_part;
    std::vector<double> whole, bias;
    int64_t since = 0;
    explicit Sums(const Layer &layer)
        : part(layer.summed.size()), bias_part(layer.channel.size()), whole(part.size()), bias(bias_part.size()) {}
    void flush() {
        for (size_t i = 0; i < part.size(); i++) whole[i] += part[i], part[i] = 0;
        for (size_t i = 0; i < bias.size(); i++) bias[i] += bias_part[i], bias_part[i] = 0;
        since = 0;
    }
    void add_to(Totals &totals, const Layer &layer) {
        flush();
        for (size_t i = 0; i < whole.size(); i++)
            if (layer.summed[i] >= 0) totals.eigenvalues[layer.summed[i]] += whole[i];
        for (size_t i = 0; i < bias.size() && !totals.bias.empty(); i++)
            if (layer.channel[i] >= 0) totals.bias[layer.channel[i]] += bias[i];
    }
};

// The tiles of rows, shared by the threads; `tile` gets the first row and how many.
template <class Tile> static void in_tiles(int64_t outer, int threads, Tile tile) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t r = 0; r < outer; r += ROWS) tile(r, outer - r < ROWS ? outer - r : ROWS);
}

// The same with the sums of the backward pass.
template <class Tile> static void summed_in_tiles(const Layer &layer, Totals &totals, int64_t outer, int threads, Tile tile) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Sums sums(layer);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < outer; r += ROWS) {
            tile(r, outer - r < ROWS ? outer - r : ROWS, sums.part.data(), sums.bias_part.data());
            if ((sums.since += ROWS) >= FLUSH) sums.flush();
        }
#pragma omp critical
        sums.add_to(totals, layer);
    }
}
