// Fused epilogues of the eigen and the shared neuron, float32, one pass forward and one backward.
//
// A tensor is (outer, channels, inner): images in NCHW have inner = H * W, images in channels_last and matrices have
// inner = 1, the channels being contiguous. Channels fall into blocks (`start`, `size`, `offset` of the first eigenvalue):
// for eigen a block is a neuron, y first and its features behind; for shared it is a group of outputs with a size x size
// matrix of eigenvalues. The library is called through ctypes: torch's headers would take longer to build than all of this.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "vectors.h"

// As many floats as a register has: split by the compiler, wider vectors go through memory.
#if defined(__AVX512F__)
typedef float V __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float V __attribute__((vector_size(32)));
#else
typedef float V __attribute__((vector_size(16)));
#endif
static const int LANES = sizeof(V) / sizeof(float);
typedef float V8 __attribute__((vector_size(32)));  // 8 floats: one group of the shared neuron

static inline V load(const float *p) { V v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store(float *p, V v) { std::memcpy(p, &v, sizeof v); }
static inline V8 load8(const float *p) { V8 v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store8(float *p, V8 v) { std::memcpy(p, &v, sizeof v); }
static inline float sum(V v) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += v[i];
    return s;
}

static const int64_t FLOAT_ROWS = 256;  // after so many, with the tile they end in, sums in float go into those in double
static const int64_t WIDE = 256;        // rows of more channels are long
static const int64_t BLOCK = 512;       // pixels handled at once: a block of ten channels stays in the first cache

struct Blocks {
    int64_t count, eigenvalues;
    const int32_t *start, *size, *offset;
};

// What follows the squares: a scale and a shift of each channel (or null), and a ReLU. NaN stays NaN. In front of the ReLU
// rows also get another tensor of the same layout added (or null).
struct Finish {
    const float *scale, *shift;
    bool relu;
    const float *added = nullptr;
    bool any() const { return scale || shift || relu || added; }
    Finish at(int64_t number) const { return {scale, shift, relu, added ? added + number : added}; }
    Finish from(int64_t channel) const { return {scale ? scale + channel : scale, shift ? shift + channel : shift, relu}; }
    float operator()(float v, int64_t channel) const {
        if (scale) v *= scale[channel];
        if (shift) v += shift[channel];
        return relu && v < 0 ? 0.0f : v;
    }
};

static inline void relu(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = x[i] < 0 ? 0.0f : x[i];
}

// On n pixels of the planes of channels [first, first + count).
static inline void finish_planes(float *x, Finish f, int64_t first, int count, int64_t inner, int64_t n) {
    for (int c = 0; c < count; c++, x += inner) {
        const float scale = f.scale ? f.scale[first + c] : 1.0f, shift = f.shift ? f.shift[first + c] : 0.0f;
        if (f.scale || f.shift)
            for (int64_t i = 0; i < n; i++) x[i] = x[i] * scale + shift;
        if (f.relu) relu(x, n);
    }
}

// On rows of all channels.
static inline void finish_rows(float *x, Finish f, int64_t rows, int64_t channels) {
    if (f.scale)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < channels; c++) x[r * channels + c] *= f.scale[c];
    if (f.shift)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < channels; c++) x[r * channels + c] += f.shift[c];
    if (f.relu) relu(x, rows * channels);
}

// ---------------------------------------------------------------------------------------------- eigen

static void eigen_forward_planes(const float *in, float *out, const float *lam, Blocks b, Finish finish, int64_t outer,
                                 int64_t channels, int64_t inner, int threads) {
    const int64_t jobs = outer * b.count;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t job = 0; job < jobs; job++) {
        const int64_t i = job % b.count;
        const int k = b.size[i] - 1;
        const int64_t at = ((job / b.count) * channels + b.start[i]) * inner;
        float *y = out + at;
        const float *l = lam + b.offset[i];
        for (int64_t p0 = 0; p0 < inner; p0 += BLOCK) {
            const int64_t n = inner - p0 < BLOCK ? inner - p0 : BLOCK;
            float *yp = y + p0;
            if (in != out)
                for (int c = 0; c <= k; c++) std::memcpy(yp + c * inner, in + at + p0 + c * inner, n * sizeof(float));
            int j = 0;
            for (; j + 2 < k; j += 3) {
                const float *a = yp + (j + 1) * inner, *c = a + inner, *d = c + inner;
                const float la = l[j], lc = l[j + 1], ld = l[j + 2];
                for (int64_t p = 0; p < n; p++) yp[p] += la * a[p] * a[p] + lc * c[p] * c[p] + ld * d[p] * d[p];
            }
            for (; j < k; j++) {
                const float *a = yp + (j + 1) * inner;
                const float la = l[j];
                for (int64_t p = 0; p < n; p++) yp[p] += la * a[p] * a[p];
            }
            finish_planes(yp, finish, b.start[i], k + 1, inner, n);
        }
    }
}

// The squares are added in place: where input and output are two tensors, a tile is copied just before.
static inline void copy_tile(const float *in, float *out, int64_t at, int64_t n) {
    if (in != out) std::memcpy(out + at, in + at, n * sizeof(float));
}

// A bias that the linear map has left to the squares (or null), and its output, which gets it tile by tile just before.
struct Bias {
    const float *values;
    float *to;
    void add(int64_t first, int64_t rows, int64_t channels) const {
        if (!values) return;
        float *x = to + first * channels;
        for (int64_t r = 0; r < rows; r++, x += channels) {
            int64_t c = 0;
            for (; c + LANES <= channels; c += LANES) store(x + c, load(x + c) + load(values + c));
            for (; c < channels; c++) x[c] += values[c];
        }
    }
};

// The gradient of such a bias: what one thread has added up of the rows it wrote, which are still in the first cache.
// Nothing, if nobody asks for it.
struct BiasSums {
    const int64_t channels;
    std::vector<float> part;
    std::vector<double> own;
    int64_t since = 0;
    BiasSums(bool wanted, int64_t n) : channels(n), part(wanted ? n : 0, 0.0f), own(wanted ? n : 0, 0.0) {}
    void add(const float *x, int64_t rows) {
        if (own.empty()) return;
        int64_t c = 0;
        for (; c + LANES <= channels; c += LANES) {
            V total = load(&part[c]);
            for (int64_t r = 0; r < rows; r++) total += load(x + r * channels + c);
            store(&part[c], total);
        }
        for (; c < channels; c++)
            for (int64_t r = 0; r < rows; r++) part[c] += x[r * channels + c];
        if ((since += rows) >= FLOAT_ROWS) flush();
    }
    void flush() {
        for (size_t c = 0; c < own.size(); c++) own[c] += part[c], part[c] = 0;
        since = 0;
    }
    void add_to(double *sums) {
        flush();
        for (size_t c = 0; c < own.size(); c++) sums[c] += own[c];
    }
};

// Per channel: the eigenvalue of a feature, zero for a y.
static std::vector<float> spread(const float *lam, Blocks b, int64_t channels) {
    std::vector<float> wide(channels, 0.0f);
    for (int64_t i = 0; i < b.count; i++)
        for (int j = 1; j < b.size[i]; j++) wide[b.start[i] + j] = lam[b.offset[i] + j - 1];
    return wide;
}

#ifdef VECTORS

// A `Finish` of neighboring channels.
template <class V>
struct FinishVector {
    V scale, shift, least;
    template <class There>
    FinishVector(Finish f, const There &lanes, int64_t start)
        : scale(f.scale ? V::get(lanes, f.scale + start) : V::all(1.0f)),
          shift(f.shift ? V::get(lanes, f.shift + start) : V::zeros()), least(V::all(f.relu ? 0.0f : -__builtin_inff())) {}
    V affine(V v) const { return fma(v, scale, shift); }
    V operator()(V v) const { return at_least(least, affine(v)); }
    V operator()(V v, V added) const { return at_least(least, affine(v) + added); }
};

static void finish_tile(float *x, Finish f, int64_t rows, int64_t channels) {
    if (!f.any()) return;
    for (int64_t c = 0; c < channels; c += 16) {
        const F::Prefix lanes = F::prefix(channels - c >= 16 ? 0xffff : (1 << (channels - c)) - 1);
        const FinishVector<F> finish(f, lanes, c);
        float *p = x + c;
        if (f.added) {
            const float *q = f.added + c;
            for (int64_t r = 0; r < rows; r++, p += channels, q += channels)
                finish(F::get(lanes, p), F::get(lanes, q)).put(lanes, p);
        } else
            for (int64_t r = 0; r < rows; r++, p += channels) finish(F::get(lanes, p)).put(lanes, p);
    }
}

// y += the weighted squares of the features behind it.
template <int EIGHTS>
static void eigen_forward_neuron(float *y, const float *lam, int k, int64_t rows, int64_t channels) {
    const Features<EIGHTS> features(lam, k);
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8, y += 8 * channels) features.add_to_eight(y, channels);
    for (; r < rows; r++, y += channels) features.add(y);
}

// The same of a neuron that fits one vector, sixteen rows at a time. WHOLE: all 16 numbers from the y on are there to read.
// `lam` has a number for each channel, zero for the y, here and in what follows.
template <bool WHOLE>
static void eigen_forward_vector(float *y, const float *lam, int k, int64_t rows, int64_t channels) {
    const Bits lanes = (1 << (k + 1)) - 1;
    const F::Mask there = F::mask(lanes), features = F::mask(lanes & ~1);
    const F l = F::get(features, lam);
    const auto squares = [&](const float *p) ALWAYS_INLINE {
        const F x = WHOLE ? F::get(p) : F::get(there, p);
        return keep(features, l * x * x);
    };
    int64_t r = 0;
    for (; r + 16 <= rows; r += 16, y += 16 * channels) {
        alignas(64) float sums[16];
        add_rows(y, channels, squares).put(sums);
        for (int i = 0; i < 16; i++) y[i * channels] += sums[i];
    }
    for (; r < rows; r++, y += channels) *y += total(squares(y));
}

// The same of sixteen neighboring neurons of one width in one row after the other: where rows are long, a block of sixteen
// rows is far apart in memory. There are 16 more numbers behind those of all channels.
static void eigen_forward_wide(float *y, const float *lam, int k, int64_t rows, int64_t channels) {
    const Bits lanes = (1 << (k + 1)) - 1;
    const F::Mask there = F::mask(lanes), features = F::mask(lanes & ~1);
    for (int64_t r = 0; r < rows; r++, y += channels) {
        const auto squares = [&](const float *p) ALWAYS_INLINE {
            const F x = F::get(there, p);
            return keep(features, F::get(lam + (p - y)) * x * x);
        };
        alignas(64) float sums[16];
        add_rows(y, k + 1, squares).put(sums);
        for (int i = 0; i < 16; i++) y[i * (k + 1)] += sums[i];
    }
}

// Neighboring neurons that fit one vector: loaded and stored together, other lanes masked out.
struct Segment {
    int64_t start;
    Bits lanes, features;
    float lam[16];     // zero for a y
    int32_t y_of[16];  // the lane of each lane's y
    int widest;        // channels of its widest neuron
    bool alone;        // whether there is no other
};

