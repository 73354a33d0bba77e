// y = act(conv(x[n, c, h, w], w[m, c/group, kh, kw]) + bias[m] + residual[n, m, oh, ow]), sums in f32.
//
// An implicit matrix product per group: rows are the group's output channels, columns the pixels of all images, k is (channel, ky, kx).
// Tiles and shared memory as for gemm. Depthwise convolutions (one input channel a group) are bound by bytes and go one thread a
// result. Grid: x tiles, y and z groups (y is at most 32768); depthwise: see `pk_linear`.

#define PK_CONV_ARGS(T)                                                                                                \
    const T *x, const T *w, const T *bias, const T *residual, T *y, pk_i64 n, pk_i64 c, pk_i64 h, pk_i64 width,        \
        pk_i64 m, pk_i64 kh, pk_i64 kw, pk_i64 group, pk_i64 stride_h, pk_i64 stride_w, pk_i64 pad_top,                \
        pk_i64 pad_left, pk_i64 dil_h, pk_i64 dil_w, pk_i64 oh, pk_i64 ow, pk_i64 activation, double lo, double hi

// Geometry of one group.
template <class T> struct pk_conv {
    const T *x, *w, *bias, *residual;
    T *y;
    pk_i32 n, cg, h, width, mg, kh, kw, stride_h, stride_w, pad_top, pad_left, dil_h, dil_w, oh, ow, activation;
    pk_i32 rows, cols, k, pixels;
    pk_i64 c, m;
    float lo, hi;
    bool there;
    PK_IN pk_conv(PK_CONV_ARGS(T), pk_i64 g) {
        there = g < group;
        this->c = c;
        this->m = m;
        cg = (pk_i32)(c / group);
        mg = (pk_i32)(m / group);
        k = cg * (pk_i32)kh * (pk_i32)kw;
        this->x = x + g * cg * h * width;
        this->w = w + g * mg * (pk_i64)k;
        this->bias = bias ? bias + g * mg : bias;
        this->residual = residual;
        this->y = y;
        this->n = (pk_i32)n;
        this->h = (pk_i32)h;
        this->width = (pk_i32)width;
        this->kh = (pk_i32)kh;
        this->kw = (pk_i32)kw;
        this->stride_h = (pk_i32)stride_h;
        this->stride_w = (pk_i32)stride_w;
        this->pad_top = (pk_i32)pad_top;
        this->pad_left = (pk_i32)pad_left - PK_SHIFT;
        this->dil_h = (pk_i32)dil_h;
        this->dil_w = (pk_i32)dil_w;
        this->oh = (pk_i32)oh;
        this->ow = (pk_i32)ow;
        this->activation = (pk_i32)activation;
        this->lo = (float)lo;
        this->hi = (float)hi;
        pixels = this->oh * this->ow;
        rows = mg;
        cols = this->n * pixels;
        first_channel = g * mg;
    }
    pk_i64 first_channel;
    PK_IN void store(pk_i32 row, pk_i32 col, float v) const {
        pk_i64 image = (pk_u32)col / (pk_u32)pixels;
        pk_i64 at = (image * m + first_channel + row) * pixels + (pk_u32)col % (pk_u32)pixels;
#ifndef PK_NO_BIAS
        if (bias) v += pk_get(bias[row]);
#endif
#ifndef PK_NO_RESIDUAL
        if (residual) v += pk_get(residual[at]);
#endif
#ifdef PK_NO_ACTIVATION
        pk_set(y + at, v);
#else
        pk_set(y + at, pk_activate(activation, v, lo, hi));
#endif
    }
};
#define PK_CONV(T, GROUP)                                                                                              \
    pk_conv<T> g(x, w, bias, residual, y, n, c, h, width, m, kh, kw, group, stride_h, stride_w, pad_top, pad_left,     \
                 dil_h, dil_w, oh, ow, activation, lo, hi, GROUP)
