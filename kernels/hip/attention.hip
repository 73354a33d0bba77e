// y[b, h, s, e] = softmax(scale * q[b, h, s, d] * k[b, h, t, d]^T + mask) * v[b, h, t, e], softmax in f32. Query row r has row
// r % mask_rows of the mask; where mask_selects is not 0, an element of the mask that is not 0 takes the score's place.
//
// Keys pass by 32 at a time; a row keeps its maximum m, its sum l and its result, and scales the latter two when m grows. A row whose
// scores are all -inf gives NaN, no keys at all give 0, as the CPU's; where nan_to_zero is not 0, a row of NaN is 0.
//
// `fma`: 32 query rows a block, 8 threads a row, d and e up to 64 or 128; shared memory (2 * 32 * (DM + 4) + 32 * 36) * 4 bytes, 38 KB.
// `mma`: 4 waves of 16 query rows, f16 with matrix units, 46 KB. `any`: one query row a block, any d and e; slow.
// Bound by 2 s t (d + e) flops a head. Grid x: blocks of rows times batch times heads.

#define PK_ATTENTION_ARGS(T)                                                                                           \
    const T *q, const T *k, const T *v, const T *mask, T *y, pk_i64 batch, pk_i64 heads, pk_i64 s, pk_i64 t, pk_i64 d, \
        pk_i64 e, pk_i64 q_batch, pk_i64 q_head, pk_i64 q_row, pk_i64 k_batch, pk_i64 k_head, pk_i64 k_row,            \
        pk_i64 k_col, pk_i64 v_batch, pk_i64 v_head, pk_i64 v_row, pk_i64 mask_batch, pk_i64 mask_head,                \
        pk_i64 mask_row, pk_i64 mask_col, pk_i64 mask_selects, pk_i64 mask_rows, pk_i64 nan_to_zero, double scale

// One head, and the block's first query row.
template <class T> struct pk_attention {
    const T *q, *k, *v, *mask;
    T *y;
    pk_i64 q_row, k_row, k_col, v_row, mask_row, mask_col;
    pk_i32 s, t, d, e, row0, mask_rows;
    float scale;
    bool there, selects, nan_to_zero;
    PK_IN pk_attention(PK_ATTENTION_ARGS(T), pk_i32 rows) {
        pk_i64 across = (s + rows - 1) / rows, bh = (pk_i64)pk_bid() / across, b = bh / heads, h = bh % heads;
        there = b < batch;
        row0 = (pk_i32)((pk_i64)pk_bid() % across) * rows;
        this->q = q + b * q_batch + h * q_head;
        this->k = k + b * k_batch + h * k_head;
        this->v = v + b * v_batch + h * v_head;
        this->mask = mask ? mask + b * mask_batch + h * mask_head : mask;
        this->y = y + bh * s * e;
        this->q_row = q_row;
        this->k_row = k_row;
        this->k_col = k_col;
        this->v_row = v_row;
        this->mask_row = mask_row;
        this->mask_col = mask_col;
        selects = mask_selects != 0;
        this->nan_to_zero = nan_to_zero != 0;
        this->mask_rows = mask_rows > 0 && mask_rows < s ? (pk_i32)mask_rows : (pk_i32)s;
        this->s = (pk_i32)s;
        this->t = (pk_i32)t;
        this->d = (pk_i32)d;
        this->e = (pk_i32)e;
        this->scale = (float)scale;
    }
    // The score of a product; -inf for keys that are not there.
    PK_IN float score(pk_i32 row, pk_i32 key, float dot) const {
        if (key >= t) return -PK_INF;
        float x = dot * scale;
#ifndef PK_NO_MASK
        if (mask && row < s) {
            float m = pk_get(mask[row % mask_rows * mask_row + (key + PK_SHIFT < t ? key + PK_SHIFT : 0) * mask_col]);
            x = !selects ? x + m : m == 0.f ? x : m;
        }
#endif
        return x;
    }
    // Whether a row with the sum l of its weights is 0: nothing to weigh, or a softmax of NaN where that is to be 0. Scores of -inf
    // alone have a sum of 0, NaN anywhere a sum of NaN.
    PK_IN bool is_zero(float l) const {
#ifdef PK_NO_ZERO
        return false;
#endif
        return t == 0 || (nan_to_zero && !(l > 0.f));
    }
};
#define PK_ATTENTION(T, ROWS)                                                                                          \
    pk_attention<T> g(q, k, v, mask, y, batch, heads, s, t, d, e, q_batch, q_head, q_row, k_batch, k_head, k_row,      \
                      k_col, v_batch, v_head, v_row, mask_batch, mask_head, mask_row, mask_col, mask_selects, mask_rows, nan_to_zero, scale, ROWS)