// For each lane the one that is 1, 2, 4 and 8 behind; 16 where the neuron has ended. Not in a `Segment`, of which some loops
// need many at once in the first cache.
struct Reach {
    int32_t from[4][16];
    explicit Reach(const Segment &s) {
        for (int i = 0; i < 4; i++)
            for (int lane = 0, next = 1 << i; lane < 16; lane++, next++)
                from[i][lane] = next < 16 && s.lanes >> next & 1 && s.y_of[next] == s.y_of[lane] ? next : 16;
    }
};

// Empty where a neuron is wider than a vector: then the loops below do the work.
static std::vector<Segment> segments(const float *lam, Blocks b) {
    std::vector<Segment> all;
    for (int64_t i = 0; i < b.count;) {
        Segment s = {};
        s.start = b.start[i];
        int width = 0;
        for (; i < b.count && fits(width, b.size[i]); i++) {
            const int n = b.size[i];
            if (s.widest < n) s.widest = n;
            for (int j = 0; j < n; j++) {
                s.lanes |= 1 << (width + j);
                s.y_of[width + j] = width;
                if (j) s.features |= 1 << (width + j), s.lam[width + j] = lam[b.offset[i] + j - 1];
            }
            width += n;
        }
        if (width == 0) return {};
        s.alone = s.widest == width;
        all.push_back(s);
    }
    return all;
}

// Sums over rows are two where there are registers for them, of every other row: an addition waits for the one before it.
typedef std::integral_constant<int, 0> Even;
typedef std::integral_constant<int, 1> Odd;

template <class Row>
ALWAYS_INLINE static inline void each_row(int64_t rows, Row row) {
    int64_t n = 0;
    for (; n + 2 <= rows; n += 2) row(n, Even{}), row(n + 1, Odd{});
    if (n < rows) row(n, Even{});
}

// The gradients of some rows, one after the other.
template <class Lanes>
ALWAYS_INLINE static inline void each_back(const Lanes &lanes, const float *g, const float *x, float *r,
                                           typename Lanes::Sums &sums, int64_t rows, int64_t channels) {
    typedef typename Lanes::Vector V;
    for (int64_t n = 0; n < rows; n++, g += channels, x += channels, r += channels)
        lanes.back(V::get(lanes.lanes(), g), V::get(lanes.lanes(), x), sums, nullptr).put(lanes.lanes(), r);
}

// `Lanes` on one row after the other.
template <class Lanes, class Use>
ALWAYS_INLINE static inline void each_mixed(const Lanes &lanes, const float *p, int64_t rows, int64_t channels, Use use) {
    for (int64_t n = 0; n < rows; n++, p += channels) {
        const auto z = Lanes::Vector::get(lanes.lanes(), p);
        use(n, z, lanes.mix(z), Even{});
    }
}

// A segment's arithmetic on one row; its `mix` and `each` are for AVX-512 (see `Tile`). STEPS is how often the distance of
// what is added up has to double. ALONE: there is one neuron only.
template <class V, int STEPS, bool ALONE = false>
struct EigenLanes {
    typedef V Vector;
    const int64_t first;
    const int channels;
    const typename V::Prefix there;
    const typename V::Mask features, ys;
    const V lam, twice;
    const typename V::Index y_of;
    typename V::Index from[STEPS];

    EigenLanes(const Segment &s, const Reach &reach)
        : first(s.start), channels(__builtin_popcount(s.lanes)), there(V::prefix(s.lanes)), features(V::mask(s.features)),
          ys(V::mask(s.lanes & ~s.features)), lam(V::get(s.lam)), twice(lam + lam), y_of(V::index(s.y_of)) {
        for (int i = 0; i < STEPS; i++) from[i] = V::index(reach.from[i]);
    }
    int64_t start() const { return first; }
    int width() const { return channels; }
    const typename V::Prefix &lanes() const { return there; }
    // The output with its squares.
    V mix(V z) const {
        const V f = keep(features, z);
        V t = lam * f * f;
        for (int i = 0; i < STEPS; i++) t = t + pick_or_zero(from[i], t);
        return add_where(ys, z, t);
    }
    // What a row adds to the gradients of the eigenvalues.
    struct Sums {
        V sum;
        explicit Sums(const float *p) : sum(V::get(p)) {}
        void store(float *p) const { sum.put(p); }
    };
    V back(V g, V z, Sums &sums, const float *) const {
        const V f = keep(features, z), gf = (ALONE ? first_lane(g) : pick(y_of, g)) * f;
        sums.sum = fma(gf, f, sums.sum);
        return fma_where(features, twice, gf, g);
    }
    ALWAYS_INLINE void back_rows(const float *g, const float *x, float *r, Sums &sums, int64_t rows, int64_t channels) const {
        each_back(*this, g, x, r, sums, rows, channels);
    }
    // Calls `use` with the number of each row, what the linear map gave, and that with its squares.
    template <class Use>
    ALWAYS_INLINE void each(const float *p, int64_t rows, int64_t channels, Use use) const {
        each_mixed(*this, p, rows, channels, use);
    }
};

// A segment of one neuron only, of more than 8 channels: sixteen rows are added up at once.
struct EigenNeuron : EigenLanes<F, 4, true> {
    using EigenLanes<F, 4, true>::EigenLanes;

    template <class Use>
    ALWAYS_INLINE void each(const float *p, int64_t rows, int64_t channels, Use use) const {
        const auto squares = [&](const float *q) ALWAYS_INLINE {
            const F x = F::get(features, q);
            return lam * x * x;
        };
        int64_t n = 0;
        for (; n + 16 <= rows; n += 16, p += 16 * channels) {
            alignas(64) float sums[16];
            add_rows(p, channels, squares).put(sums);
            for (int i = 0; i < 16; i++) {
                const F z = F::get(there, p + i * channels);
                use(n + i, z, add_where(ys, z, F::all(sums[i])), Even{});
            }
        }
        each_mixed(*this, p, rows - n, channels, [&](int64_t i, F z, F x, Even) ALWAYS_INLINE { use(n + i, z, x, Even{}); });
    }
};

#if VECTORS == 256

// Eight neighboring channels, or the last few: one register, whatever neurons it belongs to, of which there are one or two.
// To cut registers where neurons end would leave three of eight lanes empty at rank 9.
struct Octet {
    int64_t start;
    Bits lanes, features;
    int neurons, ys;  // how many it has channels of, and y of how many
    int64_t y[2];     // the channel of each neuron's y, which may stand in front of the octet
    int with_y[2];    // the neurons whose y is in it
    // In registers, once for all tiles.
    Half::Prefix there;
    Half::Mask at_y[2], is_feature, is_second;  // the lanes of these y, of features, and of the second neuron
    Half::Index y_of;                           // the lane of each lane's y, if it is there
    Half twice;                                 // two times the eigenvalue, zero for a y
};

// Empty where more than two neurons meet in one, and of long rows, where one octet of sixteen rows is far apart in memory and
// is thrown out of the cache by another: there are other loops for these.
static std::vector<Octet> octets(const float *lam, Blocks b, int64_t channels) {
    std::vector<Octet> all;
    int64_t m = 0;
    if (channels > WIDE) return all;
    for (int64_t start = 0; start < channels; start += 8) {
        Octet o = {};
        o.start = start;
        int64_t last = -1;
        Bits second = 0;
        int32_t y_of[8] = {};
        float twice[8] = {};
        for (int lane = 0; lane < 8 && start + lane < channels; lane++) {
            const int64_t c = start + lane;
            while (c >= b.start[m] + b.size[m]) m++;
            if (last != m) {
                if (o.neurons == 2) return {};
                o.y[o.neurons++] = b.start[m], last = m;
            }
            o.lanes |= 1 << lane;
            if (o.neurons == 2) second |= 1 << lane;
            if (b.start[m] > start) y_of[lane] = int(b.start[m] - start);
            if (c == b.start[m]) o.at_y[o.ys] = Half::mask(1 << lane), o.with_y[o.ys++] = int(m);
            else o.features |= 1 << lane, twice[lane] = 2 * lam[b.offset[m] + (c - b.start[m]) - 1];
        }
        o.there = Half::prefix(o.lanes), o.is_feature = Half::mask(o.features), o.is_second = Half::mask(second);
        o.y_of = Half::index(y_of), o.twice = Half::get(twice);
        all.push_back(o);
    }
    return all;
}

// An octet's arithmetic, with the sums of squares of some rows of each neuron, one neuron behind the other. YS: how many y are
// in it. BEGUN: whether its first neuron has begun in an octet before.
template <int YS, bool BEGUN, class There>
struct OctetLanes {
    typedef Half Vector;
    const Octet o;  // a copy stays in registers
    const There there;
    const float *sums[YS ? YS : 1];

    OctetLanes(const Octet &octet, const There &there, const float *all, int64_t rows) : o(octet), there(there) {
        for (int i = 0; i < YS; i++) sums[i] = all + o.with_y[i] * rows;
    }
    int64_t start() const { return o.start; }
    int width() const { return __builtin_popcount(o.lanes); }
    const There &lanes() const { return there; }
    typedef EigenLanes<Half, 2>::Sums Sums;
    // `row` has the results of the octets in front of it.
    Half back(Half g, Half z, Sums &sums, const float *row) const {
        Half of_y = YS ? pick(o.y_of, g) : Half::all(row[o.y[0]]);
        if (YS && BEGUN) of_y = choose(o.is_second, of_y, Half::all(row[o.y[0]]));
        const Half gf = keep(o.is_feature, of_y * z);
        sums.sum = fma(gf, z, sums.sum);
        return fma(o.twice, gf, g);
    }
    template <class Use>
    ALWAYS_INLINE void each(const float *p, int64_t rows, int64_t channels, Use use) const {
        const auto row = [&](int64_t n, auto parity) ALWAYS_INLINE {
            const Half z = Half::get(there, p + n * channels);
            Half x = z;
            for (int i = 0; i < YS; i++) x = x + keep(o.at_y[i], Half::all(sums[i][n]));
            use(n, z, YS ? rounded(x) : x, parity);
        };
        each_row(rows, row);
    }
};

// The weighted squares of a neuron's features, added up in each row.
template <int EIGHTS>
static void eigen_sums(const float *f, const float *lam, int k, float *sums, int64_t rows, int64_t channels) {
    const Features<EIGHTS> features(lam, k);
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8, f += 8 * channels) _mm256_storeu_ps(sums + r, features.sums_of_eight(f, channels));
    for (; r < rows; r++, f += channels) sums[r] = features.sum(f);
}

// The gradients of some rows of an octet. `sums` has those of its eigenvalues, lane by lane. `result` may be `grad`: other
// octets read the gradient of a y again when it is written already, but it is written as it was.
template <int NEURONS, class There>
static void octet_backward(const Octet o, const There there, const float *grad, const float *kept, float *result,
                           float *sums, int64_t rows, int64_t channels) {
    Half sum[2] = {Half::get(sums), Half::zeros()};
    const float *y = grad + o.y[0], *other = grad + o.y[NEURONS - 1], *g = grad + o.start, *x = kept + o.start;
    float *r = result + o.start;
    const auto row = [&](int64_t n, auto i) ALWAYS_INLINE {
        const int64_t at = n * channels;
        Half of_y = Half::all(y[at]);
        if (NEURONS == 2) of_y = choose(o.is_second, Half::all(other[at]), of_y);
        const Half f = Half::get(there, x + at), gf = keep(o.is_feature, of_y * f);
        sum[i] = fma(gf, f, sum[i]);
        fma(o.twice, gf, Half::get(there, g + at)).put(there, r + at);
    };
    each_row(rows, row);
    (sum[0] + sum[1]).put(sums);
}

