// z + S z^2 in one pass forward and one pass backward, float32 on a CPU.
//
// A tensor is (outer, channels, inner). Images in NCHW have inner = H * W ("planes"). Matrices and images in
// channels_last have inner = 1, their channels are contiguous ("rows"). S is block-diagonal along the channels; each
// block has a first channel (`start`), a number of channels (`size`) and a first eigenvalue (`offset`), see blocks.py:
//
//   star   the first channel y of a block receives the weighted squares of the features after it (eigen neuron)
//   full   every channel of a block receives the weighted squares of all of them (shared and square neuron)
//
// Plain loops and the compiler's vector types: one source for every processor, built with -O3 -march=native. The
// library is called through ctypes, because building against torch's headers takes a minute. README.md in this folder
// says how to add a kernel.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

// As many floats as one register holds. The compiler splits wider vectors, but through memory.
#if defined(__AVX512F__)
typedef float V __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float V __attribute__((vector_size(32)));
#else
typedef float V __attribute__((vector_size(16)));
#endif
static const int LANES = sizeof(V) / sizeof(float);
typedef float V8 __attribute__((vector_size(32)));  // one block of eight outputs

static inline V load(const float *p) { V v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store(float *p, V v) { std::memcpy(p, &v, sizeof v); }
static inline V8 load8(const float *p) { V8 v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store8(float *p, V8 v) { std::memcpy(p, &v, sizeof v); }
static inline float sum(V v) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += v[i];
    return s;
}

static const int64_t PIXELS = 512;  // of a plane at once: ten channels of them stay in the first cache
static const int64_t TILE = 2048;   // numbers of a tile of rows
static const int64_t ROWS = 16;     // of a tile of full blocks: wide rows still fit the near caches

struct Blocks {
    int64_t count, eigenvalues;
    const int32_t *start, *size, *offset;
};

// ------------------------------------------------------------------------------------------------ star, planes

static void star_forward_planes(const float *in, float *out, const float *lam, Blocks b, int64_t outer,
                                 int64_t channels, int64_t inner, int threads) {
    const int64_t jobs = outer * b.count;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t job = 0; job < jobs; job++) {
        const int64_t i = job % b.count;
        const int k = b.size[i] - 1;
        const int64_t at = ((job / b.count) * channels + b.start[i]) * inner;
        float *y = out + at;
        const float *l = lam + b.offset[i];
        for (int64_t p0 = 0; p0 < inner; p0 += PIXELS) {
            const int64_t n = inner - p0 < PIXELS ? inner - p0 : PIXELS;
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
        }
    }
}

