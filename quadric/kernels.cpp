// Fused epilogues of the eigen and the shared neuron, float32, one pass forward and one backward.
//
// A tensor is (outer, channels, inner): images in NCHW have inner = H * W, images in channels_last and matrices have
// inner = 1, the channels being contiguous. Channels fall into blocks (`start`, `size`, `offset` of the first eigenvalue):
// for eigen a block is a neuron, y first and its features behind; for shared it is a group of outputs with a size x size
// matrix of eigenvalues. No torch header is used: the library is built in a second or two and called through ctypes.

#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define WIDE_VECTORS
#endif

typedef float V __attribute__((vector_size(64)));   // 16 floats; narrower machines split it
typedef float V8 __attribute__((vector_size(32)));  // 8 floats: one group of the shared neuron

static inline V load(const float *p) { V v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store(float *p, V v) { std::memcpy(p, &v, sizeof v); }
static inline V8 load8(const float *p) { V8 v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store8(float *p, V8 v) { std::memcpy(p, &v, sizeof v); }
static inline float sum(V v) {
    float s = 0;
    for (int i = 0; i < 16; i++) s += v[i];
    return s;
}

static const int64_t FLOAT_ROWS = 256;  // after so many, with the tile they end in, sums in float go into those in double
static const int64_t BLOCK = 512;  // pixels handled at once: a block of ten channels stays in the first cache

struct Blocks {
    int64_t count, eigenvalues;
    const int32_t *start, *size, *offset;
};

// What follows the squares in inference: a shift of each channel (or null), and a ReLU. NaN stays NaN.
struct Finish {
    const float *shift;
    bool relu;
    bool any() const { return shift || relu; }
    float operator()(float v, int64_t channel) const {
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
        if (f.shift)
            for (int64_t i = 0; i < n; i++) x[i] += f.shift[first + c];
        if (f.relu) relu(x, n);
    }
}

// On rows of all channels.
static inline void finish_rows(float *x, Finish f, int64_t rows, int64_t channels) {
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

// Per channel: the eigenvalue of a feature, zero for a y.
static std::vector<float> spread(const float *lam, Blocks b, int64_t channels) {
    std::vector<float> wide(channels, 0.0f);
    for (int64_t i = 0; i < b.count; i++)
        for (int j = 1; j < b.size[i]; j++) wide[b.start[i] + j] = lam[b.offset[i] + j - 1];
    return wide;
}

#ifdef WIDE_VECTORS

// A `Finish` of up to 16 neighboring channels.
struct FinishVector {
    __m512 shift, least;
    FinishVector(Finish f, __mmask16 lanes, int64_t start)
        : shift(f.shift ? _mm512_maskz_loadu_ps(lanes, f.shift + start) : _mm512_setzero_ps()),
          least(_mm512_set1_ps(f.relu ? 0.0f : -__builtin_inff())) {}
    // The second operand of a maximum is what becomes of a NaN.
    __m512 operator()(__m512 v) const { return _mm512_max_ps(least, _mm512_add_ps(v, shift)); }
};

// The features of a neuron by eights: which lanes there are, and their eigenvalues, twice.
template <int EIGHTS>
struct Features {
    __mmask8 lanes[EIGHTS];
    __m512 lam[EIGHTS];
    Features(const float *l, int k) {
        for (int i = 0; i < EIGHTS; i++, k -= 8) {
            lanes[i] = k >= 8 ? 255 : k > 0 ? (1 << k) - 1 : 0;
            lam[i] = _mm512_broadcast_f32x8(_mm256_maskz_loadu_ps(lanes[i], l + 8 * i));
        }
    }
    // Their weighted squares in two rows, eight partial sums in each half of a vector.
    __m512 squares(const float *f, int64_t channels) const {
        __m512 sum = _mm512_setzero_ps();
        for (int i = 0; i < EIGHTS; i++, f += 8) {
            const __m256 one = _mm256_maskz_loadu_ps(lanes[i], f), two = _mm256_maskz_loadu_ps(lanes[i], f + channels);
            const __m512 x = _mm512_insertf32x8(_mm512_castps256_ps512(one), two, 1), t = _mm512_mul_ps(lam[i], x);
            sum = i ? _mm512_fmadd_ps(t, x, sum) : _mm512_mul_ps(t, x);
        }
        return sum;
    }
};

// y += the weighted squares of the features behind it, eight rows at a time: four pairs of rows are added up crosswise, so
// that all eight sums come out in one vector.
template <int EIGHTS>
static void eigen_forward_neuron(float *y, const float *lam, int k, int64_t rows, int64_t channels) {
    const Features<EIGHTS> features(lam, k);
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8, y += 8 * channels) {
        const float *f = y + 1;
        const __m512 a = features.squares(f, channels), b = features.squares(f + 2 * channels, channels);
        const __m512 c = features.squares(f + 4 * channels, channels);
        const __m512 d = features.squares(f + 6 * channels, channels);
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        // In each quarter a sum for a, b, c and d; two quarters for each row of a pair.
        const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
        alignas(64) float sums[16];
        _mm512_store_ps(sums, _mm512_add_ps(all, _mm512_shuffle_f32x4(all, all, 0xb1)));
        for (int p = 0; p < 4; p++) y[2 * p * channels] += sums[p], y[(2 * p + 1) * channels] += sums[8 + p];
    }
    for (; r < rows; r++, y += channels)
        *y += _mm512_mask_reduce_add_ps(255, features.squares(y + 1, 0));
}

// Neighboring neurons that fit one vector of 16 channels: loaded and stored together in the backward pass,
// other lanes masked out.
struct Segment {
    int64_t start;
    __mmask16 lanes, features;
    __m512 lam;    // zero for a y
    __m512i y_of;  // the lane of each lane's y
};

// Empty where a neuron is wider than a vector: then the loops below do the work.
static std::vector<Segment> segments(const float *lam, Blocks b) {
    std::vector<Segment> all;
    for (int64_t i = 0; i < b.count;) {
        Segment s = {};
        s.start = b.start[i];
        alignas(64) float l[16] = {};
        alignas(64) int32_t y[16] = {};
        int width = 0;
        for (; i < b.count && width + b.size[i] <= 16; i++) {
            const int n = b.size[i];
            for (int j = 0; j < n; j++) {
                s.lanes |= 1 << (width + j);
                y[width + j] = width;
                if (j) s.features |= 1 << (width + j), l[width + j] = lam[b.offset[i] + j - 1];
            }
            width += n;
        }
        if (width == 0) return {};
        s.lam = _mm512_load_ps(l);
        s.y_of = _mm512_load_si512(y);
        all.push_back(s);
    }
    return all;
}

// What the rows add to the gradients of the eigenvalues is added to `sums`.
static inline void eigen_backward_segment(const float *g, const float *f, float *r, float *sums, const Segment &s,
                                          int64_t rows, int64_t channels) {
    const __m512 twice = _mm512_add_ps(s.lam, s.lam);
    __m512 acc = _mm512_loadu_ps(sums);
    g += s.start, f += s.start, r += s.start;
    for (; rows > 0; rows--, g += channels, f += channels, r += channels) {
        const __m512 gv = _mm512_maskz_loadu_ps(s.lanes, g), x = _mm512_maskz_loadu_ps(s.features, f);
        const __m512 gf = _mm512_mul_ps(_mm512_permutexvar_ps(s.y_of, gv), x);
        _mm512_mask_storeu_ps(r, s.lanes, _mm512_mask3_fmadd_ps(twice, gf, gv, s.features));
        acc = _mm512_fmadd_ps(gf, x, acc);
    }
    _mm512_storeu_ps(sums, acc);
}

// Adds short sums in float to those in double, one a channel, and starts anew.
static void flush(std::vector<float> &sums, const std::vector<Segment> &all, std::vector<double> &own) {
    for (size_t k = 0; k < all.size(); k++)
        for (int j = 0; j < 16; j++)
            if (all[k].features >> j & 1) own[all[k].start + j] += sums[16 * k + j];
    sums.assign(sums.size(), 0.0f);
}

// As many rows as stay in the first cache, by eights. Where rows are long, few: each is a stream of its own for the
// processor, which fetches ahead for some thirty of them.
static int64_t segment_rows(int64_t channels) {
    const int64_t rows = 4096 / channels / 8 * 8;
    return rows < 8 ? 8 : rows;
}

static bool eigen_forward_vectors(const float *in, float *out, const float *lam, Blocks b, Finish finish,
                                  int64_t outer, int64_t channels, int threads) {
    const int64_t tile = segment_rows(channels), tiles = (outer + tile - 1) / tile;
    for (int64_t m = 0; m < b.count; m++)
        if (b.size[m] > 65) return false;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t rows = outer - i * tile < tile ? outer - i * tile : tile;
        float *x = out + i * tile * channels;
        copy_tile(in, out, i * tile * channels, rows * channels);
        for (int64_t m = 0; m < b.count; m++) {
            const int k = b.size[m] - 1;
            float *y = x + b.start[m];
            const float *l = lam + b.offset[m];
            if (k == 0) continue;
            if (k <= 8) eigen_forward_neuron<1>(y, l, k, rows, channels);
            else if (k <= 16) eigen_forward_neuron<2>(y, l, k, rows, channels);
            else if (k <= 32) eigen_forward_neuron<4>(y, l, k, rows, channels);
            else eigen_forward_neuron<8>(y, l, k, rows, channels);
        }
        finish_rows(x, finish, rows, channels);
    }
    return true;
}

static bool eigen_backward_vectors(const float *grad, const float *out, const float *lam, float *result, double *dlam,
                                   Blocks b, int64_t outer, int64_t channels, int threads) {
    const std::vector<Segment> all = segments(lam, b);
    const int64_t tile = segment_rows(channels), tiles = (outer + tile - 1) / tile;
    if (all.empty()) return false;
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(channels, 0.0);
        std::vector<float> sums(16 * all.size(), 0.0f);
        int64_t since = 0;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t rows = outer - i * tile < tile ? outer - i * tile : tile, at = i * tile * channels;
            for (size_t k = 0; k < all.size(); k++)
                eigen_backward_segment(grad + at, out + at, result + at, &sums[16 * k], all[k], rows, channels);
            since += rows;
            if (since >= FLOAT_ROWS) flush(sums, all, own), since = 0;
        }
        flush(sums, all, own);
#pragma omp critical
        for (int64_t m = 0; m < b.count; m++)
            for (int j = 1; j < b.size[m]; j++) dlam[b.offset[m] + j - 1] += own[b.start[m] + j];
    }
    return true;
}

