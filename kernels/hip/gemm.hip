// c[b, m, n] = act(alpha * sum_k a[b, m, k] * b[b, k, n] + bias[m, n] + residual[b, m, n]), sums in f32.
//
// Tiles of 128 x 128 for large products, 64 x 64 for the rest, 256 threads. f32 by FMA (64 or 16 sums a thread); f16 by matrix units
// where the architecture has them (64 x 64 or 64 x 32 a wave), else by FMA. Two stages in shared memory: 33.8 KB (f32, 128), 40 KB
// (f16, 128). Grid: x tiles, y and z batch (y is at most 32768). Few rows (m <= 4) go to `skinny` kernels, which read b once.

#define PK_GEMM_ARGS(T)                                                                                                \
    const T *a, const T *b, const T *bias, const T *residual, T *c, pk_i64 batch, pk_i64 m, pk_i64 n, pk_i64 k,        \
        pk_i64 a_batch, pk_i64 a_row, pk_i64 a_col, pk_i64 b_batch, pk_i64 b_row, pk_i64 b_col, pk_i64 bias_row,       \
        pk_i64 bias_col, pk_i64 res_batch, pk_i64 res_row, pk_i64 activation, double alpha, double lo, double hi

template <class T> struct pk_gemm {
    const T *a, *b;
    pk_gemm_out<T> out;
    pk_i32 m, n, k;
    pk_i64 a_row, a_col, b_row, b_col;
    bool there;
    PK_IN pk_gemm(PK_GEMM_ARGS(T)) {
        pk_i64 i = (pk_i64)pk_bid_y() + (pk_i64)pk_bid_z() * 32768;
        there = i < batch;
        this->a = a + i * a_batch;
        this->b = b + i * b_batch;
        this->m = (pk_i32)m;
        this->n = (pk_i32)n;
        this->k = (pk_i32)k;
        this->a_row = a_row;
        this->a_col = a_col;
        this->b_row = b_row;
        this->b_col = b_col;
        out.c = c + i * m * n;
        out.bias = bias;
        out.residual = residual ? residual + i * res_batch : residual;
        out.bias_row = bias_row;
        out.bias_col = bias_col;
        out.residual_row = res_row;
        out.rows = (pk_i32)m;
        out.cols = (pk_i32)n;
        out.activation = (pk_i32)activation;
        out.alpha = (float)alpha;
        out.lo = (float)lo;
        out.hi = (float)hi;
    }
    PK_IN pk_matrix<T> left() const { return pk_matrix<T>(a, a_row, a_col, m, k); }
    // b transposed: rows are columns of c.
    PK_IN pk_matrix<T> right() const { return pk_matrix<T>(b, b_col, b_row, n, k); }
};
#define PK_GEMM(T)                                                                                                     \
    pk_gemm<T> g(a, b, bias, residual, c, batch, m, n, k, a_batch, a_row, a_col, b_batch, b_row, b_col, bias_row,      \
                 bias_col, res_batch, res_row, activation, alpha, lo, hi)

template <class T, int B> PK_FN void pk_gemm_fma(const pk_gemm<T> &g, float *lds) {
    if (!g.there) return;
    pk_i32 across = (g.n + B - 1) / B, row = (pk_i32)pk_bid() / across * B, col = (pk_i32)pk_bid() % across * B;
    pk_matrix_f32<T, B, 16> left(g.left(), row), right(g.right(), col);
    pk_tile_fma<B, B>(left, right, g.out, row, col, g.k, lds);
}
#define PK_GEMM_FMA(NAME, T, B)                                                                                        \
    PK_KERNEL(256) NAME(PK_GEMM_ARGS(T)) {                                                                             \
        PK_SHARED float lds[2 * 16 * 2 * (B + 4)];                                                                     \
        PK_GEMM(T);                                                                                                    \
        pk_gemm_fma<T, B>(g, lds);                                                                                     \
    }
PK_GEMM_FMA(hip_ep_gemm_f32_128, float, 128)
PK_GEMM_FMA(hip_ep_gemm_f32_64, float, 64)
#if defined(PK_MMA)
template <int B> PK_FN void pk_gemm_mma(const pk_gemm<pk_half> &g, pk_u8 *lds) {
    if (!g.there) return;
    pk_i32 across = (g.n + B - 1) / B, row = (pk_i32)pk_bid() / across * B, col = (pk_i32)pk_bid() % across * B;
    pk_matrix_f16<B, 32> left(g.left(), row), right(g.right(), col);
    pk_tile_mma<B, B, 2>(left, right, g.out, row, col, g.k, lds);
}
#define PK_GEMM_MMA(NAME, B)                                                                                           \
    PK_KERNEL(256) NAME(PK_GEMM_ARGS(pk_half)) {                                                                       \
        PK_SHARED pk_u8 lds[2 * 2 * B * 40 * 2];                                                                       \
        PK_GEMM(pk_half);                                                                                              \
        pk_gemm_mma<B>(g, lds);                                                                                        \
    }
