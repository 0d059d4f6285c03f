// Floats by sixteens: `F` is one register of a processor with AVX-512, two of one with AVX2, where there is also `Half`, of
// one. Elsewhere VECTORS is not defined.
//
// `Bits` name lanes in tables, bit by bit. In registers that is a `Mask`; a `Prefix` is one of the first lanes only, and
// alone can be written to memory. An `Index` names for each lane another one to take from.

#pragma once

#include <cstdint>

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define VECTORS 512
#elif defined(__AVX2__) && defined(__FMA__)
#define VECTORS 256
#endif

#ifdef VECTORS
#include <immintrin.h>

// For what a loop over a few rows calls: a call, and what it captures going through memory, took a third of the time.
#define ALWAYS_INLINE __attribute__((always_inline))
#define VECTOR_INLINE ALWAYS_INLINE static inline

typedef uint16_t Bits;

#if VECTORS == 512

struct F {
    typedef __mmask16 Mask;
    typedef __mmask16 Prefix;
    typedef __m512i Index;
    __m512 v;

    ALWAYS_INLINE static Mask mask(Bits bits) { return bits; }
    ALWAYS_INLINE static Prefix prefix(Bits bits) { return bits; }
    ALWAYS_INLINE static Index index(const int32_t *p) { return _mm512_loadu_si512(p); }
    ALWAYS_INLINE static F zeros() { return {_mm512_setzero_ps()}; }
    ALWAYS_INLINE static F all(float v) { return {_mm512_set1_ps(v)}; }
    ALWAYS_INLINE static F get(const float *p) { return {_mm512_loadu_ps(p)}; }
    ALWAYS_INLINE static F get(Mask m, const float *p) { return {_mm512_maskz_loadu_ps(m, p)}; }  // zero in other lanes
    ALWAYS_INLINE void put(float *p) const { _mm512_storeu_ps(p, v); }
    ALWAYS_INLINE void put(Prefix m, float *p) const { _mm512_mask_storeu_ps(p, m, v); }
};
typedef F Half;

VECTOR_INLINE F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
VECTOR_INLINE F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
VECTOR_INLINE F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
VECTOR_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
VECTOR_INLINE F at_least(F least, F v) { return {_mm512_max_ps(least.v, v.v)}; }  // NaN stays
VECTOR_INLINE F keep(F::Mask m, F v) { return {_mm512_maskz_mov_ps(m, v.v)}; }
VECTOR_INLINE F add_where(F::Mask m, F a, F b) { return {_mm512_mask_add_ps(a.v, m, a.v, b.v)}; }
VECTOR_INLINE F fma_where(F::Mask m, F a, F b, F c) { return {_mm512_mask3_fmadd_ps(a.v, b.v, c.v, m)}; }
// What stands at p where x is not zero or less; NaN is not.
VECTOR_INLINE F get_where_positive(F::Prefix m, const float *p, F x) {
    return F::get(m & _mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_NLE_UQ), p);
}
VECTOR_INLINE float total(F v) { return _mm512_reduce_add_ps(v.v); }

VECTOR_INLINE F first_lane(F v) { return {_mm512_broadcastss_ps(_mm512_castps512_ps128(v.v))}; }
VECTOR_INLINE F pick(F::Index from, F v) { return {_mm512_permutexvar_ps(from, v.v)}; }
VECTOR_INLINE F pick_or_zero(F::Index from, F v) {  // index 16 takes zero
    return {_mm512_permutex2var_ps(v.v, from, _mm512_setzero_ps())};
}
// Lane d of each SIZE lanes in all of them; `from` says the same.
template <int SIZE>
VECTOR_INLINE F spread_lane(F::Index from, int, F v) {
    return pick(from, v);
}

// Whether a block of n channels may stand behind `width` others in one vector.
static inline bool fits(int width, int n) { return width + n <= 16; }