#endif

#if VECTORS == 512
static const int64_t TILE_BACK = 4096;
#else
static const int64_t TILE_BACK = 2048;  // three tensors at once
#endif

// As many rows as stay in the first cache, so many numbers of each tensor, by sixteens. Where rows are long, few: each is a
// stream of its own for the processor, which fetches ahead for some thirty of them.
struct Tiles {
    const int64_t outer, rows, count;
    Tiles(int64_t outer, int64_t rows) : outer(outer), rows(rows), count((outer + rows - 1) / rows) {}
    static Tiles of_numbers(int64_t numbers, int64_t channels, int64_t outer) {
        const int64_t rows = numbers / channels / 16 * 16;
        return {outer, rows < 16 ? 16 : rows};
    }
    int64_t of(int64_t i) const { return outer - i * rows < rows ? outer - i * rows : rows; }
};

// A neuron of either kind as a `Mixer`: made once a call, it has all tables. `forward` writes the outputs of some rows.
// `with_lanes` calls a function with the arithmetic on one row of the k-th vector of channels, whose number of steps is
// known at compile time. `Sums` adds up the gradients of the eigenvalues: short sums in float, which go into those in double.

// Some channels of some rows, with what follows.
template <class Lanes>
ALWAYS_INLINE static inline void finish_lanes(const Lanes &lanes, const float *z, float *y, Finish f, int64_t rows,
                                              int64_t channels) {
    typedef typename Lanes::Vector V;
    const FinishVector<V> finish(f, lanes.lanes(), lanes.start());
    const float *from = z + lanes.start();
    float *to = y + lanes.start();
    if (f.added)
        lanes.each(from, rows, channels, [&](int64_t n, V, V x, auto) ALWAYS_INLINE {
            const float *added = f.added + lanes.start() + n * channels;
            finish(x, V::get(lanes.lanes(), added)).put(lanes.lanes(), to + n * channels);
        });
    else if (f.any())
        lanes.each(from, rows, channels,
                   [&](int64_t n, V, V x, auto) ALWAYS_INLINE { finish(x).put(lanes.lanes(), to + n * channels); });
    else
        lanes.each(from, rows, channels, [&](int64_t n, V, V x, auto) ALWAYS_INLINE { x.put(lanes.lanes(), to + n * channels); });
}

// Some rows by `with_lanes`.
template <class Mixer>
static inline void mixed_rows(const Mixer &mixer, const float *z, float *y, Finish f, int64_t rows, int64_t channels) {
    for (size_t k = 0; k < mixer.all.size(); k++)
        mixer.with_lanes(k, [&](const auto &lanes) ALWAYS_INLINE { finish_lanes(lanes, z, y, f, rows, channels); });
}

template <class Mixer>
static void forward_tiles(const Mixer &mixer, const float *in, Bias bias, float *out, Finish finish, int64_t outer,
                          int64_t channels, int threads) {
    const Tiles tiles = Tiles::of_numbers(Mixer::TILE, channels, outer);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < tiles.count; i++) {
        const int64_t rows = tiles.of(i), at = i * tiles.rows * channels;
        bias.add(i * tiles.rows, rows, channels);
        mixer.forward(in + at, out + at, finish.at(at), rows);
    }
}

// The gradients of some rows, `result` may be `grad`.
template <class Mixer>
static inline void backward_rows(const Mixer &mixer, const float *grad, const float *kept, float *result,
                                 typename Mixer::Sums &sums, int64_t rows, int64_t channels) {
    for (size_t k = 0; k < mixer.all.size(); k++)
        mixer.with_lanes(k, [&](const auto &lanes) ALWAYS_INLINE {
            typedef std::decay_t<decltype(lanes)> Lanes;
            typename Lanes::Sums own(sums.of(k));
            const float *g = grad + lanes.start(), *x = kept + lanes.start();
            float *r = result + lanes.start();
            lanes.back_rows(g, x, r, own, rows, channels);
            own.store(sums.of(k));
        });
    sums.count(rows);
}

template <class Mixer>
static void backward_tiles(const Mixer &mixer, const float *grad, const float *kept, float *result, double *dlam,
                           double *dbias, int64_t outer, int64_t channels, int threads) {
    const Tiles tiles = channels <= WIDE ? Tiles::of_numbers(TILE_BACK, channels, outer) : Tiles(outer, 8);
#pragma omp parallel num_threads(threads)
    {
        typename Mixer::Sums sums(mixer);
        BiasSums of_bias(dbias, channels);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles.count; i++) {
            const int64_t rows = tiles.of(i), at = i * tiles.rows * channels;
            mixer.backward(grad + at, kept + at, result + at, sums, rows);
            of_bias.add(result + at, rows);
        }
#pragma omp critical
        {
            sums.add_to(dlam);
            of_bias.add_to(dbias);
        }
    }
}

struct EigenMixer {
    static const int64_t TILE = 4096;
    static const bool OCTETS = VECTORS == 256;
    const float *lam;
    const Blocks b;
    const int64_t channels;
    const std::vector<Segment> all;  // empty where only `forward` can be
    const std::vector<Reach> reach;
    const std::vector<float> wide;  // an eigenvalue for each channel, and more
#if VECTORS == 256
    const std::vector<Octet> eights;  // or empty: then come the segments
#endif

    EigenMixer(const float *lam, Blocks b, int64_t channels)
        : lam(lam), b(b), channels(channels), all(segments(lam, b)), reach(all.begin(), all.end()),
          wide(spread(lam, b, channels + 16))
#if VECTORS == 256
          ,
          eights(octets(lam, b, channels))
#endif
    {
    }

    bool has_forward() const {
        for (int64_t m = 0; m < b.count; m++)
            if (b.size[m] > 65) return false;
        return true;
    }
    bool has_backward() const { return !all.empty(); }
#if VECTORS == 256
    bool has_octets() const { return !eights.empty(); }
#endif

    // Whether there are sixteen neurons of one width from this one on. Only the last of each group may be narrower.
    bool has_sixteen(int64_t m) const {
        for (int64_t next = m; next < m + 16; next++)
            if (next >= b.count || b.size[next] != b.size[m]) return false;
        return true;
    }

    void forward(const float *in, float *x, Finish finish, int64_t rows) const {
#if VECTORS == 512
        // In one go, with what follows. Squares alone change only the y, which are few: unless a row is one vector it is
        // faster to write nothing else.
        if (has_backward() && (finish.any() || (in != x && all.size() == 1))) {
            mixed_rows(*this, in, x, finish, rows, channels);
            return;
        }
#else
        if (has_octets() && finish.any()) {
            const std::unique_ptr<float[]> sums(new float[b.count * rows]);
            squares(in, sums.get(), rows, rows);
            with_sums(in, x, sums.get(), rows, finish, rows);
            return;
        }
#endif
        copy_tile(in, x, 0, rows * channels);
        for (int64_t m = 0; m < b.count; m++) {
            const int k = b.size[m] - 1;
            float *y = x + b.start[m];
            const float *l = lam + b.offset[m], *spread = wide.data() + b.start[m];
            if (k > 8 && k < 16 && has_sixteen(m)) {
                eigen_forward_wide(y, spread, k, rows, channels);
                m += 15;
                continue;
            }
            if (k == 0) continue;
            if (k <= 8) eigen_forward_neuron<1>(y, l, k, rows, channels);
            else if (k < 16 && b.start[m] + 16 <= channels) eigen_forward_vector<true>(y, spread, k, rows, channels);
            else if (k < 16) eigen_forward_vector<false>(y, spread, k, rows, channels);
            else if (k == 16) eigen_forward_neuron<2>(y, l, k, rows, channels);
            else if (k <= 32) eigen_forward_neuron<4>(y, l, k, rows, channels);
            else eigen_forward_neuron<8>(y, l, k, rows, channels);
        }
        finish_tile(x, finish, rows, channels);
    }

#if VECTORS == 256
    // The sums of squares of each neuron, those of the next `stride` numbers behind.
    void squares(const float *z, float *sums, int64_t rows, int64_t stride) const {
        for (int64_t m = 0; m < b.count; m++, sums += stride) {
            const int k = b.size[m] - 1;
            const float *f = z + b.start[m] + 1, *l = lam + b.offset[m];
            if (k == 0) std::fill_n(sums, rows, 0.0f);
            else if (k <= 8) eigen_sums<1>(f, l, k, sums, rows, channels);
            else if (k <= 16) eigen_sums<2>(f, l, k, sums, rows, channels);
            else if (k <= 32) eigen_sums<4>(f, l, k, sums, rows, channels);
            else eigen_sums<8>(f, l, k, sums, rows, channels);
        }
    }
    // The outputs of some rows, of which these are the sums.
    void with_sums(const float *z, float *y, const float *sums, int64_t stride, Finish f, int64_t rows) const {
        for (size_t k = 0; k < eights.size(); k++)
            with_octet(k, sums, stride,
                       [&](const auto &lanes) ALWAYS_INLINE { finish_lanes(lanes, z, y, f, rows, channels); });
    }
    template <class Run>
    ALWAYS_INLINE void with_octet(size_t k, const float *sums, int64_t stride, Run run) const {
        const Octet &o = eights[k];
        const auto with = [&](const auto &there) ALWAYS_INLINE {
            typedef std::decay_t<decltype(there)> There;
            if (o.ys == 0) run(OctetLanes<0, true, There>(o, there, sums, stride));
            else if (o.ys == 2) run(OctetLanes<2, false, There>(o, there, sums, stride));
            else if (o.y[0] < o.start) run(OctetLanes<1, true, There>(o, there, sums, stride));
            else run(OctetLanes<1, false, There>(o, there, sums, stride));
        };
        if (o.lanes == 0xff) with(Half::Whole{});
        else with(o.there);
    }
#endif

    template <class Run>
    ALWAYS_INLINE void with_lanes(size_t k, Run run) const {
        if (all[k].widest <= 4) run(EigenLanes<Half, 2>(all[k], reach[k]));
        else if (all[k].widest <= 8) run(EigenLanes<Half, 3>(all[k], reach[k]));
        else if (all[k].alone) run(EigenNeuron(all[k], reach[k]));
#if VECTORS == 512
        else run(EigenLanes<F, 4>(all[k], reach[k]));
#endif
    }

    struct Sums {
        struct Part {
            int64_t start;
            Bits features;
        };
        const EigenMixer &mixer;
        std::vector<Part> parts;
        std::vector<double> own;
        std::vector<float> sums;
        int64_t since = 0;
        explicit Sums(const EigenMixer &m) : mixer(m), own(m.channels, 0.0) {
#if VECTORS == 256
            for (const Octet &o : m.eights) parts.push_back({o.start, o.features});
#endif
            if (parts.empty())
                for (const Segment &s : m.all) parts.push_back({s.start, s.features});
            sums.assign(16 * parts.size(), 0.0f);
        }
        float *of(size_t k) { return &sums[16 * k]; }
        void count(int64_t rows) {
            if ((since += rows) >= FLOAT_ROWS) flush();
        }
        void flush() {
            for (size_t k = 0; k < parts.size(); k++)
                for (int j = 0; j < 16; j++)
                    if (parts[k].features >> j & 1) own[parts[k].start + j] += sums[16 * k + j];
            sums.assign(sums.size(), 0.0f);
            since = 0;
        }
        void add_to(double *dlam) {
            flush();
            const Blocks &b = mixer.b;
            for (int64_t m = 0; m < b.count; m++)
                for (int j = 1; j < b.size[m]; j++) dlam[b.offset[m] + j - 1] += own[b.start[m] + j];
        }
    };