#define PK_GROUP ((pk_i64)pk_bid_y() + (pk_i64)pk_bid_z() * 32768)

// Reads the windows of ROWS pixels, BK of k at a time: a thread has one pixel and N neighbours along k.
template <class T, int ROWS, int BK> struct pk_gather {
    enum { N = ROWS * BK / PK_BLOCK };
    const pk_conv<T> &g;
    const T *image;
    pk_i32 y0, x0, ch, ky, kx, skip_ch, skip_ky, skip_kx;
    bool in;
    T reg[N];
    PK_IN pk_gather(const pk_conv<T> &gg, pk_i32 first) : g(gg) {
        pk_i32 col = first + (pk_i32)pk_tid() % ROWS, taps = g.kh * g.kw;
        in = col < g.cols;
        pk_i32 pixel = (pk_i32)((pk_u32)col % (pk_u32)g.pixels);
        image = g.x + (pk_i64)((pk_u32)col / (pk_u32)g.pixels) * g.c * g.h * g.width;
        y0 = pixel / g.ow * g.stride_h - g.pad_top;
        x0 = pixel % g.ow * g.stride_w - g.pad_left;
        pk_i32 k = (pk_i32)pk_tid() / ROWS * N;
        ch = k / taps;
        ky = k % taps / g.kw;
        kx = k % taps % g.kw;
        // From the last of this step to the first of the next.
        skip_ch = (BK - N) / taps;
        skip_ky = (BK - N) % taps / g.kw;
        skip_kx = (BK - N) % taps % g.kw;
    }
    PK_IN void carry() {
        if (kx >= g.kw) {
            kx -= g.kw;
            ky++;
        }
        if (ky >= g.kh) {
            ky -= g.kh;
            ch++;
        }
    }
    PK_IN void fetch() {
        PK_UNROLL
        for (int i = 0; i < N; i++) {
            pk_i32 iy = y0 + ky * g.dil_h, ix = x0 + kx * g.dil_w;
            bool there = in && ch < g.cg && iy >= 0 && iy < g.h && ix >= 0 && ix < g.width;
            T v = {};
            if (there) v = image[((pk_i64)ch * g.h + iy) * g.width + ix];
            reg[i] = v;
            kx++;
            carry();
        }
        ch += skip_ch;
        ky += skip_ky;
        kx += skip_kx;
        carry();
    }
    // For FMA.
    PK_IN void put(float *lds) const {
        pk_i32 row = (pk_i32)pk_tid() % ROWS, k = (pk_i32)pk_tid() / ROWS * N;
        PK_UNROLL
        for (int i = 0; i < N; i++) lds[(k + i) * (ROWS + 4) + row] = pk_get(reg[i]);
    }
    // For the matrix units.
    PK_IN void put(pk_half *lds) const {
        pk_i32 row = (pk_i32)pk_tid() % ROWS, k = (pk_i32)pk_tid() / ROWS * N;
        PK_UNROLL
        for (int i = 0; i < N; i += 4) {
            pk_u2 v = {{(pk_u32)reg[i].v | (pk_u32)reg[i + 1].v << 16, (pk_u32)reg[i + 2].v | (pk_u32)reg[i + 3].v << 16}};
            *(pk_u2 *)(lds + row * (BK + 8) + k + i) = v;
        }
    }
};

template <class T, int B> PK_FN void pk_conv_fma(const pk_conv<T> &g, float *lds) {
    if (!g.there) return;
    pk_i32 across = (g.cols + B - 1) / B, row = (pk_i32)pk_bid() / across * B, col = (pk_i32)pk_bid() % across * B;
    pk_matrix_f32<T, B, 16> left(pk_matrix<T>(g.w, g.k, 1, g.mg, g.k), row);
    pk_tile_fma<B, B>(left, pk_gather<T, B, 16>(g, col), g, row, col, g.k, lds);
}
#define PK_CONV_FMA(NAME, T, B)                                                                                        \
    PK_KERNEL(256) NAME(PK_CONV_ARGS(T)) {                                                                             \
        PK_SHARED float lds[2 * 16 * 2 * (B + 4)];                                                                     \
        PK_CONV(T, PK_GROUP);                                                                                          \
        pk_conv_fma<T, B>(g, lds);                                                                                     \
    }