// Halves what is left to add up in each of two vectors, and puts both into one: lanes 0 and 2 and lanes 1 and 3 of each
// quarter, in turn; then the two sums of each quarter; then quarters.
VECTOR_INLINE __m512 add_lanes(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
VECTOR_INLINE __m512 add_pairs(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}
VECTOR_INLINE __m512 add_quarters(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// The sums of what `squares` gives of each of sixteen rows.
template <class Squares>
VECTOR_INLINE F add_rows(const float *x, int64_t channels, Squares squares) {
    const auto four = [&](int first) ALWAYS_INLINE {
        const float *p = x + first * channels, *q = p + 2 * channels;
        const __m512 a = add_lanes(squares(p).v, squares(p + channels).v);
        return add_pairs(a, add_lanes(squares(q).v, squares(q + channels).v));
    };
    return {add_quarters(add_quarters(four(0), four(4)), add_quarters(four(8), four(12)))};
}

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
    // Adds them to the y in front of them, in one row and in eight: four pairs of rows are added up crosswise, so that all
    // eight sums come out in one vector.
    void add(float *y) const { *y += _mm512_mask_reduce_add_ps(255, squares(y + 1, 0)); }
    void add_to_eight(float *y, int64_t channels) const {
        const float *f = y + 1;
        const __m512 a = squares(f, channels), b = squares(f + 2 * channels, channels);
        const __m512 c = squares(f + 4 * channels, channels), d = squares(f + 6 * channels, channels);
        // In each quarter a sum for a, b, c and d; two quarters for each row of a pair.
        const __m512 all = add_pairs(add_lanes(a, b), add_lanes(c, d));
        alignas(64) float sums[16];
        _mm512_store_ps(sums, _mm512_add_ps(all, _mm512_shuffle_f32x4(all, all, 0xb1)));
        for (int p = 0; p < 4; p++) y[2 * p * channels] += sums[p], y[(2 * p + 1) * channels] += sums[8 + p];
    }
};

#else  // AVX2

VECTOR_INLINE __m256i mask_of_eight(int bits) {
    const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), own), own);
}

// The first lanes, fewer than eight, in pieces of 4, 2 and 1: some processors take ten times as long for a masked store.
VECTOR_INLINE void put_some(float *p, __m256 v, int lanes) {
    __m128 rest = _mm256_castps256_ps128(v);
    if (lanes & 4) {
        _mm_storeu_ps(p, rest);
        rest = _mm256_extractf128_ps(v, 1), p += 4;
    }
    if (lanes & 2) {
        _mm_storel_pi((__m64 *)p, rest);
        rest = _mm_movehl_ps(rest, rest), p += 2;
    }
    if (lanes & 1) _mm_store_ss(p, rest);
}

template <int R>
struct Registers {
    struct Mask {
        __m256i r[R];
    };
    struct Prefix : Mask {
        int lanes;
    };
    struct Whole {};  // all lanes
    struct Index {
        __m256i r[R];
    };
    __m256 r[R];

    template <class Make>  // what it gives for each register
    ALWAYS_INLINE static Registers each(Make make) {
        Registers v;
        for (int i = 0; i < R; i++) v.r[i] = make(i);
        return v;
    }
    ALWAYS_INLINE static Mask mask(Bits bits) {
        Mask m;
        for (int i = 0; i < R; i++) m.r[i] = mask_of_eight(bits >> 8 * i);
        return m;
    }
    ALWAYS_INLINE static Prefix prefix(Bits bits) { return {mask(bits), __builtin_popcount(bits)}; }
    ALWAYS_INLINE static Index index(const int32_t *p) {
        Index from;
        for (int i = 0; i < R; i++) from.r[i] = _mm256_loadu_si256((const __m256i *)(p + 8 * i));
        return from;
    }
    ALWAYS_INLINE static Registers zeros() { return all(0.0f); }
    ALWAYS_INLINE static Registers all(float v) {
        return each([&](int) ALWAYS_INLINE { return _mm256_set1_ps(v); });
    }
    ALWAYS_INLINE static Registers get(const float *p) {
        return each([&](int i) ALWAYS_INLINE { return _mm256_loadu_ps(p + 8 * i); });
    }
    ALWAYS_INLINE static Registers get(const Mask &m, const float *p) {
        return each([&](int i) ALWAYS_INLINE { return _mm256_maskload_ps(p + 8 * i, m.r[i]); });
    }
    ALWAYS_INLINE static Registers get(Whole, const float *p) { return get(p); }
    ALWAYS_INLINE void put(float *p) const {
        for (int i = 0; i < R; i++) _mm256_storeu_ps(p + 8 * i, r[i]);
    }
    ALWAYS_INLINE void put(Whole, float *p) const { put(p); }
    ALWAYS_INLINE void put(const Prefix &m, float *p) const {
        for (int i = 0; i < R; i++) {
            if (m.lanes < 8 * i + 8) return put_some(p + 8 * i, r[i], m.lanes - 8 * i);
            _mm256_storeu_ps(p + 8 * i, r[i]);
        }
    }
};
typedef Registers<2> F;
typedef Registers<1> Half;