    void backward(const float *grad, const float *kept, float *result, Sums &sums, int64_t rows) const {
#if VECTORS == 256
        for (size_t k = 0; k < eights.size(); k++) {
            const Octet &o = eights[k];
            const auto with = [&](const auto &there) {
                if (o.neurons == 1) octet_backward<1>(o, there, grad, kept, result, sums.of(k), rows, channels);
                else octet_backward<2>(o, there, grad, kept, result, sums.of(k), rows, channels);
            };
            if (o.lanes == 0xff) with(Half::Whole{});
            else with(o.there);
        }
        if (has_octets()) {
            sums.count(rows);
            return;
        }
#endif
        backward_rows(*this, grad, kept, result, sums, rows, channels);
    }
};

static bool eigen_forward_vectors(const float *in, Bias bias, float *out, const float *lam, Blocks b, Finish finish,
                                  int64_t outer, int64_t channels, int threads) {
    const EigenMixer mixer(lam, b, channels);
    if (mixer.has_forward()) forward_tiles(mixer, in, bias, out, finish, outer, channels, threads);
    return mixer.has_forward();
}

static bool eigen_backward_vectors(const float *grad, const float *out, const float *lam, float *result, double *dlam,
                                   double *dbias, Blocks b, int64_t outer, int64_t channels, int threads) {
    const EigenMixer mixer(lam, b, channels);
    if (mixer.has_backward()) backward_tiles(mixer, grad, out, result, dlam, dbias, outer, channels, threads);
    return mixer.has_backward();
}

#else  // narrower machines: the loops below

static bool eigen_forward_vectors(const float *, Bias, float *, const float *, Blocks, Finish, int64_t, int64_t, int) {
    return false;
}
static bool eigen_backward_vectors(const float *, const float *, const float *, float *, double *, double *, Blocks,
                                   int64_t, int64_t, int) {
    return false;
}

#endif

// Rows are handled in tiles of a few thousand numbers, so that the passes over all channels are long loops.
static int64_t tile_rows(int64_t channels) {
    const int64_t rows = 2048 / channels;
    return rows < 1 ? 1 : rows;
}

static std::vector<float> repeat(const std::vector<float> &row, int64_t times) {
    std::vector<float> all;
    for (int64_t r = 0; r < times; r++) all.insert(all.end(), row.begin(), row.end());
    return all;
}

// y += the sum of the k products behind it, in each row of a tile. K is k where the compiler knows it, else 0.
template <int K>
static inline void add_sums(float *__restrict y, const float *__restrict t, int k, int64_t rows, int64_t channels) {
    for (int64_t r = 0; r < rows; r++, y += channels, t += channels) {
        float a = 0, c = 0, d = 0;
        const int n = K ? K : k;
        int j = 0;
        for (; j + 2 < n; j += 3) a += t[j], c += t[j + 1], d += t[j + 2];
        for (; j < n; j++) a += t[j];
        *y += a + c + d;
    }
}

static void eigen_forward_rows(const float *in, Bias bias, float *out, const float *lam, Blocks b, Finish finish,
                               int64_t outer, int64_t channels, int threads) {
    if (eigen_forward_vectors(in, bias, out, lam, b, finish, outer, channels, threads)) return;
    const int64_t tile = tile_rows(channels), tiles = (outer + tile - 1) / tile;
    const std::vector<float> wide = repeat(spread(lam, b, channels), tile);
    const float *__restrict w = wide.data();
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> scratch(tile * channels);
        float *__restrict t = scratch.data();
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t rows = outer - i * tile < tile ? outer - i * tile : tile;
            bias.add(i * tile, rows, channels);
            copy_tile(in, out, i * tile * channels, rows * channels);
            float *__restrict x = out + i * tile * channels;
            for (int64_t c = 0; c < rows * channels; c++) t[c] = w[c] * x[c] * x[c];
            for (int64_t m = 0; m < b.count; m++) {
                const int k = b.size[m] - 1;
                float *y = x + b.start[m];
                const float *f = t + b.start[m] + 1;
                switch (k) {
                    case 0: break;
                    case 1: add_sums<1>(y, f, k, rows, channels); break;
                    case 3: add_sums<3>(y, f, k, rows, channels); break;
                    case 5: add_sums<5>(y, f, k, rows, channels); break;
                    case 7: add_sums<7>(y, f, k, rows, channels); break;
                    case 9: add_sums<9>(y, f, k, rows, channels); break;
                    default: add_sums<0>(y, f, k, rows, channels);
                }
            }
            finish_rows(x, finish, rows, channels);
        }
    }
}

static void eigen_backward_planes(const float *grad, const float *out, const float *lam, float *result, double *dlam,
                                  Blocks b, int64_t outer, int64_t channels, int64_t inner, int threads) {
    const int64_t jobs = outer * b.count;
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(b.eigenvalues, 0.0);
#pragma omp for schedule(static)
        for (int64_t job = 0; job < jobs; job++) {
            const int64_t i = job % b.count, base = ((job / b.count) * channels + b.start[i]) * inner;
            const int k = b.size[i] - 1;
            for (int64_t p0 = 0; p0 < inner; p0 += BLOCK) {
                const int64_t n = inner - p0 < BLOCK ? inner - p0 : BLOCK;
                const float *gy = grad + base + p0;
                std::memcpy(result + base + p0, gy, n * sizeof(float));
                for (int j = 1; j <= k; j++) {
                    const float *g = gy + j * inner, *f = out + base + p0 + j * inner;
                    float *r = result + base + p0 + j * inner;
                    const float l = lam[b.offset[i] + j - 1], twice = 2 * l;
                    V acc = {};
                    int64_t p = 0;
                    for (; p + LANES <= n; p += LANES) {
                        const V x = load(f + p), gf = load(gy + p) * x;
                        store(r + p, load(g + p) + twice * gf);
                        acc += gf * x;
                    }
                    float rest = sum(acc);
                    for (; p < n; p++) {
                        const float gf = gy[p] * f[p];
                        r[p] = g[p] + twice * gf;
                        rest += gf * f[p];
                    }
                    own[b.offset[i] + j - 1] += rest;
                }
            }
        }
#pragma omp critical
        for (int64_t e = 0; e < b.eigenvalues; e++) dlam[e] += own[e];
    }
}

// The gradient of y in front of each of its k features, in each row of a tile.
template <int K>
static inline void spread_grads(const float *__restrict g, float *__restrict gy, int k, int64_t rows, int64_t channels) {
    for (int64_t r = 0; r < rows; r++, g += channels, gy += channels) {
        const int n = K ? K : k;
        for (int j = 0; j < n; j++) gy[j] = *g;
    }
}

static void eigen_backward_rows(const float *grad, const float *out, const float *lam, float *result, double *dlam,
                                double *dbias, Blocks b, int64_t outer, int64_t channels, int threads) {
    if (eigen_backward_vectors(grad, out, lam, result, dlam, dbias, b, outer, channels, threads)) return;
    const int64_t tile = tile_rows(channels), tiles = (outer + tile - 1) / tile;
    const std::vector<float> wide = repeat(spread(lam, b, channels), tile);
    const float *__restrict w = wide.data();
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> scratch(tile * channels, 0.0f), partial(tile * channels, 0.0f);
        std::vector<double> own(channels, 0.0);
        BiasSums of_bias(dbias, channels);
        float *__restrict gy = scratch.data();
        float *__restrict acc = partial.data();
        int64_t since = 0;
        const auto flush = [&]() {  // short float sums, added up in double
            for (int64_t r = 0; r < tile; r++)
                for (int64_t c = 0; c < channels; c++) own[c] += acc[r * channels + c];
            std::memset(acc, 0, tile * channels * sizeof(float));
        };
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t rows = outer - i * tile < tile ? outer - i * tile : tile;
            const float *__restrict g = grad + i * tile * channels;
            const float *__restrict f = out + i * tile * channels;
            float *__restrict r = result + i * tile * channels;
            for (int64_t m = 0; m < b.count; m++) {
                const int k = b.size[m] - 1;
                const float *y = g + b.start[m];
                float *to = gy + b.start[m] + 1;
                switch (k) {
                    case 0: break;
                    case 1: spread_grads<1>(y, to, k, rows, channels); break;
                    case 3: spread_grads<3>(y, to, k, rows, channels); break;
                    case 5: spread_grads<5>(y, to, k, rows, channels); break;
                    case 7: spread_grads<7>(y, to, k, rows, channels); break;
                    case 9: spread_grads<9>(y, to, k, rows, channels); break;
                    default: spread_grads<0>(y, to, k, rows, channels);
                }
            }
            for (int64_t c = 0; c < rows * channels; c++) {
                const float gf = gy[c] * f[c];
                r[c] = g[c] + 2 * w[c] * gf;
                acc[c] += gf * f[c];
            }
            // Zero times an infinite y is NaN, and its gradient does not depend on it.
            for (int64_t m = 0; m < b.count; m++)
                for (int64_t c = b.start[m]; c < rows * channels; c += channels) r[c] = g[c];
            of_bias.add(r, rows);
            if (++since == 64) flush(), since = 0;
        }
        flush();
#pragma omp critical
        {
            for (int64_t m = 0; m < b.count; m++)
                for (int j = 1; j < b.size[m]; j++) dlam[b.offset[m] + j - 1] += own[b.start[m] + j];
            of_bias.add_to(dbias);
        }
    }
}

// ---------------------------------------------------------------------------------------------- shared

// One group over pixels [p0, p0 + n): y_i = z_i + sum_j L_ij z_j^2. In place where z == y: all of a vector is read first.
template <int S>
static inline void shared_forward_group(const float *z, float *y, const float *L, Finish f, int size, int64_t inner,
                                        int64_t n) {
    const int s = S ? S : size;
    V square[S ? S : 1];
    std::vector<V> many(S ? 0 : s);
    V *q = S ? square : many.data();
    std::vector<float> tail(s);
    int64_t p = 0;
    for (; p + LANES <= n; p += LANES) {
        for (int j = 0; j < s; j++) {
            const V x = load(z + j * inner + p);
            q[j] = x * x;
        }
        for (int i = 0; i < s; i++) {
            V a = load(z + i * inner + p), c = {};
            const float *l = L + i * s;
            int j = 0;
            for (; j + 1 < s; j += 2) a += l[j] * q[j], c += l[j + 1] * q[j + 1];
            if (j < s) a += l[j] * q[j];
            a += c;
            if (f.scale) a *= f.scale[i];
            if (f.shift) a += f.shift[i];
            if (f.relu) a = a < 0.0f ? V{} : a;
            store(y + i * inner + p, a);
        }
    }
    for (; p < n; p++) {
        for (int j = 0; j < s; j++) tail[j] = z[j * inner + p] * z[j * inner + p];
        for (int i = 0; i < s; i++) {
            float a = z[i * inner + p];
            for (int j = 0; j < s; j++) a += L[i * s + j] * tail[j];
            y[i * inner + p] = f(a, i);
        }
    }
}

