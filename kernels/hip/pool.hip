// y[nc, oh, ow] = max (kind 0), mean over the image (kind 1) or mean over image and padding (kind 2) of windows of x[nc, h, w].
//
// One thread a result, 256 a block; bound by bytes. NaN in a window gives NaN.

// Taps k with 0 <= o stride + k dil - pad < limit: those from `lo` on, `hi` excluded.
PK_FN void pk_taps(pk_i32 at, pk_i32 dil, pk_i32 pad, pk_i32 taps, pk_i32 limit, pk_i32 &lo, pk_i32 &hi) {
    pk_i32 before = pad - at, until = limit + pad - at;
    hi = until <= 0 ? 0 : (until + dil - 1) / dil;
    hi = hi < taps ? hi : taps;
    lo = before <= 0 ? 0 : (before + dil - 1) / dil;
    lo = lo < hi ? lo : hi;
}

template <class T>
PK_FN void pk_pool(const T *x, T *y, pk_i64 nc, pk_i32 h, pk_i32 w, pk_i32 kh, pk_i32 kw, pk_i32 stride_h,
                   pk_i32 stride_w, pk_i32 pad_top, pk_i32 pad_left, pk_i32 dil_h, pk_i32 dil_w, pk_i32 oh, pk_i32 ow,
                   pk_i32 kind, pk_i32 pad_bottom, pk_i32 pad_right) {
    pk_i64 at = pk_linear(), pixels = (pk_i64)oh * ow;
    if (at >= nc * pixels) return;
    const T *plane = x + at / pixels * h * w;
    pk_i32 pixel = (pk_i32)(at % pixels), yo = pixel / ow * stride_h, xo = pixel % ow * stride_w + PK_SHIFT;
    pk_i32 y0, y1, x0, x1;
    pk_taps(yo, dil_h, pad_top, kh, h, y0, y1);
    pk_taps(xo, dil_w, pad_left, kw, w, x0, x1);
    float max = -PK_INF, sum = 0.f;
    for (pk_i32 ky = y0; ky < y1; ky++) {
        const T *line = plane + (pk_i64)(yo + ky * dil_h - pad_top) * w;
        for (pk_i32 kx = x0; kx < x1; kx++) {
            float v = pk_get(line[xo + kx * dil_w - pad_left]);
            max = v > max || v != v ? v : max;
            sum += v;
        }
    }
    if (kind == 2) {
        pk_taps(yo, dil_h, 0, kh, h + pad_top + pad_bottom, y0, y1);
        pk_taps(xo, dil_w, 0, kw, w + pad_left + pad_right, x0, x1);
    }
    // The mean over a window of nothing but padding is 0.
    pk_i32 count = (y1 - y0) * (x1 - x0);
    pk_set(y + at, kind == 0 ? max : sum / (float)(count > 1 ? count : 1));
}
#define PK_POOL(NAME, T)                                                                                               \
    PK_KERNEL(256) NAME(const T *x, T *y, pk_i64 nc, pk_i64 h, pk_i64 w, pk_i64 kh, pk_i64 kw, pk_i64 stride_h,        \
                        pk_i64 stride_w, pk_i64 pad_top, pk_i64 pad_left, pk_i64 dil_h, pk_i64 dil_w, pk_i64 oh,       \
                        pk_i64 ow, pk_i64 kind, pk_i64 pad_bottom, pk_i64 pad_right) {                                 \
        pk_pool<T>(x, y, nc, (pk_i32)h, (pk_i32)w, (pk_i32)kh, (pk_i32)kw, (pk_i32)stride_h, (pk_i32)stride_w,         \
                   (pk_i32)pad_top, (pk_i32)pad_left, (pk_i32)dil_h, (pk_i32)dil_w, (pk_i32)oh, (pk_i32)ow,            \
                   (pk_i32)kind, (pk_i32)pad_bottom, (pk_i32)pad_right);                                               \
    }
PK_POOL(hip_ep_pool2d_f32, float)
PK_POOL(hip_ep_pool2d_f16, pk_half)