#define EACH(expression) Registers<R>::each([&](int i) ALWAYS_INLINE { return expression; })
template <int R>
VECTOR_INLINE Registers<R> operator+(Registers<R> a, Registers<R> b) {
    return EACH(_mm256_add_ps(a.r[i], b.r[i]));
}
template <int R>
VECTOR_INLINE Registers<R> operator-(Registers<R> a, Registers<R> b) {
    return EACH(_mm256_sub_ps(a.r[i], b.r[i]));
}
template <int R>
VECTOR_INLINE Registers<R> operator*(Registers<R> a, Registers<R> b) {
    return EACH(_mm256_mul_ps(a.r[i], b.r[i]));
}
template <int R>
VECTOR_INLINE Registers<R> fma(Registers<R> a, Registers<R> b, Registers<R> c) {
    return EACH(_mm256_fmadd_ps(a.r[i], b.r[i], c.r[i]));
}
template <int R>
VECTOR_INLINE Registers<R> at_least(Registers<R> least, Registers<R> v) {
    return EACH(_mm256_max_ps(least.r[i], v.r[i]));
}
template <int R>
VECTOR_INLINE Registers<R> keep(const typename Registers<R>::Mask &m, Registers<R> v) {
    return EACH(_mm256_and_ps(_mm256_castsi256_ps(m.r[i]), v.r[i]));
}
template <int R>
VECTOR_INLINE Registers<R> choose(const typename Registers<R>::Mask &m, Registers<R> yes, Registers<R> no) {
    return EACH(_mm256_blendv_ps(no.r[i], yes.r[i], _mm256_castsi256_ps(m.r[i])));
}
template <int R>
VECTOR_INLINE Registers<R> add_where(const typename Registers<R>::Mask &m, Registers<R> a, Registers<R> b) {
    return choose(m, a + b, a);
}
template <int R>
VECTOR_INLINE Registers<R> fma_where(const typename Registers<R>::Mask &m, Registers<R> a, Registers<R> b, Registers<R> c) {
    return choose(m, fma(a, b, c), c);
}
template <class Lanes, int R>
VECTOR_INLINE Registers<R> get_where_positive(const Lanes &there, const float *p, Registers<R> x) {
    const Registers<R> g = Registers<R>::get(there, p);
    return EACH(_mm256_and_ps(g.r[i], _mm256_cmp_ps(x.r[i], _mm256_setzero_ps(), _CMP_NLE_UQ)));
}