static void shared_forward_planes(const float *z, float *y, const float *lam, Blocks b, Finish finish, int64_t outer,
                                  int64_t channels, int64_t inner, int threads) {
    const int64_t jobs = outer * b.count;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t job = 0; job < jobs; job++) {
        const int64_t i = job % b.count, base = ((job / b.count) * channels + b.start[i]) * inner;
        const float *L = lam + b.offset[i];
        const Finish f = finish.from(b.start[i]);
        switch (b.size[i]) {
            case 4: shared_forward_group<4>(z + base, y + base, L, f, 4, inner, inner); break;
            case 8: shared_forward_group<8>(z + base, y + base, L, f, 8, inner, inner); break;
            case 16: shared_forward_group<16>(z + base, y + base, L, f, 16, inner, inner); break;
            default: shared_forward_group<0>(z + base, y + base, L, f, b.size[i], inner, inner);
        }
    }
}

#ifdef VECTORS

// Neighboring groups that fit one vector. Step d takes to each lane the d-th channel of its own group.
struct Cluster {
    int64_t start, first, groups;  // first channel, first block, how many blocks
    Bits lanes;
    Bits inside[16];       // lanes whose group has a d-th channel
    int32_t from[16][16];  // the lane of that channel
    int steps;             // channels of the largest group
    bool even;             // all groups have so many, and there is a loop of so many steps
};

// Empty where a group is wider than a vector: then the loops below do the work.
static std::vector<Cluster> clusters(Blocks b) {
    std::vector<Cluster> all;
    for (int64_t i = 0; i < b.count;) {
        Cluster c = {};
        c.start = b.start[i], c.first = i;
        int width = 0;
        for (; i < b.count && fits(width, b.size[i]); i++) {
            const int n = b.size[i];
            for (int lane = width; lane < width + n; lane++) {
                c.lanes |= 1 << lane;
                for (int d = 0; d < n; d++) c.inside[d] |= 1 << lane, c.from[d][lane] = width + d;
            }
            if (c.steps < n) c.steps = n;
            width += n, c.groups++;
        }
        if (width == 0) return {};
        c.even = c.steps == 4 || c.steps == 8 || c.steps == 16;
        for (int d = 0; d < c.steps; d++) c.even = c.even && c.inside[d] == c.lanes;
        all.push_back(c);
    }
    return all;
}

// One number for each step and lane of a cluster.
struct alignas(64) Steps {
    float of[16][16];
};

// The eigenvalue L_ij (`columns`) or L_ji of each lane i and the lane it takes from, j.
static std::vector<Steps> coefficients(const std::vector<Cluster> &all, const float *lam, Blocks b, bool columns) {
    std::vector<Steps> found(all.size());
    for (size_t k = 0; k < all.size(); k++)
        for (int64_t g = all[k].first; g < all[k].first + all[k].groups; g++) {
            const int n = b.size[g], at = int(b.start[g] - all[k].start);
            for (int i = 0; i < n; i++)
                for (int d = 0; d < n; d++)
                    found[k].of[d][at + i] = lam[b.offset[g] + (columns ? i * n + d : d * n + i)];
        }
    return found;
}

// A lane whose group has no d-th channel takes zero: its zero coefficient times an infinite number would be NaN. Where all
// groups are even nothing has to be masked, and what stands in lanes beyond them is never stored.
template <class V, int STEPS, bool EVEN>
struct Take {
    typename V::Index from[STEPS];
    typename V::Mask inside[STEPS];
    explicit Take(const Cluster &c) {
        for (int d = 0; d < STEPS; d++) from[d] = V::index(c.from[d]), inside[d] = V::mask(c.inside[d]);
    }
    V operator()(int d, V v) const {
        return EVEN ? spread_lane<STEPS>(from[d], d, v) : keep(inside[d], pick(from[d], v));
    }
};

// A cluster's arithmetic on one row.
template <class V, int STEPS, bool EVEN>
struct SharedLanes {
    typedef V Vector;
    const int64_t first;
    const int channels;
    const typename V::Prefix there;
    const Take<V, STEPS, EVEN> take;
    V ahead[STEPS], behind[STEPS];

    SharedLanes(const Cluster &c, const Steps &l, const Steps &transposed)
        : first(c.start), channels(__builtin_popcount(c.lanes)), there(V::prefix(c.lanes)), take(c) {
        for (int d = 0; d < STEPS; d++) ahead[d] = V::get(l.of[d]), behind[d] = V::get(transposed.of[d]);
    }
    int64_t start() const { return first; }
    int width() const { return channels; }
    const typename V::Prefix &lanes() const { return there; }
    // The output with its squares.
    V mix(V x) const {
        const V x2 = x * x;
        V sum[2] = {x, V::zeros()};
        for (int d = 0; d < STEPS; d++) sum[d & 1] = fma(ahead[d], take(d, x2), sum[d & 1]);
        return sum[0] + sum[1];
    }
    // What a row adds to the gradients of the eigenvalues.
    struct Sums {
        V of[STEPS];
        explicit Sums(const float *p) {
            for (int d = 0; d < STEPS; d++) of[d] = V::get(p + 16 * d);
        }
        void store(float *p) const {
            for (int d = 0; d < STEPS; d++) of[d].put(p + 16 * d);
        }
    };
    V back(V g, V x, Sums &sums, const float *) const {
        const V x2 = x * x;
        V sum[2] = {V::zeros(), V::zeros()};
        for (int d = 0; d < STEPS; d++) {
            const V t = take(d, g);
            sum[d & 1] = fma(behind[d], t, sum[d & 1]);
            sums.of[d] = fma(t, x2, sums.of[d]);
        }
        return fma(x + x, sum[0] + sum[1], g);
    }
    ALWAYS_INLINE void back_rows(const float *g, const float *x, float *r, Sums &sums, int64_t rows, int64_t channels) const {
        each_back(*this, g, x, r, sums, rows, channels);
    }
    template <class Use>
    ALWAYS_INLINE void each(const float *p, int64_t rows, int64_t channels, Use use) const {
        each_mixed(*this, p, rows, channels, use);
    }
};

#if VECTORS == 256

// One group of 8. A number of memory comes into all lanes at no cost, one of a register takes a shuffle or two.
struct SharedEight {
    typedef Half Vector;
    int64_t first;
    Half ahead[8], behind[8];

    SharedEight(const Cluster &c, const Steps &l, const Steps &transposed) : first(c.start) {
        for (int d = 0; d < 8; d++) ahead[d] = Half::get(l.of[d]), behind[d] = Half::get(transposed.of[d]);
    }
    int64_t start() const { return first; }
    Half::Whole lanes() const { return {}; }
    typedef SharedLanes<Half, 8, true>::Sums Sums;
    template <class Use>
    ALWAYS_INLINE void each(const float *p, int64_t rows, int64_t channels, Use use) const {
        const int SOME = 32;
        alignas(32) float squares[8 * SOME];
        for (int64_t first = 0; first < rows; first += SOME) {
            const int64_t some = rows - first < SOME ? rows - first : SOME;
            for (int64_t n = 0; n < some; n++) {
                const Half z = Half::get(p + (first + n) * channels);
                (z * z).put(squares + 8 * n);
            }
            const auto row = [&](int64_t n, auto parity) ALWAYS_INLINE {
                const Half z = Half::get(p + (first + n) * channels);
                Half sum[2] = {z, Half::zeros()};
                for (int d = 0; d < 8; d++) sum[d & 1] = fma(ahead[d], Half::all(squares[8 * n + d]), sum[d & 1]);
                use(first + n, z, sum[0] + sum[1], parity);
            };
            each_row(some, row);
        }
    }
    // Two rows at a time share what is read of the eigenvalues.
    ALWAYS_INLINE void back_rows(const float *g, const float *x, float *r, Sums &sums, int64_t rows, int64_t channels) const {
        const auto some = [&](auto count) ALWAYS_INLINE {
            Half z[count()], squares[count()], of_squares[count()];
            for (int i = 0; i < count; i++) {
                z[i] = Half::get(x + i * channels);
                squares[i] = z[i] * z[i], of_squares[i] = Half::zeros();
            }
            for (int d = 0; d < 8; d++)
                for (int i = 0; i < count; i++) {
                    const Half t = Half::all(g[i * channels + d]);
                    of_squares[i] = fma(behind[d], t, of_squares[i]);
                    sums.of[d] = fma(t, squares[i], sums.of[d]);
                }
            for (int i = 0; i < count; i++)
                fma(z[i] + z[i], of_squares[i], Half::get(g + i * channels)).put(r + i * channels);
        };
        int64_t n = 0;
        for (; n + 2 <= rows; n += 2, g += 2 * channels, x += 2 * channels, r += 2 * channels)
            some(std::integral_constant<int, 2>{});
        if (n < rows) some(std::integral_constant<int, 1>{});
    }
};

#endif

struct SharedMixer {
    static const int64_t TILE = TILE_BACK;  // squares are kept beside it
    static const bool OCTETS = false;
    const float *lam;
    const Blocks b;
    const int64_t channels;
    const std::vector<Cluster> all;  // empty where a group is too wide
    const std::vector<Steps> ahead, back;
#if VECTORS == 256
    std::vector<SharedEight> eights;  // made once for all tiles; not of long rows, which it reads twice
#endif

    SharedMixer(const float *lam, Blocks b, int64_t channels)
        : lam(lam), b(b), channels(channels), all(clusters(b)), ahead(coefficients(all, lam, b, true)),
          back(coefficients(all, lam, b, false)) {
#if VECTORS == 256
        if (channels <= WIDE)
            for (size_t k = 0; k < all.size(); k++) eights.emplace_back(all[k], ahead[k], back[k]);
#endif
    }

    bool has_forward() const { return !all.empty(); }
    bool has_backward() const { return !all.empty(); }

    template <class Run>
    ALWAYS_INLINE void with_lanes(size_t k, Run run) const {
        const Cluster &c = all[k];
        if (c.steps <= 4 && c.even) run(SharedLanes<Half, 4, true>(c, ahead[k], back[k]));
        else if (c.steps <= 4) run(SharedLanes<Half, 4, false>(c, ahead[k], back[k]));
#if VECTORS == 256
        else if (!eights.empty() && c.steps == 8 && c.even) run(SharedEight(eights[k]));  // a copy stays in registers
#endif
        else if (c.steps <= 8 && c.even) run(SharedLanes<Half, 8, true>(c, ahead[k], back[k]));
        else if (c.steps <= 8) run(SharedLanes<Half, 8, false>(c, ahead[k], back[k]));
        else if (c.even) run(SharedLanes<F, 16, true>(c, ahead[k], back[k]));
        else run(SharedLanes<F, 16, false>(c, ahead[k], back[k]));
    }

    void forward(const float *z, float *y, Finish f, int64_t rows) const { mixed_rows(*this, z, y, f, rows, channels); }