#else  // narrower machines: the loops below

static bool eigen_forward_vectors(const float *, float *, const float *, Blocks, Finish, int64_t, int64_t, int) {
    return false;
}
static bool eigen_backward_vectors(const float *, const float *, const float *, float *, double *, Blocks, int64_t,
                                   int64_t, int) {
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

static void eigen_forward_rows(const float *in, float *out, const float *lam, Blocks b, Finish finish, int64_t outer,
                               int64_t channels, int threads) {
    if (eigen_forward_vectors(in, out, lam, b, finish, outer, channels, threads)) return;
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
                    for (; p + 16 <= n; p += 16) {
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
                                Blocks b, int64_t outer, int64_t channels, int threads) {
    if (eigen_backward_vectors(grad, out, lam, result, dlam, b, outer, channels, threads)) return;
    const int64_t tile = tile_rows(channels), tiles = (outer + tile - 1) / tile;
    const std::vector<float> wide = repeat(spread(lam, b, channels), tile);
    const float *__restrict w = wide.data();
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> scratch(tile * channels, 0.0f), partial(tile * channels, 0.0f);
        std::vector<double> own(channels, 0.0);
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
            if (++since == 64) flush(), since = 0;
        }
        flush();
#pragma omp critical
        for (int64_t m = 0; m < b.count; m++)
            for (int j = 1; j < b.size[m]; j++) dlam[b.offset[m] + j - 1] += own[b.start[m] + j];
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
    for (; p + 16 <= n; p += 16) {
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
        const Finish f = {finish.shift ? finish.shift + b.start[i] : nullptr, finish.relu};
        switch (b.size[i]) {
            case 4: shared_forward_group<4>(z + base, y + base, L, f, 4, inner, inner); break;
            case 8: shared_forward_group<8>(z + base, y + base, L, f, 8, inner, inner); break;
            case 16: shared_forward_group<16>(z + base, y + base, L, f, 16, inner, inner); break;
            default: shared_forward_group<0>(z + base, y + base, L, f, b.size[i], inner, inner);
        }
    }
}

#ifdef WIDE_VECTORS

// Neighboring groups that fit one vector of 16 channels. Step d takes to each lane the d-th channel of its own group.
struct Cluster {
    int64_t start, first, groups;  // first channel, first block, how many blocks
    __mmask16 lanes;
    __mmask16 inside[16];  // lanes whose group has a d-th channel
    __m512i from[16];      // the lane of that channel
    int steps;             // channels of the largest group
    bool even;             // all groups have so many, and there is a loop of so many steps
};

// Empty where a group is wider than a vector: then the loops below do the work.
static std::vector<Cluster> clusters(Blocks b) {
    std::vector<Cluster> all;
    for (int64_t i = 0; i < b.count;) {
        Cluster c = {};
        c.start = b.start[i], c.first = i;
        alignas(64) int32_t from[16][16] = {};
        int width = 0;
        for (; i < b.count && width + b.size[i] <= 16; i++) {
            const int n = b.size[i];
            for (int lane = width; lane < width + n; lane++) {
                c.lanes |= 1 << lane;
                for (int d = 0; d < n; d++) c.inside[d] |= 1 << lane, from[d][lane] = width + d;
            }
            if (c.steps < n) c.steps = n;
            width += n, c.groups++;
        }
        if (width == 0) return {};
        for (int d = 0; d < 16; d++) c.from[d] = _mm512_load_si512(from[d]);
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
template <int STEPS, bool EVEN>
struct Take {
    __m512i from[STEPS];
    __mmask16 inside[STEPS];
    explicit Take(const Cluster &c) {
        for (int d = 0; d < STEPS; d++) from[d] = c.from[d], inside[d] = c.inside[d];
    }
    __m512 operator()(int d, __m512 v) const {
        return EVEN ? _mm512_permutexvar_ps(from[d], v) : _mm512_maskz_permutexvar_ps(inside[d], from[d], v);
    }
};

template <int STEPS, bool EVEN, bool FINISH>
static void shared_forward_cluster(const float *z, float *y, const Cluster &c, const Steps &l, Finish f, int64_t rows,
                                   int64_t channels) {
    const Take<STEPS, EVEN> take(c);
    const FinishVector finish(f, c.lanes, c.start);
    const __mmask16 lanes = c.lanes;
    __m512 m[STEPS];
    for (int d = 0; d < STEPS; d++) m[d] = _mm512_load_ps(l.of[d]);
    for (z += c.start, y += c.start; rows > 0; rows--, z += channels, y += channels) {
        const __m512 x = _mm512_maskz_loadu_ps(lanes, z), x2 = _mm512_mul_ps(x, x);
        __m512 sum[2] = {x, _mm512_setzero_ps()};
        for (int d = 0; d < STEPS; d++) sum[d & 1] = _mm512_fmadd_ps(m[d], take(d, x2), sum[d & 1]);
        const __m512 out = _mm512_add_ps(sum[0], sum[1]);
        _mm512_mask_storeu_ps(y, lanes, FINISH ? finish(out) : out);
    }
}

// What the rows add to the gradients of the eigenvalues is added to `sums`.
template <int STEPS, bool EVEN>
static void shared_backward_cluster(const float *grad, const float *z, float *result, Steps &sums, const Cluster &c,
                                    const Steps &l, int64_t rows, int64_t channels) {
    const Take<STEPS, EVEN> take(c);
    const __mmask16 lanes = c.lanes;
    __m512 m[STEPS], acc[STEPS];
    for (int d = 0; d < STEPS; d++) m[d] = _mm512_load_ps(l.of[d]), acc[d] = _mm512_load_ps(sums.of[d]);
    grad += c.start, z += c.start, result += c.start;
    for (; rows > 0; rows--, grad += channels, z += channels, result += channels) {
        const __m512 g = _mm512_maskz_loadu_ps(lanes, grad), x = _mm512_maskz_loadu_ps(lanes, z);
        const __m512 x2 = _mm512_mul_ps(x, x);
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int d = 0; d < STEPS; d++) {
            const __m512 t = take(d, g);
            sum[d & 1] = _mm512_fmadd_ps(m[d], t, sum[d & 1]);
            acc[d] = _mm512_fmadd_ps(t, x2, acc[d]);
        }
        const __m512 back = _mm512_fmadd_ps(_mm512_add_ps(x, x), _mm512_add_ps(sum[0], sum[1]), g);
        _mm512_mask_storeu_ps(result, lanes, back);
    }
    for (int d = 0; d < STEPS; d++) _mm512_store_ps(sums.of[d], acc[d]);
}

// Adds short sums in float to those in double, and starts anew.
static void flush(std::vector<Steps> &sums, const std::vector<Cluster> &all, Blocks b, double *dlam) {
    for (size_t k = 0; k < all.size(); k++)
        for (int64_t g = all[k].first; g < all[k].first + all[k].groups; g++) {
            const int n = b.size[g], at = int(b.start[g] - all[k].start);
            for (int d = 0; d < n; d++)
                for (int j = 0; j < n; j++) dlam[b.offset[g] + d * n + j] += sums[k].of[d][at + j];
        }
    std::memset(sums.data(), 0, sums.size() * sizeof(Steps));
}

// The loop for a cluster: of four, eight or sixteen steps. `...` are further template arguments.
#define WITH_STEPS(c, run, arguments, ...)                                 \
    if (c.steps <= 4 && c.even) run<4, true __VA_ARGS__> arguments;        \
    else if (c.steps <= 4) run<4, false __VA_ARGS__> arguments;            \
    else if (c.steps <= 8 && c.even) run<8, true __VA_ARGS__> arguments;   \
    else if (c.steps <= 8) run<8, false __VA_ARGS__> arguments;            \
    else if (c.even) run<16, true __VA_ARGS__> arguments;                  \
    else run<16, false __VA_ARGS__> arguments;

static bool shared_forward_vectors(const float *z, float *y, const float *lam, Blocks b, Finish f, int64_t outer,
                                   int64_t channels, int threads) {
    const std::vector<Cluster> all = clusters(b);
    const int64_t tile = segment_rows(channels), tiles = (outer + tile - 1) / tile;
    if (all.empty()) return false;
    const std::vector<Steps> l = coefficients(all, lam, b, true);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t rows = outer - i * tile < tile ? outer - i * tile : tile, at = i * tile * channels;
        for (size_t k = 0; k < all.size(); k++) {
            const Cluster &c = all[k];
            if (f.any()) {
                WITH_STEPS(c, shared_forward_cluster, (z + at, y + at, c, l[k], f, rows, channels), , true)
            } else {
                WITH_STEPS(c, shared_forward_cluster, (z + at, y + at, c, l[k], f, rows, channels), , false)
            }
        }
    }
    return true;
}

static bool shared_backward_vectors(const float *grad, const float *z, const float *lam, float *result, double *dlam,
                                    Blocks b, int64_t outer, int64_t channels, int threads) {
    const std::vector<Cluster> all = clusters(b);
    const int64_t tile = segment_rows(channels), tiles = (outer + tile - 1) / tile;
    if (all.empty()) return false;
    const std::vector<Steps> l = coefficients(all, lam, b, false);
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(b.eigenvalues, 0.0);
        std::vector<Steps> sums(all.size());
        int64_t since = 0;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t rows = outer - i * tile < tile ? outer - i * tile : tile, at = i * tile * channels;
            for (size_t k = 0; k < all.size(); k++) {
                const Cluster &c = all[k];
                const float *g = grad + at, *x = z + at;
                WITH_STEPS(c, shared_backward_cluster, (g, x, result + at, sums[k], c, l[k], rows, channels))
            }
            since += rows;
            if (since >= FLOAT_ROWS) flush(sums, all, b, own.data()), since = 0;
        }
        flush(sums, all, b, own.data());
#pragma omp critical
        for (int64_t e = 0; e < b.eigenvalues; e++) dlam[e] += own[e];
    }
    return true;
}

