// z + S z^2 in one pass forward and one pass backward, on a CPU: float32, bfloat16 and float16, summed in float32.
//
// A tensor is (outer, channels, inner). Images in NCHW have inner = H * W ("planes"). Matrices and images in
// channels_last have inner = 1, their channels are contiguous ("rows"). S is block-diagonal along the channels:
//
//   star   the first channel y of a block receives the weighted squares of the features after it (eigen neuron)
//   full   every channel of a block receives the weighted squares of all of them (shared and square neuron)
//
// Plain loops and the compiler's vector types: one source for every processor, built with -O3 -march=native. The
// library is called through ctypes, because building against torch's headers takes a minute. README.md in this folder
// says how to add a kernel.

#include "planes.h"

template <class T>
static void forward(const void *from, void *to, const float *lam, const Layer &layer, int64_t outer, int64_t inner,
                    int threads) {
    const T *z = (const T *)from;
    T *y = (T *)to;
    const Blocks &b = layer.b;
    if (inner == 1) (b.star ? star_forward_rows<T> : full_forward_rows<T>)(z, y, lam, layer, outer, threads);
    else (b.star ? star_forward_planes<T> : full_forward_planes<T>)(z, y, lam, b, outer, inner, threads);
}

template <class T>
static void backward(const void *grad, const void *kept, const float *lam, void *result, Totals &totals,
                     const Layer &layer, int64_t outer, int64_t inner, int threads) {
    const T *g = (const T *)grad, *x = (const T *)kept;
    T *r = (T *)result;
    if (inner == 1) (layer.b.star ? star_backward_rows<T> : full_backward_rows<T>)(g, x, lam, r, totals, layer, outer, threads);
    else (layer.b.star ? star_backward_planes<T> : full_backward_planes<T>)(g, x, lam, r, totals, layer.b, outer, inner, threads);
}

extern "C" {

// What the calls below take, made once for all layers of the same blocks and kept until the process ends.
const void *quadric_layer(const int64_t *facts) { return new Layer(facts); }

// `z` and `y` may be the same tensor. `type` is 0 for float32, 1 for bfloat16, 2 for float16.
void quadric_forward(int64_t type, const void *z, void *y, const float *lam, const Layer *layer, int64_t outer,
                     int64_t inner, int64_t threads) {
    (type == 0 ? forward<float> : type == 1 ? forward<bfloat16> : forward<float16>)(z, y, lam, *layer, outer, inner,
                                                                                    threads);
}

// `kept` is what the squares are taken from: for star blocks the output y, for full blocks z. `bias` receives the sum
// of `result` over all positions, unless it is null.
void quadric_backward(int64_t type, const void *grad, const void *kept, const float *lam, void *result, float *dlam,
                      float *bias, const Layer *layer, int64_t outer, int64_t inner, int64_t threads) {
    Totals totals(layer->b, bias != nullptr);
    (type == 0 ? backward<float> : type == 1 ? backward<bfloat16> : backward<float16>)(
        grad, kept, lam, result, totals, *layer, outer, inner, threads);
    for (size_t e = 0; e < totals.eigenvalues.size(); e++) dlam[e] = totals.eigenvalues[e];
    for (size_t c = 0; c < totals.bias.size(); c++) bias[c] = totals.bias[c];
}
}