    struct Sums {
        const SharedMixer &mixer;
        std::vector<double> own;
        std::vector<Steps> sums;
        int64_t since = 0;
        explicit Sums(const SharedMixer &m) : mixer(m), own(m.b.eigenvalues, 0.0), sums(m.all.size()) {}
        float *of(size_t k) { return &sums[k].of[0][0]; }
        void count(int64_t rows) {
            if ((since += rows) >= FLOAT_ROWS) flush();
        }
        void flush() {
            const Blocks &b = mixer.b;
            for (size_t k = 0; k < mixer.all.size(); k++) {
                const Cluster &c = mixer.all[k];
                for (int64_t g = c.first; g < c.first + c.groups; g++) {
                    const int n = b.size[g], at = int(b.start[g] - c.start);
                    for (int d = 0; d < n; d++)
                        for (int j = 0; j < n; j++) own[b.offset[g] + d * n + j] += sums[k].of[d][at + j];
                }
            }
            std::memset(sums.data(), 0, sums.size() * sizeof(Steps));
            since = 0;
        }
        void add_to(double *dlam) {
            flush();
            for (size_t e = 0; e < own.size(); e++) dlam[e] += own[e];
        }
    };

    void backward(const float *grad, const float *kept, float *result, Sums &sums, int64_t rows) const {
        backward_rows(*this, grad, kept, result, sums, rows, channels);
    }
};

static bool shared_forward_vectors(const float *z, Bias bias, float *y, const float *lam, Blocks b, Finish f,
                                   int64_t outer, int64_t channels, int threads) {
    const SharedMixer mixer(lam, b, channels);
    if (mixer.has_forward()) forward_tiles(mixer, z, bias, y, f, outer, channels, threads);
    return mixer.has_forward();
}

static bool shared_backward_vectors(const float *grad, const float *z, const float *lam, float *result, double *dlam,
                                    double *dbias, Blocks b, int64_t outer, int64_t channels, int threads) {
    const SharedMixer mixer(lam, b, channels);
    if (mixer.has_backward()) backward_tiles(mixer, grad, z, result, dlam, dbias, outer, channels, threads);
    return mixer.has_backward();
}

#else  // narrower machines: the loops below

static bool shared_forward_vectors(const float *, Bias, float *, const float *, Blocks, Finish, int64_t, int64_t, int) {
    return false;
}
static bool shared_backward_vectors(const float *, const float *, const float *, float *, double *, double *, Blocks,
                                    int64_t, int64_t, int) {
    return false;
}

#endif

static void shared_forward_rows(const float *z, Bias bias, float *y, const float *lam, Blocks b, Finish finish,
                                int64_t outer, int64_t channels, int threads) {
    if (shared_forward_vectors(z, bias, y, lam, b, finish, outer, channels, threads)) return;
    // Columns of L, so that a group of eight outputs is one vector.
    std::vector<float> columns(b.eigenvalues);
    for (int64_t i = 0; i < b.count; i++) {
        const int s = b.size[i];
        for (int r = 0; r < s; r++)
            for (int c = 0; c < s; c++) columns[b.offset[i] + c * s + r] = lam[b.offset[i] + r * s + c];
    }
    const float *t = columns.data();
    const int64_t step = 64;
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> square(channels);
        float *q = square.data();
#pragma omp for schedule(static)
        for (int64_t r0 = 0; r0 < outer; r0 += step) {
            const int64_t end = r0 + step < outer ? r0 + step : outer;
            bias.add(r0, end - r0, channels);
            for (int64_t i = 0; i < b.count; i++) {
                const int s = b.size[i];
                const float *l = t + b.offset[i];
                if (s == 8) {
                    V8 m[8];
                    for (int j = 0; j < 8; j++) m[j] = load8(l + 8 * j);
                    for (int64_t r = r0; r < end; r++) {
                        const int64_t at = r * channels + b.start[i];
                        const V8 x = load8(z + at), x2 = x * x;
                        V8 a = x + m[0] * x2[0], c = m[1] * x2[1];
                        a += m[2] * x2[2], c += m[3] * x2[3];
                        a += m[4] * x2[4], c += m[5] * x2[5];
                        a += m[6] * x2[6], c += m[7] * x2[7];
                        store8(y + at, a + c);
                    }
                } else {
                    for (int64_t r = r0; r < end; r++) {
                        const int64_t at = r * channels + b.start[i];
                        for (int j = 0; j < s; j++) q[j] = z[at + j] * z[at + j];
                        if (y != z) std::memcpy(y + at, z + at, s * sizeof(float));
                        for (int j = 0; j < s; j++) {
                            const float x2 = q[j];
                            for (int o = 0; o < s; o++) y[at + o] += l[j * s + o] * x2;
                        }
                    }
                }
            }
            finish_rows(y + r0 * channels, finish, end - r0, channels);
        }
    }
}

// One group over a block of n pixels: r_j = g_j + 2 z_j sum_i L_ij g_i and dL_ij += sum g_i z_j^2.
template <int S>
static inline void shared_backward_group(const float *g, const float *z, const float *L, float *r, double *dL, int size,
                                         int64_t inner, int64_t n) {
    const int s = S ? S : size;
    int64_t p = 0;
    V fixed[S ? S : 1];
    std::vector<V> many(S ? 0 : s);
    V *gv = S ? fixed : many.data();
    for (; p + LANES <= n; p += LANES) {
        for (int i = 0; i < s; i++) gv[i] = load(g + i * inner + p);
        for (int j = 0; j < s; j++) {
            V a = L[j] * gv[0], c = {};
            int i = 1;
            for (; i + 1 < s; i += 2) a += L[i * s + j] * gv[i], c += L[(i + 1) * s + j] * gv[i + 1];
            if (i < s) a += L[i * s + j] * gv[i];
            store(r + j * inner + p, gv[j] + 2.0f * load(z + j * inner + p) * (a + c));
        }
    }
    const int64_t whole = p;
    // Four by four sums at a time fit the registers; the block is in the first cache by now.
    for (int i0 = 0; i0 < s; i0 += 4)
        for (int j0 = 0; j0 < s; j0 += 4) {
            const int ni = s - i0 < 4 ? s - i0 : 4, nj = s - j0 < 4 ? s - j0 : 4;
            V acc[4][4] = {};
            if (ni == 4 && nj == 4) {
                for (p = 0; p < whole; p += LANES) {
                    V q[4];
                    for (int j = 0; j < 4; j++) {
                        const V x = load(z + (j0 + j) * inner + p);
                        q[j] = x * x;
                    }
                    for (int i = 0; i < 4; i++) {
                        const V x = load(g + (i0 + i) * inner + p);
                        for (int j = 0; j < 4; j++) acc[i][j] += x * q[j];
                    }
                }
            } else {
                for (p = 0; p < whole; p += LANES)
                    for (int i = 0; i < ni; i++)
                        for (int j = 0; j < nj; j++) {
                            const V x = load(z + (j0 + j) * inner + p);
                            acc[i][j] += load(g + (i0 + i) * inner + p) * x * x;
                        }
            }
            for (int i = 0; i < ni; i++)
                for (int j = 0; j < nj; j++) dL[(i0 + i) * s + j0 + j] += sum(acc[i][j]);
        }
    for (p = whole; p < n; p++)
        for (int j = 0; j < s; j++) {
            const float x = z[j * inner + p];
            float a = 0;
            for (int i = 0; i < s; i++) {
                a += L[i * s + j] * g[i * inner + p];
                dL[i * s + j] += g[i * inner + p] * x * x;
            }
            r[j * inner + p] = g[j * inner + p] + 2 * x * a;
        }
}

static void shared_backward_planes(const float *grad, const float *z, const float *lam, float *result, double *dlam,
                                   Blocks b, int64_t outer, int64_t channels, int64_t inner, int threads) {
    const int64_t jobs = outer * b.count, block = 256;
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(b.eigenvalues, 0.0);
#pragma omp for schedule(static)
        for (int64_t job = 0; job < jobs; job++) {
            const int64_t i = job % b.count, base = ((job / b.count) * channels + b.start[i]) * inner;
            const float *L = lam + b.offset[i];
            double *d = own.data() + b.offset[i];
            for (int64_t p0 = 0; p0 < inner; p0 += block) {
                const int64_t n = inner - p0 < block ? inner - p0 : block, at = base + p0;
                const float *g = grad + at, *x = z + at;
                float *r = result + at;
                switch (b.size[i]) {
                    case 4: shared_backward_group<4>(g, x, L, r, d, 4, inner, n); break;
                    case 8: shared_backward_group<8>(g, x, L, r, d, 8, inner, n); break;
                    case 16: shared_backward_group<16>(g, x, L, r, d, 16, inner, n); break;
                    default: shared_backward_group<0>(g, x, L, r, d, b.size[i], inner, n);
                }
            }
        }
#pragma omp critical
        for (int64_t e = 0; e < b.eigenvalues; e++) dlam[e] += own[e];
    }
}

static void shared_backward_rows(const float *grad, const float *z, const float *lam, float *result, double *dlam,
                                 double *dbias, Blocks b, int64_t outer, int64_t channels, int threads) {
    if (shared_backward_vectors(grad, z, lam, result, dlam, dbias, b, outer, channels, threads)) return;
    const int64_t step = 64;
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(b.eigenvalues, 0.0);
        std::vector<float> scratch;
        BiasSums of_bias(dbias, channels);
#pragma omp for schedule(static)
        for (int64_t r0 = 0; r0 < outer; r0 += step) {
            const int64_t end = r0 + step < outer ? r0 + step : outer;
            for (int64_t k = 0; k < b.count; k++) {
                const int s = b.size[k];
                const float *L = lam + b.offset[k];
                double *d = own.data() + b.offset[k];
                if (s == 8) {
                    V8 m[8], acc[8] = {};
                    for (int i = 0; i < 8; i++) m[i] = load8(L + 8 * i);
                    for (int64_t r = r0; r < end; r++) {
                        const int64_t at = r * channels + b.start[k];
                        const V8 g = load8(grad + at), x = load8(z + at), x2 = x * x;
                        V8 a = m[0] * g[0], c = m[1] * g[1];
                        a += m[2] * g[2], c += m[3] * g[3];
                        a += m[4] * g[4], c += m[5] * g[5];
                        a += m[6] * g[6], c += m[7] * g[7];
                        store8(result + at, g + 2.0f * x * (a + c));
                        for (int i = 0; i < 8; i++) acc[i] += g[i] * x2;
                    }
                    for (int i = 0; i < 8; i++)
                        for (int j = 0; j < 8; j++) d[i * 8 + j] += acc[i][j];
                } else {
                    scratch.assign(s * s + s, 0.0f);
                    float *acc = scratch.data(), *t = acc + s * s;
                    for (int64_t r = r0; r < end; r++) {
                        const int64_t at = r * channels + b.start[k];
                        for (int j = 0; j < s; j++) t[j] = 0;
                        for (int i = 0; i < s; i++) {
                            const float g = grad[at + i];
                            for (int j = 0; j < s; j++) {
                                t[j] += L[i * s + j] * g;
                                acc[i * s + j] += g * z[at + j] * z[at + j];
                            }
                        }
                        for (int j = 0; j < s; j++) result[at + j] = grad[at + j] + 2 * z[at + j] * t[j];
                    }
                    for (int e = 0; e < s * s; e++) d[e] += acc[e];
                }
            }
            of_bias.add(result + r0 * channels, end - r0);
        }
#pragma omp critical
        {
            for (int64_t e = 0; e < b.eigenvalues; e++) dlam[e] += own[e];
            of_bias.add_to(dbias);
        }
    }
}