PK_CONV_FMA(hip_ep_conv2d_f32_128, float, 128)
PK_CONV_FMA(hip_ep_conv2d_f32_64, float, 64)
#if defined(PK_MMA)
template <int B> PK_FN void pk_conv_mma(const pk_conv<pk_half> &g, pk_u8 *lds) {
    if (!g.there) return;
    pk_i32 across = (g.cols + B - 1) / B, row = (pk_i32)pk_bid() / across * B, col = (pk_i32)pk_bid() % across * B;
    pk_matrix_f16<B, 32> left(pk_matrix<pk_half>(g.w, g.k, 1, g.mg, g.k), row);
    pk_tile_mma<B, B, 2>(left, pk_gather<pk_half, B, 32>(g, col), g, row, col, g.k, lds);
}
#define PK_CONV_MMA(NAME, B)                                                                                           \
    PK_KERNEL(256) NAME(PK_CONV_ARGS(pk_half)) {                                                                       \
        PK_SHARED pk_u8 lds[2 * 2 * B * 40 * 2];                                                                       \
        PK_CONV(pk_half, PK_GROUP);                                                                                    \
        pk_conv_mma<B>(g, lds);                                                                                        \
    }
PK_CONV_MMA(hip_ep_conv2d_f16_128, 128)
PK_CONV_MMA(hip_ep_conv2d_f16_64, 64)
#else
PK_CONV_FMA(hip_ep_conv2d_f16_128, pk_half, 128)
PK_CONV_FMA(hip_ep_conv2d_f16_64, pk_half, 64)
#endif

// One thread a result: channel ch reads input channel ch / (m / group).
#define PK_DEPTHWISE(NAME, T)                                                                                          \
    PK_KERNEL(256) NAME(PK_CONV_ARGS(T)) {                                                                             \
        pk_i64 at = pk_linear();                                                                                       \
        if (at >= n * m * oh * ow) return;                                                                             \
        pk_i64 rest = at / (oh * ow), ch = rest % m;                                                                   \
        pk_i32 pixel = (pk_i32)(at % (oh * ow)), image = (pk_i32)(rest / m), mult = (pk_i32)(m / group);               \
        PK_CONV(T, ch / mult);                                                                                         \
        pk_i32 row = (pk_i32)(ch % mult);                                                                              \
        const T *plane = g.x + (pk_i64)image * c * h * width, *weights = g.w + row * g.k;                              \
        pk_i32 y0 = pixel / g.ow * g.stride_h - g.pad_top, x0 = pixel % g.ow * g.stride_w - g.pad_left;                \
        float v = 0.f;                                                                                                 \
        for (pk_i32 ky = 0; ky < g.kh; ky++) {                                                                         \
            pk_i32 iy = y0 + ky * g.dil_h;                                                                             \
            if (iy < 0 || iy >= g.h) continue;                                                                         \
            for (pk_i32 kx = 0; kx < g.kw; kx++) {                                                                     \
                pk_i32 ix = x0 + kx * g.dil_w;                                                                         \
                if (ix < 0 || ix >= g.width) continue;                                                                 \
                v = pk_fma(pk_get(plane[(pk_i64)iy * g.width + ix]), pk_get(weights[ky * g.kw + kx]), v);              \
            }                                                                                                          \
        }                                                                                                              \
        g.store(row, image * g.pixels + pixel, v);                                                                     \
    }
PK_DEPTHWISE(hip_ep_conv2d_f32_depthwise, float)
PK_DEPTHWISE(hip_ep_conv2d_f16_depthwise, pk_half)