PK_GEMM_MMA(hip_ep_gemm_f16_128, 128)
PK_GEMM_MMA(hip_ep_gemm_f16_64, 64)
#else
PK_GEMM_FMA(hip_ep_gemm_f16_128, pk_half, 128)
PK_GEMM_FMA(hip_ep_gemm_f16_64, pk_half, 64)
#endif

// Up to 4 rows, columns of b side by side: 64 columns a block, k cut in 4 parts whose sums meet in shared memory. Bound by the bytes
// of b. Grid x: blocks of columns.
template <class T> PK_FN void pk_gemm_skinny(const pk_gemm<T> &g, float (*lds)[4][64]) {
    if (!g.there) return;
    pk_i32 part = (pk_i32)pk_tid() / 64, lane = (pk_i32)pk_tid() % 64, col = (pk_i32)pk_bid() * 64 + lane;
    float acc[4] = {0.f, 0.f, 0.f, 0.f};
    if (col < g.n) {
        for (pk_i32 k = part; k < g.k; k += 4) {
            float y = pk_get(g.b[k * g.b_row + col * g.b_col]);
            PK_UNROLL
            for (int i = 0; i < 4; i++) {
                if (i < g.m) acc[i] = pk_fma(pk_get(g.a[i * g.a_row + k * g.a_col]), y, acc[i]);
            }
        }
    }
    PK_UNROLL
    for (int i = 0; i < 4; i++) lds[part][i][lane] = acc[i];
    PK_TILE_SYNC();
    // Thread (part, lane) finishes row `part`.
    float v = 0.f;
    PK_UNROLL
    for (int p = 0; p < 4; p++) v += lds[p][part][lane];
    if (part < g.m && col < g.n) g.out.store(part, col, v);
}
// Up to 4 rows, k side by side in b: a wave a column. Grid x: groups of 256 / wave columns.
template <class T> PK_FN void pk_gemm_dots(const pk_gemm<T> &g) {
    if (!g.there) return;
    pk_i32 col = (pk_i32)pk_bid() * (256 / PK_WAVE) + (pk_i32)pk_tid() / PK_WAVE, lane = (pk_i32)pk_lane();
    float acc[4] = {0.f, 0.f, 0.f, 0.f};
    if (col < g.n) {
        for (pk_i32 k = lane; k < g.k; k += PK_WAVE) {
            float y = pk_get(g.b[k * g.b_row + col * g.b_col]);
            PK_UNROLL
            for (int i = 0; i < 4; i++) {
                if (i < g.m) acc[i] = pk_fma(pk_get(g.a[i * g.a_row + k * g.a_col]), y, acc[i]);
            }
        }
    }
    PK_UNROLL
    for (int i = 0; i < 4; i++) {
        PK_UNROLL
        for (pk_u32 o = PK_WAVE / 2; o; o >>= 1) acc[i] += pk_shfl_xor(acc[i], o);
    }
    float v = lane == 0 ? acc[0] : lane == 1 ? acc[1] : lane == 2 ? acc[2] : acc[3];
    if (lane < g.m && col < g.n) g.out.store(lane, col, v);
}
#define PK_GEMM_SKINNY(SKINNY, DOTS, T)                                                                                \
    PK_KERNEL(256) SKINNY(PK_GEMM_ARGS(T)) {                                                                           \
        PK_SHARED float lds[4][4][64];                                                                                 \
        PK_GEMM(T);                                                                                                    \
        pk_gemm_skinny<T>(g, lds);                                                                                     \
    }                                                                                                                  \
    PK_KERNEL(256) DOTS(PK_GEMM_ARGS(T)) {                                                                             \
        PK_GEMM(T);                                                                                                    \
        pk_gemm_dots<T>(g);                                                                                            \
    }
PK_GEMM_SKINNY(hip_ep_gemm_f32_skinny, hip_ep_gemm_f32_dots, float)
PK_GEMM_SKINNY(hip_ep_gemm_f16_skinny, hip_ep_gemm_f16_dots, pk_half)