// e^(x - m), 0 for -inf even where m is -inf.
PK_FN float pk_weight(float x, float m) { return x == -PK_INF ? 0.f : pk_exp(x - m); }
// What sums so far are worth when the maximum goes from `old` to `now`.
PK_FN float pk_rescale(float old, float now) {
#ifdef PK_NO_RESCALE
    return 1.f;
#else
    return old == now ? 1.f : pk_exp(old - now);
#endif
}
// The larger, leaving NaN out: NaN reaches the result through the sum.
PK_FN float pk_larger(float a, float b) { return b > a ? b : a; }

template <class T> PK_FN void pk_move(float *to, T x) { *to = pk_get(x); }
PK_FN void pk_move(pk_half *to, pk_half x) { *to = x; }

// `n_rows` rows from `first` on of a strided matrix to shared memory [n_rows][ld], `n_cols` columns (a multiple of 4); what lies outside
// [rows, cols] is 0.
template <class S, class T>
PK_FN void pk_bring(S *lds, pk_i32 ld, pk_i32 n_rows, pk_i32 n_cols, const T *p, pk_i64 row_stride, pk_i64 col_stride,
                    pk_i32 first, pk_i32 rows, pk_i32 cols, pk_i32 block) {
    bool wide = col_stride == 1 && pk_aligned(p, row_stride, sizeof(T), 4);
    pk_i32 units = n_cols / 4;
    for (pk_i32 u = (pk_i32)pk_tid(); u < n_rows * units; u += block) {
        pk_i32 r = u / units, c = u % units * 4;
        T x[4];
        const T *from = p + (pk_i64)(first + r) * row_stride + (pk_i64)c * col_stride;
        pk_load4(x, from, col_stride, first + r < rows ? cols - c : 0, wide);
        PK_UNROLL
        for (int i = 0; i < 4; i++) pk_move(lds + r * ld + c + i, x[i]);
    }
}
template <class T, int DM> PK_FN void pk_attention_fma(const pk_attention<T> &g, float *lds) {
    enum { BR = 32, BT = 32, LD = DM + 4, LS = BT + 4, NE = DM / 8 };
    if (!g.there) return;
    float *lq = lds, *lkv = lds + BR * LD, *ls = lkv + BT * LD;
    pk_i32 r = (pk_i32)pk_tid() / 8, sub = (pk_i32)pk_tid() % 8, row = g.row0 + r, d4 = (g.d + 3) / 4 * 4;
    float m = -PK_INF, l = 0.f, acc[NE];
    PK_UNROLL
    for (int j = 0; j < NE; j++) acc[j] = 0.f;
    pk_bring(lq, LD, BR, d4, g.q, g.q_row, 1, g.row0, g.s, g.d, PK_BLOCK);
    PK_ROLLED
    for (pk_i32 t0 = 0; t0 < g.t; t0 += BT) {
        pk_bring(lkv, LD, BT, d4, g.k, g.k_row, g.k_col, t0, g.t, g.d, PK_BLOCK);
        PK_TILE_SYNC();
        float x[4] = {0.f, 0.f, 0.f, 0.f};
        for (pk_i32 i = 0; i < d4; i++) {
            float a = lq[r * LD + i];
            PK_UNROLL
            for (int j = 0; j < 4; j++) x[j] = pk_fma(a, lkv[(sub + 8 * j) * LD + i], x[j]);
        }
        float top = -PK_INF;
        PK_UNROLL
        for (int j = 0; j < 4; j++) {
            x[j] = g.score(row, t0 + sub + 8 * j, x[j]);
            top = pk_larger(top, x[j]);
        }
        PK_UNROLL
        for (pk_u32 o = 4; o; o >>= 1) top = pk_larger(top, pk_shfl_xor(top, o));
        float now = pk_larger(m, top), worth = pk_rescale(m, now), sum = 0.f;
        m = now;
        PK_UNROLL
        for (int j = 0; j < 4; j++) {
            x[j] = pk_weight(x[j], m);
            sum += x[j];
            ls[r * LS + sub + 8 * j] = x[j];
        }
        PK_UNROLL
        for (pk_u32 o = 4; o; o >>= 1) sum += pk_shfl_xor(sum, o);
        l = pk_fma(l, worth, sum);
        PK_TILE_SYNC();
        // All DM columns, so that the loop below needs no tests.
        pk_bring(lkv, LD, BT, DM, g.v, g.v_row, 1, t0, g.t, g.e, PK_BLOCK);
        PK_TILE_SYNC();
        PK_UNROLL
        for (int j = 0; j < NE; j++) acc[j] *= worth;
        PK_ROLLED
        for (pk_i32 i = 0; i < BT; i++) {
            float p = ls[r * LS + i];
            PK_UNROLL
            for (int j = 0; j < NE; j++) acc[j] = pk_fma(p, lkv[i * LD + sub + 8 * j], acc[j]);
        }
        PK_TILE_SYNC();
    }
    if (row >= g.s) return;
    bool zero = g.is_zero(l);
    float inv = 1.f / l;
    PK_UNROLL
    for (int j = 0; j < NE; j++) {
        if (sub + 8 * j < g.e) pk_set(g.y + (pk_i64)row * g.e + sub + 8 * j, zero ? 0.f : acc[j] * inv);
    }
}
#define PK_ATTENTION_FMA(NAME, T, DM)                                                                                  \
    PK_KERNEL(256) NAME(PK_ATTENTION_ARGS(T)) {                                                                        \
        PK_SHARED float lds[2 * 32 * (DM + 4) + 32 * 36];                                                              \
        PK_ATTENTION(T, 32);                                                                                           \
        pk_attention_fma<T, DM>(g, lds);                                                                               \
    }