// ---------------------------------------------------------------------------------------------- squares, BatchNorm, ReLU

// What BatchNorm reads, x, is the output with its squares. It is never stored whole: each pass goes through it tile by tile.
// Training then moves little more memory than BatchNorm alone: z twice and the result once forward, z and the gradient twice
// and the result once backward, and between two passes what is `Kept`.

#ifdef VECTORS

// A tile of x: `start` is given its rows of z, `with_lanes` calls a function with some of its channels, whose `each` goes
// through x row by row. The gradient of x goes through the lanes' `back`, and then those of all rows through the tile's.
// `Kept` is what the first of two passes over all tiles leaves for the second.
#if VECTORS == 512

template <class Mixer>
struct Kept {
    Kept(const Mixer &, const Tiles &) {}
};

// In registers: where a neuron fits one, squares cost little more than to read them.
template <class Mixer>
struct Tile {
    const Mixer &mixer;
    const float *z = nullptr;
    int64_t rows = 0;
    Tile(const Mixer &m, const Kept<Mixer> &, const Tiles &) : mixer(m) {}
    void start(int64_t, const float *linear, int64_t n, bool) { z = linear, rows = n; }
    size_t count() const { return mixer.all.size(); }
    template <class Run>
    ALWAYS_INLINE void with_lanes(size_t k, Run run) const {
        mixer.with_lanes(k, run);
    }
    void back(float *, typename Mixer::Sums &sums) const { sums.count(rows); }
};

#else

template <class Mixer>
static bool has_octets(const Mixer &mixer) {
    if constexpr (Mixer::OCTETS) return mixer.has_octets();
    return false;
}

// The sums of squares of eigen, one number a neuron and row: less to read than to compute again.
template <class Mixer>
struct Kept {
    std::unique_ptr<float[]> sums;
    Kept(const Mixer &mixer, const Tiles &tiles) {
        if (has_octets(mixer)) sums.reset(new float[tiles.count * tiles.rows * mixer.b.count]);
    }
};

// In the first cache, else: neurons and groups are mixed once, and all channels gone through in whole registers.
template <class V>
struct StoredLanes {
    typedef V Vector;
    const int64_t first;
    const int channels;
    const typename V::Prefix there;
    const float *z, *x;

    StoredLanes(int64_t first, int width, const float *z, const float *x)
        : first(first), channels(width), there(V::prefix((1 << width) - 1)), z(z), x(x) {}
    int64_t start() const { return first; }
    int width() const { return channels; }
    const typename V::Prefix &lanes() const { return there; }
    struct Sums {
        explicit Sums(const float *) {}
        void store(float *) const {}
    };
    V back(V g, V, Sums &, const float *) const { return g; }
    template <class Use>
    ALWAYS_INLINE void each(const float *p, int64_t rows, int64_t stride, Use use) const {
        const float *q = x + (p - z);
        const auto row = [&](int64_t n, auto parity) ALWAYS_INLINE {
            const V v = V::get(there, q + n * stride);
            use(n, v, v, parity);
        };
        each_row(rows, row);
    }
};

template <class Mixer>
struct Tile {
    const Mixer &mixer;
    const Kept<Mixer> &kept;
    const int64_t most;
    std::vector<float> x;
    const float *z = nullptr;
    float *sums = nullptr;
    int64_t rows = 0;
    Tile(const Mixer &m, const Kept<Mixer> &kept, const Tiles &tiles)
        : mixer(m), kept(kept), most(tiles.rows), x(has_octets(m) ? 0 : most * m.channels) {}
    void start(int64_t tile, const float *linear, int64_t n, bool again) {
        z = linear, rows = n;
        if constexpr (Mixer::OCTETS)
            if (mixer.has_octets()) {
                sums = kept.sums.get() + tile * most * mixer.b.count;
                if (!again) mixer.squares(z, sums, rows, most);
                return;
            }
        mixer.forward(z, x.data(), Finish{}, rows);
    }
    size_t count() const { return has_octets(mixer) ? (mixer.channels + 7) / 8 : (mixer.channels + 15) / 16; }
    template <class Run>
    ALWAYS_INLINE void with_lanes(size_t k, Run run) const {
        if constexpr (Mixer::OCTETS)
            if (mixer.has_octets()) return mixer.with_octet(k, sums, most, run);
        const int64_t first = 16 * k, left = mixer.channels - first;
        if (left > 8) run(StoredLanes<F>(first, left < 16 ? left : 16, z, x.data()));
        else run(StoredLanes<Half>(first, left, z, x.data()));
    }
    void back(float *g, typename Mixer::Sums &sums) const {
        if (has_octets(mixer)) sums.count(rows);
        else mixer.backward(g, z, g, sums, rows);
    }
};

#endif

// Mean of each channel and the sum of squared distances from it.
struct Moments {
    std::vector<double> mean, squared;
    int64_t count = 0;
    explicit Moments(int64_t channels) : mean(channels, 0.0), squared(channels, 0.0) {}

    double share(int64_t more) const { return double(more) / double(count + more); }
    // Of one channel; the share is that of the other count.
    void add(int64_t c, double other_mean, double other_squared, double share) {
        const double apart = other_mean - mean[c];
        mean[c] += apart * share;
        squared[c] += other_squared + apart * apart * share * double(count);
    }
    void add(const Moments &other) {
        if (other.count == 0) return;
        const double part = share(other.count);
        for (size_t c = 0; c < mean.size(); c++) add(c, other.mean[c], other.squared[c], part);
        count += other.count;
    }
};

// Distances are taken from a guess of the mean, for the first tile its first row, else the mean of the tile before. Where
// the guess was so far off that it hides the spread (the first row was an outlier), the tile is gone through again.
template <class Mixer>
static void moments(const Mixer &mixer, const Kept<Mixer> &kept, const Tiles &tiles, const float *z, double *mean,
                    double *var, int64_t channels, int threads) {
    Moments all(channels);
#pragma omp parallel num_threads(threads)
    {
        Moments own(channels);
        Tile<Mixer> mixed(mixer, kept, tiles);
        std::vector<float> guess(channels);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles.count; i++) {
            const int64_t rows = tiles.of(i), at = i * tiles.rows * channels;
            const double inverse = 1.0 / double(rows), share = own.share(rows);
            mixed.start(i, z + at, rows, false);
            for (size_t k = 0; k < mixed.count(); k++)
                mixed.with_lanes(k, [&](const auto &lanes) ALWAYS_INLINE {
                    const int64_t start = lanes.start();
                    const float *p = z + at + start;
                    typedef typename std::decay_t<decltype(lanes)>::Vector V;
                    if (own.count == 0)
                        lanes.each(p, 1, channels, [&](int64_t, V, V x, auto) ALWAYS_INLINE { x.put(lanes.lanes(), &guess[start]); });
                    double middle[16], squared[16];
                    bool hidden = false;
                    for (int turn = 0; turn < 2; turn++) {
                        const V from = V::get(lanes.lanes(), &guess[start]);
                        V sum[2] = {V::zeros(), V::zeros()}, squares[2] = {V::zeros(), V::zeros()};
                        lanes.each(p, rows, channels, [&](int64_t, V, V x, auto i) ALWAYS_INLINE {
                            const V apart = x - from;
                            sum[i] = sum[i] + apart;
                            squares[i] = fma(apart, apart, squares[i]);
                        });
                        alignas(64) float s[16], q[16];
                        (sum[0] + sum[1]).put(s), (squares[0] + squares[1]).put(q);
                        hidden = false;
                        for (int j = 0; j < lanes.width(); j++) {
                            const double d = s[j] * inverse;
                            middle[j] = guess[start + j] + d, squared[j] = q[j] - d * s[j];
                            hidden = hidden || squared[j] < q[j] / 16;
                            guess[start + j] = float(middle[j]);
                        }
                        if (!hidden) break;
                    }
                    for (int j = 0; j < lanes.width(); j++) own.add(start + j, middle[j], squared[j], share);
                });
            own.count += rows;
        }
#pragma omp critical
        all.add(own);
    }
    for (int64_t c = 0; c < channels; c++) mean[c] = all.mean[c], var[c] = all.squared[c] < 0 ? 0 : all.squared[c] / tiles.outer;
}

// What a BatchNorm is given, and the affine map of x that it makes of it.
struct Norm {
    const float *weight, *bias;  // or null
    double *mean, *var;          // of each channel
    double eps;
    bool relu, of_batch;  // whether a ReLU follows, and whether the mean and the variance are those of these rows
    std::vector<float> middle, scale, shift;

    double inverse(int64_t c) const { return 1 / std::sqrt(var[c] + eps); }
    void set(int64_t channels) {
        for (int64_t c = 0; c < channels; c++) {
            const double s = inverse(c) * (weight ? weight[c] : 1.0f);
            middle.push_back(float(mean[c])), scale.push_back(float(s));
            shift.push_back(float((bias ? bias[c] : 0.0f) - mean[c] * s));
        }
    }
};

template <class Mixer>
static bool norm_forward(const Mixer &mixer, const float *z, const float *added, float *out, Norm norm, int64_t outer,
                         int64_t channels, int threads) {
    if (!mixer.has_backward()) return false;
    const Tiles tiles = Tiles::of_numbers(Mixer::TILE, channels, norm.of_batch ? outer : 0);
    const Kept<Mixer> kept(mixer, tiles);
    if (norm.of_batch) moments(mixer, kept, tiles, z, norm.mean, norm.var, channels, threads);
    norm.set(channels);
    const Finish finish = {norm.scale.data(), norm.shift.data(), norm.relu, added};
    if constexpr (Mixer::OCTETS)
        if (norm.of_batch && mixer.has_octets()) {
#pragma omp parallel for num_threads(threads) schedule(static)
            for (int64_t i = 0; i < tiles.count; i++) {
                const int64_t rows = tiles.of(i), at = i * tiles.rows * channels;
                const float *sums = kept.sums.get() + i * tiles.rows * mixer.b.count;
                mixer.with_sums(z + at, out + at, sums, tiles.rows, finish.at(at), rows);
            }
            return true;
        }
    forward_tiles(mixer, z, Bias{}, out, finish, outer, channels, threads);
    return true;
}

// The same of the channels of some lanes.
template <class V, class There>
struct NormVector {
    const There &lanes;
    bool relu;
    FinishVector<V> finish;
    V mean;
    NormVector(const Norm &n, const There &lanes, int64_t start)
        : lanes(lanes), relu(n.relu), finish({n.scale.data(), n.shift.data(), false}, lanes, start),
          mean(V::get(lanes, &n.middle[start])) {}
    // The gradient that the ReLU let through: not where its input was zero or less. NaN passes, as in torch.
    V open(const float *g, V x) const { return relu ? get_where_positive(lanes, g, finish.affine(x)) : V::get(lanes, g); }
};