static void star_backward_planes(const float *grad, const float *out, const float *lam, float *result, double *dlam,
                                  Blocks b, int64_t outer, int64_t channels, int64_t inner, int threads) {
    const int64_t jobs = outer * b.count;
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(b.eigenvalues, 0.0);
#pragma omp for schedule(static)
        for (int64_t job = 0; job < jobs; job++) {
            const int64_t i = job % b.count, base = ((job / b.count) * channels + b.start[i]) * inner;
            const int k = b.size[i] - 1;
            for (int64_t p0 = 0; p0 < inner; p0 += PIXELS) {
                const int64_t n = inner - p0 < PIXELS ? inner - p0 : PIXELS;
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

// ------------------------------------------------------------------------------------------------ star, rows

// Per channel: the eigenvalue of a feature, zero for a y.
static std::vector<float> spread(const float *lam, Blocks b, int64_t channels) {
    std::vector<float> wide(channels, 0.0f);
    for (int64_t i = 0; i < b.count; i++)
        for (int j = 1; j < b.size[i]; j++) wide[b.start[i] + j] = lam[b.offset[i] + j - 1];
    return wide;
}

// Rows are handled in tiles, so that the loops over all channels of a tile are long.
static int64_t tile_rows(int64_t channels) {
    const int64_t rows = TILE / channels;
    return rows < 1 ? 1 : rows;
}

static std::vector<float> repeat(const std::vector<float> &row, int64_t times) {
    std::vector<float> all;
    for (int64_t r = 0; r < times; r++) all.insert(all.end(), row.begin(), row.end());
    return all;
}

// y += the sum of its k weighted squares, in each row of a tile. K is k where the compiler knows it, else 0.
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

static void star_forward_rows(const float *in, float *out, const float *lam, Blocks b,
                               int64_t outer, int64_t channels, int threads) {
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
            if (in != out) std::memcpy(out + i * tile * channels, in + i * tile * channels, rows * channels * sizeof(float));
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
        }
    }
}

// Copies the gradient of y to each of its k features, in each row of a tile.
template <int K>
static inline void spread_grads(const float *__restrict g, float *__restrict gy, int k, int64_t rows, int64_t channels) {
    for (int64_t r = 0; r < rows; r++, g += channels, gy += channels) {
        const int n = K ? K : k;
        for (int j = 0; j < n; j++) gy[j] = *g;
    }
}

static void star_backward_rows(const float *grad, const float *out, const float *lam, float *result, double *dlam,
                               Blocks b, int64_t outer, int64_t channels, int threads) {
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
        const auto flush = [&]() {  // short sums in float go into long ones in double
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
            // An infinite y times zero is NaN, but the gradient of y does not depend on y.
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

// ------------------------------------------------------------------------------------------------ full, planes

// One block over n pixels: y_i = z_i + sum_j L_ij z_j^2. z may be y: all channels of a vector are read first.
template <int S>
static inline void full_forward_block(const float *z, float *y, const float *L, int size, int64_t inner,
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
            store(y + i * inner + p, a + c);
        }
    }
    for (; p < n; p++) {
        for (int j = 0; j < s; j++) tail[j] = z[j * inner + p] * z[j * inner + p];
        for (int i = 0; i < s; i++) {
            float a = z[i * inner + p];
            for (int j = 0; j < s; j++) a += L[i * s + j] * tail[j];
            y[i * inner + p] = a;
        }
    }
}

static void full_forward_planes(const float *z, float *y, const float *lam, Blocks b, int64_t outer,
                                  int64_t channels, int64_t inner, int threads) {
    const int64_t jobs = outer * b.count;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t job = 0; job < jobs; job++) {
        const int64_t i = job % b.count, base = ((job / b.count) * channels + b.start[i]) * inner;
        const float *L = lam + b.offset[i];
        switch (b.size[i]) {
            case 4: full_forward_block<4>(z + base, y + base, L, 4, inner, inner); break;
            case 8: full_forward_block<8>(z + base, y + base, L, 8, inner, inner); break;
            case 16: full_forward_block<16>(z + base, y + base, L, 16, inner, inner); break;
            default: full_forward_block<0>(z + base, y + base, L, b.size[i], inner, inner);
        }
    }
}

// One block over n pixels: r_j = g_j + 2 z_j sum_i L_ij g_i and dL_ij += sum g_i z_j^2.
template <int S>
static inline void full_backward_block(const float *g, const float *z, const float *L, float *r, double *dL, int size,
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

static void full_backward_planes(const float *grad, const float *z, const float *lam, float *result, double *dlam,
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
                    case 4: full_backward_block<4>(g, x, L, r, d, 4, inner, n); break;
                    case 8: full_backward_block<8>(g, x, L, r, d, 8, inner, n); break;
                    case 16: full_backward_block<16>(g, x, L, r, d, 16, inner, n); break;
                    default: full_backward_block<0>(g, x, L, r, d, b.size[i], inner, n);
                }
            }
        }
#pragma omp critical
        for (int64_t e = 0; e < b.eigenvalues; e++) dlam[e] += own[e];
    }
}

// ------------------------------------------------------------------------------------------------ full, rows

static void full_forward_rows(const float *z, float *y, const float *lam, Blocks b,
                                int64_t outer, int64_t channels, int threads) {
    // Columns of L, so that a block of eight outputs is one vector.
    std::vector<float> columns(b.eigenvalues);
    for (int64_t i = 0; i < b.count; i++) {
        const int s = b.size[i];
        for (int r = 0; r < s; r++)
            for (int c = 0; c < s; c++) columns[b.offset[i] + c * s + r] = lam[b.offset[i] + r * s + c];
    }
    const float *t = columns.data();
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> square(channels);
        float *q = square.data();
#pragma omp for schedule(static)
        for (int64_t r0 = 0; r0 < outer; r0 += ROWS) {
            const int64_t end = r0 + ROWS < outer ? r0 + ROWS : outer;
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
        }
    }
}