#else  // narrower machines: the loops below

static bool shared_forward_vectors(const float *, float *, const float *, Blocks, Finish, int64_t, int64_t, int) {
    return false;
}
static bool shared_backward_vectors(const float *, const float *, const float *, float *, double *, Blocks, int64_t,
                                    int64_t, int) {
    return false;
}

#endif

static void shared_forward_rows(const float *z, float *y, const float *lam, Blocks b, Finish finish, int64_t outer,
                                int64_t channels, int threads) {
    if (shared_forward_vectors(z, y, lam, b, finish, outer, channels, threads)) return;
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
    for (; p + 16 <= n; p += 16) {
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
                for (p = 0; p < whole; p += 16) {
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
                for (p = 0; p < whole; p += 16)
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
                                 Blocks b, int64_t outer, int64_t channels, int threads) {
    if (shared_backward_vectors(grad, z, lam, result, dlam, b, outer, channels, threads)) return;
    const int64_t step = 64;
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(b.eigenvalues, 0.0);
        std::vector<float> scratch;
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
        }
#pragma omp critical
        for (int64_t e = 0; e < b.eigenvalues; e++) dlam[e] += own[e];
    }
}

// ---------------------------------------------------------------------------------------------- entry points

extern "C" {

int quadric_abi() { return 4; }

void quadric_eigen_forward(const float *in, float *out, const float *lam, const float *shift, const int32_t *start,
                           const int32_t *size, const int32_t *offset, int64_t count, int64_t eigenvalues, int64_t outer,
                           int64_t channels, int64_t inner, int relu, int threads) {
    const Blocks b = {count, eigenvalues, start, size, offset};
    const Finish finish = {shift, relu != 0};
    if (inner == 1) eigen_forward_rows(in, out, lam, b, finish, outer, channels, threads);
    else eigen_forward_planes(in, out, lam, b, finish, outer, channels, inner, threads);
}

void quadric_eigen_backward(const float *grad, const float *out, const float *lam, float *result, double *dlam,
                            const int32_t *start, const int32_t *size, const int32_t *offset, int64_t count,
                            int64_t eigenvalues, int64_t outer, int64_t channels, int64_t inner, int threads) {
    const Blocks b = {count, eigenvalues, start, size, offset};
    std::memset(dlam, 0, eigenvalues * sizeof(double));
    if (inner == 1) eigen_backward_rows(grad, out, lam, result, dlam, b, outer, channels, threads);
    else eigen_backward_planes(grad, out, lam, result, dlam, b, outer, channels, inner, threads);
}

void quadric_shared_forward(const float *z, float *y, const float *lam, const float *shift, const int32_t *start,
                           const int32_t *size, const int32_t *offset, int64_t count, int64_t eigenvalues, int64_t outer,
                           int64_t channels, int64_t inner, int relu, int threads) {
    const Blocks b = {count, eigenvalues, start, size, offset};
    const Finish finish = {shift, relu != 0};
    if (inner == 1) shared_forward_rows(z, y, lam, b, finish, outer, channels, threads);
    else shared_forward_planes(z, y, lam, b, finish, outer, channels, inner, threads);
}

void quadric_shared_backward(const float *grad, const float *z, const float *lam, float *result, double *dlam,
                             const int32_t *start, const int32_t *size, const int32_t *offset, int64_t count,
                             int64_t eigenvalues, int64_t outer, int64_t channels, int64_t inner, int threads) {
    const Blocks b = {count, eigenvalues, start, size, offset};
    std::memset(dlam, 0, eigenvalues * sizeof(double));
    if (inner == 1) shared_backward_rows(grad, z, lam, result, dlam, b, outer, channels, threads);
    else shared_backward_planes(grad, z, lam, result, dlam, b, outer, channels, inner, threads);
}
}