// Sums over all rows of the gradient g that the ReLU let through, and of g (x - mean), one behind the other.
template <class Mixer>
static void norm_sums(const Mixer &mixer, const Kept<Mixer> &kept, const Tiles &tiles, const float *grad, const float *z,
                      const Norm &norm, double *sums, int64_t channels, int threads) {
    std::memset(sums, 0, 2 * channels * sizeof(double));
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(2 * channels, 0.0);
        Tile<Mixer> mixed(mixer, kept, tiles);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles.count; i++) {
            const int64_t rows = tiles.of(i), first = i * tiles.rows * channels;
            mixed.start(i, z + first, rows, false);
            for (size_t k = 0; k < mixed.count(); k++)
                mixed.with_lanes(k, [&](const auto &lanes) ALWAYS_INLINE {
                    const int64_t start = lanes.start(), at = first + start;
                    typedef typename std::decay_t<decltype(lanes)>::Vector V;
                    const NormVector<V, std::decay_t<decltype(lanes.lanes())>> vector(norm, lanes.lanes(), start);
                    V plain[2] = {V::zeros(), V::zeros()}, weighted[2] = {V::zeros(), V::zeros()};
                    const float *g = grad + at;
                    lanes.each(z + at, rows, channels, [&](int64_t n, V, V x, auto i) ALWAYS_INLINE {
                        const V t = vector.open(g + n * channels, x);
                        plain[i] = plain[i] + t;
                        weighted[i] = fma(t, x - vector.mean, weighted[i]);
                    });
                    alignas(64) float s[16], w[16];
                    (plain[0] + plain[1]).put(s), (weighted[0] + weighted[1]).put(w);
                    for (int j = 0; j < lanes.width(); j++)
                        own[start + j] += s[j], own[channels + start + j] += w[j];
                });
        }
#pragma omp critical
        for (int64_t c = 0; c < 2 * channels; c++) sums[c] += own[c];
    }
}

// With g the gradient that the ReLU let through, s the scale and n rows, the gradient of x is
// s g - s/n sum g - s/(n (var + eps)) (x - mean) sum g (x - mean), the sums only where the statistics are those of these
// rows; then comes that of the squares. Those of the bias and the weight are the sums themselves. What the ReLU let through
// is computed anew, in the same order as in the forward pass: tiles are whole sixteens of rows, so that the same rows are
// added up together.
template <class Mixer>
static bool norm_backward(const Mixer &mixer, const float *grad, const float *z, Norm norm, float *result, double *dlam,
                          double *dbias, int64_t outer, int64_t channels, int threads) {
    if (!mixer.has_backward()) return false;
    norm.set(channels);
    const Tiles tiles = Tiles::of_numbers(TILE_BACK, channels, outer);
    const Kept<Mixer> kept(mixer, tiles);
    norm_sums(mixer, kept, tiles, grad, z, norm, dbias, channels, threads);
    std::vector<float> slope(channels, 0.0f), base(channels, 0.0f);
    for (int64_t c = 0; c < channels; c++) {
        const double inverse = norm.inverse(c), s = inverse * (norm.weight ? norm.weight[c] : 1.0f) / double(outer);
        double &weighted = dbias[channels + c];
        if (norm.of_batch) slope[c] = float(-s * inverse * inverse * weighted), base[c] = float(-s * dbias[c]);
        weighted *= inverse;
    }
#pragma omp parallel num_threads(threads)
    {
        typename Mixer::Sums sums(mixer);
        Tile<Mixer> mixed(mixer, kept, tiles);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles.count; i++) {
            const int64_t rows = tiles.of(i), first = i * tiles.rows * channels;
            mixed.start(i, z + first, rows, true);
            for (size_t k = 0; k < mixed.count(); k++)
                mixed.with_lanes(k, [&](const auto &lanes) ALWAYS_INLINE {
                    const int64_t start = lanes.start(), at = first + start;
                    typedef std::decay_t<decltype(lanes)> Lanes;
                    typedef typename Lanes::Vector V;
                    const auto &there = lanes.lanes();
                    const NormVector<V, std::decay_t<decltype(there)>> vector(norm, there, start);
                    const V m = V::get(there, &slope[start]), d = V::get(there, &base[start]);
                    typename Lanes::Sums own(sums.of(k));
                    const float *g = grad + at;
                    float *r = result + at;
                    lanes.each(z + at, rows, channels, [&](int64_t n, V linear, V x, auto) ALWAYS_INLINE {
                        V of_x = vector.finish.scale * vector.open(g + n * channels, x);
                        // Not zero times x else, which may be infinite.
                        if (norm.of_batch) of_x = of_x + fma(m, x - vector.mean, d);
                        lanes.back(of_x, linear, own, r + n * channels - start).put(there, r + n * channels);
                    });
                    own.store(sums.of(k));
                });
            mixed.back(result + first, sums);
        }
#pragma omp critical
        sums.add_to(dlam);
    }
    return true;
}

#else  // narrower machines: torch's BatchNorm behind the squares

struct EigenMixer {
    EigenMixer(const float *, Blocks, int64_t) {}
};
typedef EigenMixer SharedMixer;
struct Norm {
    const float *weight, *bias;
    double *mean, *var, eps;
    bool relu, of_batch;
};
static bool norm_forward(EigenMixer, const float *, const float *, float *, Norm, int64_t, int64_t, int) { return false; }
static bool norm_backward(EigenMixer, const float *, const float *, Norm, float *, double *, double *, int64_t, int64_t,
                          int) {
    return false;
}

#endif

// ---------------------------------------------------------------------------------------------- entry points

extern "C" {

int quadric_abi() { return 8; }

// Bits of the vectors of `vectors.h`, or 0 without them; then there are no kernels with a BatchNorm.
int quadric_vectors() {
#ifdef VECTORS
    return VECTORS;
#else
    return 0;
#endif
}

// A bias is given, and its gradient asked for, only with rows of channels.
void quadric_eigen_forward(float *in, const float *bias, float *out, const float *lam, const float *scale,
                           const float *shift, const int32_t *start, const int32_t *size, const int32_t *offset, int64_t count,
                           int64_t eigenvalues, int64_t outer, int64_t channels, int64_t inner, int relu, int threads) {
    const Blocks b = {count, eigenvalues, start, size, offset};
    const Finish finish = {scale, shift, relu != 0};
    if (inner == 1) eigen_forward_rows(in, {bias, in}, out, lam, b, finish, outer, channels, threads);
    else eigen_forward_planes(in, out, lam, b, finish, outer, channels, inner, threads);
}

void quadric_eigen_backward(const float *grad, const float *out, const float *lam, float *result, float *dlam,
                            float *dbias, const int32_t *start, const int32_t *size, const int32_t *offset, int64_t count,
                            int64_t eigenvalues, int64_t outer, int64_t channels, int64_t inner, int threads) {
    const Blocks b = {count, eigenvalues, start, size, offset};
    std::vector<double> sums(eigenvalues, 0.0), of_bias(dbias ? channels : 0, 0.0);
    double *const more = dbias ? of_bias.data() : nullptr;
    if (inner == 1) eigen_backward_rows(grad, out, lam, result, sums.data(), more, b, outer, channels, threads);
    else eigen_backward_planes(grad, out, lam, result, sums.data(), b, outer, channels, inner, threads);
    std::copy(sums.begin(), sums.end(), dlam);
    std::copy(of_bias.begin(), of_bias.end(), dbias);
}

void quadric_shared_forward(float *z, const float *bias, float *y, const float *lam, const float *scale,
                            const float *shift, const int32_t *start, const int32_t *size, const int32_t *offset, int64_t count,
                            int64_t eigenvalues, int64_t outer, int64_t channels, int64_t inner, int relu, int threads) {
    const Blocks b = {count, eigenvalues, start, size, offset};
    const Finish finish = {scale, shift, relu != 0};
    if (inner == 1) shared_forward_rows(z, {bias, z}, y, lam, b, finish, outer, channels, threads);
    else shared_forward_planes(z, y, lam, b, finish, outer, channels, inner, threads);
}

void quadric_shared_backward(const float *grad, const float *z, const float *lam, float *result, float *dlam,
                             float *dbias, const int32_t *start, const int32_t *size, const int32_t *offset, int64_t count,
                             int64_t eigenvalues, int64_t outer, int64_t channels, int64_t inner, int threads) {
    const Blocks b = {count, eigenvalues, start, size, offset};
    std::vector<double> sums(eigenvalues, 0.0), of_bias(dbias ? channels : 0, 0.0);
    double *const more = dbias ? of_bias.data() : nullptr;
    if (inner == 1) shared_backward_rows(grad, z, lam, result, sums.data(), more, b, outer, channels, threads);
    else shared_backward_planes(grad, z, lam, result, sums.data(), b, outer, channels, inner, threads);
    std::copy(sums.begin(), sums.end(), dlam);
    std::copy(of_bias.begin(), of_bias.end(), dbias);
}

// These return whether they did it: not on narrower machines, nor where a neuron or group is wider than a vector. Only rows
// of channels: there is no `inner`. `added`, or null, is added in front of the ReLU. The forward pass writes mean and
// variance, the batch's own or those given, unless null is given for them.
#define NORM_ENTRY(kind, Kind)                                                                                             \
    int quadric_##kind##_norm_forward(const float *z, const float *added, float *out, const float *lam,                   \
                                      const float *weight, const float *bias, const float *given_mean,                     \
                                      const float *given_var, double *mean, double *var, const int32_t *start,             \
                                      const int32_t *size, const int32_t *offset, int64_t count, int64_t eigenvalues,      \
                                      int64_t outer, int64_t channels, int64_t, double eps, int relu, int of_batch,        \
                                      int threads) {                                                                       \
        const Kind mixer(lam, {count, eigenvalues, start, size, offset}, channels);                                        \
        std::vector<double> own;                                                                                           \
        if (!mean) own.resize(2 * channels), mean = own.data(), var = mean + channels;                                     \
        if (!of_batch) std::copy_n(given_mean, channels, mean), std::copy_n(given_var, channels, var);                     \
        const Norm norm = {weight, bias, mean, var, eps, relu != 0, of_batch != 0};                                        \
        return norm_forward(mixer, z, added, out, norm, outer, channels, threads);                                         \
    }                                                                                                                      \
    int quadric_##kind##_norm_backward(const float *grad, const float *z, const float *lam, const float *weight,           \
                                       const float *bias, double *mean, double *var, float *result, float *dlam,           \
                                       float *dweight, float *dbias, const int32_t *start, const int32_t *size,            \
                                       const int32_t *offset, int64_t count, int64_t eigenvalues, int64_t outer,           \
                                       int64_t channels, int64_t, double eps, int relu, int of_batch, int threads) {       \
        const Kind mixer(lam, {count, eigenvalues, start, size, offset}, channels);                                        \
        const Norm norm = {weight, bias, mean, var, eps, relu != 0, of_batch != 0};                                        \
        std::vector<double> sums(eigenvalues, 0.0), own(2 * channels);                                                     \
        const bool done = norm_backward(mixer, grad, z, norm, result, sums.data(), own.data(), outer, channels, threads);  \
        std::copy(sums.begin(), sums.end(), dlam);                                                                         \
        std::copy_n(own.data(), channels, dbias), std::copy_n(own.data() + channels, channels, dweight);                   \
        return done;                                                                                                       \
    }

NORM_ENTRY(eigen, EigenMixer)
NORM_ENTRY(shared, SharedMixer)
}