static void full_backward_rows(const float *grad, const float *z, const float *lam, float *result, double *dlam,
                               Blocks b, int64_t outer, int64_t channels, int threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> own(b.eigenvalues, 0.0);
        std::vector<float> scratch, partial(b.eigenvalues, 0.0f);
        int64_t since = 0;
        const auto flush = [&]() {  // short sums in float go into long ones in double
            for (int64_t e = 0; e < b.eigenvalues; e++) own[e] += partial[e], partial[e] = 0;
        };
#pragma omp for schedule(static)
        for (int64_t r0 = 0; r0 < outer; r0 += ROWS) {
            const int64_t end = r0 + ROWS < outer ? r0 + ROWS : outer;
            for (int64_t k = 0; k < b.count; k++) {
                const int s = b.size[k];
                const float *L = lam + b.offset[k];
                float *d = partial.data() + b.offset[k];
                if (s == 8) {
                    V8 m[8], acc[8];
                    for (int i = 0; i < 8; i++) m[i] = load8(L + 8 * i), acc[i] = load8(d + 8 * i);
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
                    for (int i = 0; i < 8; i++) store8(d + 8 * i, acc[i]);
                } else {
                    scratch.resize(s);
                    float *t = scratch.data();
                    for (int64_t r = r0; r < end; r++) {
                        const int64_t at = r * channels + b.start[k];
                        for (int j = 0; j < s; j++) t[j] = 0;
                        for (int i = 0; i < s; i++) {
                            const float g = grad[at + i];
                            for (int j = 0; j < s; j++) {
                                t[j] += L[i * s + j] * g;
                                d[i * s + j] += g * z[at + j] * z[at + j];
                            }
                        }
                        for (int j = 0; j < s; j++) result[at + j] = grad[at + j] + 2 * z[at + j] * t[j];
                    }
                }
            }
            if ((since += ROWS) >= 128) flush(), since = 0;
        }
        flush();
#pragma omp critical
        for (int64_t e = 0; e < b.eigenvalues; e++) dlam[e] += own[e];
    }
}

// ------------------------------------------------------------------------------------------------ entry points

extern "C" {

// `z` and `y` may be the same tensor.
#define FORWARD(shape)                                                                                                    \
    void quadric_##shape##_forward(const float *z, float *y, const float *lam, const int32_t *start, const int32_t *size, \
                                   const int32_t *offset, int64_t count, int64_t eigenvalues, int64_t outer,              \
                                   int64_t channels, int64_t inner, int threads) {                                        \
        const Blocks b = {count, eigenvalues, start, size, offset};                                                       \
        if (inner == 1) shape##_forward_rows(z, y, lam, b, outer, channels, threads);                                     \
        else shape##_forward_planes(z, y, lam, b, outer, channels, inner, threads);                                       \
    }

// `kept` is what the squares are taken from: for star blocks the output y, for full blocks z.
#define BACKWARD(shape)                                                                                                   \
    void quadric_##shape##_backward(const float *grad, const float *kept, const float *lam, float *result, float *dlam,   \
                                    const int32_t *start, const int32_t *size, const int32_t *offset, int64_t count,      \
                                    int64_t eigenvalues, int64_t outer, int64_t channels, int64_t inner, int threads) {   \
        const Blocks b = {count, eigenvalues, start, size, offset};                                                       \
        std::vector<double> sums(eigenvalues, 0.0);                                                                       \
        if (inner == 1) shape##_backward_rows(grad, kept, lam, result, sums.data(), b, outer, channels, threads);         \
        else shape##_backward_planes(grad, kept, lam, result, sums.data(), b, outer, channels, inner, threads);           \
        std::copy(sums.begin(), sums.end(), dlam);                                                                        \
    }

FORWARD(star)
FORWARD(full)
BACKWARD(star)
BACKWARD(full)
}