VECTOR_INLINE float total(__m256 v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
VECTOR_INLINE float total(F v) { return total(_mm256_add_ps(v.r[0], v.r[1])); }

template <int R>
VECTOR_INLINE Registers<R> first_lane(Registers<R> v) {
    return EACH(((void)i, _mm256_broadcastss_ps(_mm256_castps256_ps128(v.r[0]))));
}
VECTOR_INLINE Half pick(Half::Index from, Half v) { return {_mm256_permutevar8x32_ps(v.r[0], from.r[0])}; }
VECTOR_INLINE F pick(F::Index from, F v) {
    const int R = 2;
    return EACH(_mm256_blendv_ps(_mm256_permutevar8x32_ps(v.r[0], from.r[i]), _mm256_permutevar8x32_ps(v.r[1], from.r[i]),
                                 _mm256_castsi256_ps(_mm256_slli_epi32(from.r[i], 28))));  // by bit 3
}
template <class V>
VECTOR_INLINE V pick_or_zero(typename V::Index from, V v) {
    typename V::Mask there;
    for (size_t i = 0; i < sizeof there / sizeof *there.r; i++)
        there.r[i] = _mm256_cmpgt_epi32(_mm256_set1_epi32(16), from.r[i]);
    return keep(there, pick(from, v));
}
// A sum is rounded here: allowed to reorder, the compiler would subtract a mean from one of its terms, and two that are
// equal no longer be zero apart.
VECTOR_INLINE Half rounded(Half v) {
    __asm__("" : "+x"(v.r[0]));
    return v;
}
// By cheaper means than `pick`: quarters are doubled once for all d.
VECTOR_INLINE __m256 spread_in_quarters(int d, __m256 v) {
    switch (d & 3) {
        case 0: return _mm256_permute_ps(v, 0x00);
        case 1: return _mm256_permute_ps(v, 0x55);
        case 2: return _mm256_permute_ps(v, 0xaa);
        default: return _mm256_permute_ps(v, 0xff);
    }
}
template <int SIZE, int R>
VECTOR_INLINE Registers<R> spread_lane(typename Registers<R>::Index, int d, Registers<R> v) {
    if (SIZE == 4) return EACH(spread_in_quarters(d, v.r[i]));
    const auto own = [&](int i) ALWAYS_INLINE { return v.r[SIZE == 16 ? d / 8 : i]; };
    return EACH(spread_in_quarters(d, d & 4 ? _mm256_permute2f128_ps(own(i), own(i), 0x11)
                                            : _mm256_permute2f128_ps(own(i), own(i), 0x00)));
}
#undef EACH

// Blocks of up to 8 channels share one register, a wider one has two to itself: to take a lane from another register costs
// six times as much.
static inline bool fits(int width, int n) { return width == 0 ? n <= 16 : width + n <= 8; }

VECTOR_INLINE __m256 add_lanes(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}
VECTOR_INLINE __m256 add_pairs(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
}
VECTOR_INLINE __m256 add_halves(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// The sums of what `squares`, eight numbers, gives of each of eight rows.
template <class Squares>
VECTOR_INLINE __m256 add_eight_rows(const float *x, int64_t channels, Squares squares) {
    const auto four = [&](const float *p) ALWAYS_INLINE {
        const float *q = p + 2 * channels;
        const __m256 a = add_lanes(squares(p), squares(p + channels));
        return add_pairs(a, add_lanes(squares(q), squares(q + channels)));
    };
    return add_halves(four(x), four(x + 4 * channels));
}

template <class Squares>
VECTOR_INLINE F add_rows(const float *x, int64_t channels, Squares squares) {
    const auto both = [&](const float *p) ALWAYS_INLINE {
        const F t = squares(p);
        return _mm256_add_ps(t.r[0], t.r[1]);
    };
    return {{add_eight_rows(x, channels, both), add_eight_rows(x + 8 * channels, channels, both)}};
}

template <int EIGHTS>
struct Features {
    __m256i lanes[EIGHTS];
    __m256 lam[EIGHTS];
    Features(const float *l, int k) {
        for (int i = 0; i < EIGHTS; i++, k -= 8) {
            lanes[i] = mask_of_eight(k >= 8 ? 255 : k > 0 ? (1 << k) - 1 : 0);
            lam[i] = _mm256_maskload_ps(l + 8 * i, lanes[i]);
        }
    }
    ALWAYS_INLINE __m256 squares(const float *f) const {
        __m256 sum = _mm256_setzero_ps();
        for (int i = 0; i < EIGHTS; i++, f += 8) {
            const __m256 x = _mm256_maskload_ps(f, lanes[i]), t = _mm256_mul_ps(lam[i], x);
            sum = i ? _mm256_fmadd_ps(t, x, sum) : _mm256_mul_ps(t, x);
        }
        return sum;
    }
    float sum(const float *f) const { return total(squares(f)); }
    ALWAYS_INLINE __m256 sums_of_eight(const float *f, int64_t channels) const {
        return add_eight_rows(f, channels, [&](const float *p) ALWAYS_INLINE { return squares(p); });
    }
    void add(float *y) const { *y += sum(y + 1); }
    void add_to_eight(float *y, int64_t channels) const {
        alignas(32) float sums[8];
        _mm256_store_ps(sums, sums_of_eight(y + 1, channels));
        for (int r = 0; r < 8; r++) y[r * channels] += sums[r];
    }
};

#endif
#endif