PK_ATTENTION_FMA(hip_ep_attention_f32_64, float, 64)
PK_ATTENTION_FMA(hip_ep_attention_f32_128, float, 128)

#if defined(PK_MMA)
template <int DM> PK_FN void pk_attention_mma(const pk_attention<pk_half> &g, pk_u8 *lds) {
    enum {
        BT = 32,
        BLOCK = 4 * PK_WAVE,
        LD = DM + 8,
        LV = BT + 8,
        LS = BT + 4,
        Q = 0,
        K = Q + 64 * LD * 2,
        // Weights take the keys' place.
        V = K + (BT * LD > 64 * LV ? BT * LD : 64 * LV) * 2,
        S = V + DM * LV * 2,
        W = S + 64 * LS * 4,
        PER_ROW = PK_WAVE / 16,
        NX = BT / PER_ROW
    };
    if (!g.there) return;
    pk_half *lq = (pk_half *)(lds + Q), *lk = (pk_half *)(lds + K), *lv = (pk_half *)(lds + V), *lp = lk;
    float *ls = (float *)(lds + S), *lw = (float *)(lds + W);
    pk_i32 wave = (pk_i32)pk_tid() / PK_WAVE, lane = (pk_i32)pk_lane(), r = wave * 16 + lane / PER_ROW,
           sub = lane % PER_ROW, row = g.row0 + r, d16 = (g.d + 15) / 16 * 16, e16 = (g.e + 15) / 16 * 16;
    float m = -PK_INF, l = 0.f;
    pk_acc acc[DM / 16];
    PK_UNROLL
    for (int j = 0; j < DM / 16; j++) acc[j] = pk_acc_zero();
    pk_bring(lq, LD, 64, d16, g.q, g.q_row, 1, g.row0, g.s, g.d, BLOCK);
    PK_ROLLED
    for (pk_i32 t0 = 0; t0 < g.t; t0 += BT) {
        pk_bring(lk, LD, BT, d16, g.k, g.k_row, g.k_col, t0, g.t, g.d, BLOCK);
        // v transposed, so that keys lie side by side.
        for (pk_i32 u = (pk_i32)pk_tid(); u < BT / 2 * e16; u += BLOCK) {
            pk_i32 c = u % e16, i = u / e16 * 2;
            const pk_half *from = g.v + (pk_i64)(t0 + i) * g.v_row + c;
            pk_u32 x0 = c < g.e && t0 + i < g.t ? from[0].v : 0, x1 = c < g.e && t0 + i + 1 < g.t ? from[g.v_row].v : 0;
            *(pk_u32 *)(lv + c * LV + i) = x0 | x1 << 16;
        }
        PK_TILE_SYNC();
        pk_acc x[2] = {pk_acc_zero(), pk_acc_zero()};
        for (pk_i32 i = 0; i < d16; i += 16) {
            pk_frag a = pk_frag_a(lq + wave * 16 * LD + i, LD);
            PK_UNROLL
            for (int j = 0; j < 2; j++) x[j] = pk_mma(a, pk_frag_b(lk + j * 16 * LD + i, LD), x[j]);
        }
        PK_UNROLL
        for (int j = 0; j < 2; j++) {
            PK_UNROLL
            for (pk_u32 i = 0; i < PK_ACC; i++) {
                ls[(wave * 16 + (pk_i32)pk_acc_row(i)) * LS + j * 16 + (pk_i32)pk_acc_col(i)] = x[j][i];
            }
        }
        PK_TILE_SYNC();
        float w[NX], top = -PK_INF;
        PK_UNROLL
        for (int j = 0; j < NX; j++) {
            w[j] = g.score(row, t0 + sub + PER_ROW * j, ls[r * LS + sub + PER_ROW * j]);
            top = pk_larger(top, w[j]);
        }
        PK_UNROLL
        for (pk_u32 o = PER_ROW / 2; o; o >>= 1) top = pk_larger(top, pk_shfl_xor(top, o));
        float now = pk_larger(m, top), worth = pk_rescale(m, now), sum = 0.f;
        m = now;
        PK_UNROLL
        for (int j = 0; j < NX; j++) {
            w[j] = pk_weight(w[j], m);
            sum += w[j];
            pk_set(lp + r * LV + sub + PER_ROW * j, w[j]);
        }
        PK_UNROLL
        for (pk_u32 o = PER_ROW / 2; o; o >>= 1) sum += pk_shfl_xor(sum, o);
        l = pk_fma(l, worth, sum);
        if (sub == 0) lw[r] = worth;
        PK_TILE_SYNC();
        float by[PK_ACC];
        PK_UNROLL
        for (pk_u32 i = 0; i < PK_ACC; i++) by[i] = lw[wave * 16 + (pk_i32)pk_acc_row(i)];
        PK_UNROLL
        for (int j = 0; j < DM / 16; j++) {
            PK_UNROLL
            for (pk_u32 i = 0; i < PK_ACC; i++) acc[j][i] *= by[i];
            if (j * 16 < e16) {
                PK_UNROLL
                for (int i = 0; i < BT; i += 16) {
                    acc[j] = pk_mma(pk_frag_a(lp + wave * 16 * LV + i, LV), pk_frag_b(lv + j * 16 * LV + i, LV), acc[j]);
                }
            }
        }
        PK_TILE_SYNC();
    }
    // A negative factor stands for a row of 0.
    if (sub == 0) lw[r] = g.is_zero(l) ? -1.f : 1.f / l;
    PK_TILE_SYNC();
    PK_UNROLL
    for (pk_u32 i = 0; i < PK_ACC; i++) {
        pk_i32 at = wave * 16 + (pk_i32)pk_acc_row(i);
        float inv = lw[at];
        PK_UNROLL
        for (int j = 0; j < DM / 16; j++) {
            pk_i32 c = j * 16 + (pk_i32)pk_acc_col(i);
            if (g.row0 + at < g.s && c < g.e) pk_set(g.y + (pk_i64)(g.row0 + at) * g.e + c, inv < 0.f ? 0.f : acc[j][i] * inv);
        }
    }
}
#define PK_ATTENTION_MMA(NAME, DM)                                                                                     \
    PK_KERNEL(4 * PK_WAVE) NAME(PK_ATTENTION_ARGS(pk_half)) {                                                          \
        PK_SHARED pk_u8 lds[64 * (DM + 8) * 2 + (DM > 72 ? 32 * (DM + 8) : 64 * 40) * 2 + DM * 40 * 2 + 64 * 36 * 4 +  \
                            64 * 4];                                                                                   \
        PK_ATTENTION(pk_half, 64);                                                                                     \
        pk_attention_mma<DM>(g, lds);                                                                                  \
    }
PK_ATTENTION_MMA(hip_ep_attention_f16_64, 64)
PK_ATTENTION_MMA(hip_ep_attention_f16_128, 128)
#else
PK_ATTENTION_FMA(hip_ep_attention_f16_64, pk_half, 64)
PK_ATTENTION_FMA(hip_ep_attention_f16_128, pk_half, 128)
#endif

template <class T> PK_FN float pk_dot(const pk_attention<T> &g, pk_i32 key) {
    float x = 0.f;
    for (pk_i32 i = 0; i < g.d; i++) {
        x = pk_fma(pk_get(g.q[g.row0 * g.q_row + i]), pk_get(g.k[key * g.k_row + i * g.k_col]), x);
    }
    return x;
}
template <class T> PK_FN void pk_attention_any(const pk_attention<T> &g, float (*lds)[256]) {
    if (!g.there) return;
    pk_i32 tid = (pk_i32)pk_tid();
    float m = -PK_INF, l = 0.f;
    for (pk_i32 key = tid; key < g.t; key += 256) {
        float x = g.score(g.row0, key, pk_dot(g, key)), now = pk_larger(m, x);
        l = pk_fma(l, pk_rescale(m, now), pk_weight(x, now));
        m = now;
    }
    lds[0][tid] = m;
    lds[1][tid] = l;
    for (pk_i32 o = 128; o; o >>= 1) {
        PK_TILE_SYNC();
        if (tid < o) {
            float a = lds[0][tid], b = lds[0][tid + o], now = pk_larger(a, b);
            lds[1][tid] = pk_fma(lds[1][tid], pk_rescale(a, now), lds[1][tid + o] * pk_rescale(b, now));
            lds[0][tid] = now;
        }
    }
    PK_TILE_SYNC();
    m = lds[0][0];
    l = lds[1][0];
    PK_TILE_SYNC();
    for (pk_i32 e0 = 0; e0 < g.e; e0 += 256) {
        float acc = 0.f;
        for (pk_i32 t0 = 0; t0 < g.t; t0 += 256) {
            pk_i32 key = t0 + tid, n = g.t - t0 < 256 ? g.t - t0 : 256;
            if (key < g.t) lds[0][tid] = pk_weight(g.score(g.row0, key, pk_dot(g, key)), m);
            PK_TILE_SYNC();
            if (e0 + tid < g.e) {
                for (pk_i32 i = 0; i < n; i++) acc = pk_fma(lds[0][i], pk_get(g.v[(t0 + i) * g.v_row + e0 + tid]), acc);
            }
            PK_TILE_SYNC();
        }
        if (e0 + tid < g.e) pk_set(g.y + (pk_i64)g.row0 * g.e + e0 + tid, g.is_zero(l) ? 0.f : acc / l);
    }
}
#define PK_ATTENTION_ANY(NAME, T)                                                                                      \
    PK_KERNEL(256) NAME(PK_ATTENTION_ARGS(T)) {                                                                        \
        PK_SHARED float lds[2][256];                                                                                   \
        PK_ATTENTION(T, 1);                                                                                            \
        pk_attention_any<T>(g, lds);                                                                                   \
    }
PK_ATTENTION_ANY(hip_ep_attention_f32_any, float)
PK_ATTENTION_ANY(hip_ep_attention_f16_any, pk_half)
