// The core that matrix products and convolutions share: a block computes a tile of rows x columns, operands pass through shared memory
// in steps of k, results pass through it once more so that stores are in order and the epilogue's code stands once.
//
// A loader brings one operand: `fetch` reads the next step of k into registers, `put` writes them to shared memory. Elements outside are
// 0. PK_NO_* and PK_SHIFT_* break single things on purpose, for tests that must notice.

#ifndef PK_SHIFT
#define PK_SHIFT 0
#endif
#if defined(PK_NO_TILE_SYNC)
#define PK_TILE_SYNC()
#else
#define PK_TILE_SYNC() pk_sync()
#endif

enum { PK_BLOCK = 256 };

// Four elements in a row, `n` of them there; `wide` when the address is aligned to four of them.
PK_FN void pk_load4(float *out, const float *p, pk_i64 stride, pk_i32 n, bool wide) {
    if (wide && n >= 4) {
        pk_u4 v = *(const pk_u4 *)p;
        PK_UNROLL
        for (int i = 0; i < 4; i++) out[i] = pk_float(v.v[i]);
    } else {
        PK_UNROLL
        for (int i = 0; i < 4; i++) out[i] = i < n ? p[i * stride] : 0.f;
    }
}
PK_FN void pk_load4(pk_half *out, const pk_half *p, pk_i64 stride, pk_i32 n, bool wide) {
    if (wide && n >= 4) {
        pk_u2 v = *(const pk_u2 *)p;
        PK_UNROLL
        for (int i = 0; i < 4; i++) out[i].v = (pk_u16)(v.v[i >> 1] >> (16 * (i & 1)));
    } else {
        PK_UNROLL
        for (int i = 0; i < 4; i++) {
            out[i].v = 0;
            if (i < n) out[i] = p[i * stride];
        }
    }
}
PK_FN bool pk_aligned(const void *p, pk_i64 stride, pk_u32 elem, pk_u32 n) {
    return (pk_u64)p % (elem * n) == 0 && stride % n == 0;
}

// A matrix [rows, k] with any strides.
template <class T> struct pk_matrix {
    const T *p;
    pk_i64 row_stride, k_stride;
    pk_i32 rows, k;
    // Whether neighbours along k lie side by side; else neighbours along rows are taken together.
    bool along_k, wide;
    PK_IN pk_matrix(const T *base, pk_i64 rs, pk_i64 ks, pk_i32 n_rows, pk_i32 n_k)
        : p(base), row_stride(rs), k_stride(ks), rows(n_rows), k(n_k), along_k(ks == 1),
          wide(ks == 1 ? pk_aligned(base, rs, sizeof(T), 4) : rs == 1 && pk_aligned(base, ks, sizeof(T), 4)) {}
};

// ROWS x BK of a matrix, from row `first` on, for the f32 units: shared memory holds float [BK][ROWS + 4].
template <class T, int ROWS, int BK> struct pk_matrix_f32 {
    enum { N = ROWS * BK / 4 / PK_BLOCK, LD = ROWS + 4 };
    pk_matrix<T> m;
    pk_i32 first, at;
    T reg[N][4];
    PK_IN pk_matrix_f32(pk_matrix<T> mm, pk_i32 f) : m(mm), first(f), at(0) {}
    PK_IN void place(int i, pk_i32 &row, pk_i32 &kk) const {
        pk_i32 u = (pk_i32)pk_tid() + i * PK_BLOCK;
        if (m.along_k) {
            row = u / (BK / 4);
            kk = u % (BK / 4) * 4;
        } else {
            row = u % (ROWS / 4) * 4;
            kk = u / (ROWS / 4);
        }
    }
    PK_IN void fetch() {
        PK_UNROLL
        for (int i = 0; i < N; i++) {
            pk_i32 row, kk;
            place(i, row, kk);
            row += first;
            kk += at;
            const T *q = m.p + (pk_i64)row * m.row_stride + (pk_i64)kk * m.k_stride;
            pk_i32 n = m.along_k ? (row < m.rows ? m.k - kk : 0) : (kk < m.k ? m.rows - row : 0);
            pk_load4(reg[i], q, m.along_k ? 1 : m.row_stride, n, m.wide);
        }
        at += BK;
    }
    PK_IN void put(float *lds) const {
        PK_UNROLL
        for (int i = 0; i < N; i++) {
            pk_i32 row, kk;
            place(i, row, kk);
            if (m.along_k) {
                PK_UNROLL
                for (int j = 0; j < 4; j++) lds[(kk + j) * LD + row] = pk_get(reg[i][j]);
            } else {
                pk_u4 v;
                PK_UNROLL
                for (int j = 0; j < 4; j++) v.v[j] = pk_bits(pk_get(reg[i][j]));
                *(pk_u4 *)(lds + kk * LD + row) = v;
            }
        }
    }
};

// The same for the matrix units: shared memory holds f16 [ROWS][BK + 8].
template <int ROWS, int BK> struct pk_matrix_f16 {
    // Sixteen elements of a 4 x 4 block, or of four runs of 4 along k.
    enum { BLOCKS = ROWS * BK / 16, N = (BLOCKS + PK_BLOCK - 1) / PK_BLOCK, LD = BK + 8 };
    pk_matrix<pk_half> m;
    pk_i32 first, at;
    pk_half reg[N][4][4];
    PK_IN pk_matrix_f16(pk_matrix<pk_half> mm, pk_i32 f) : m(mm), first(f), at(0) {}
    // Along k: run r of thread u is run u + r * BLOCKS of all, so that neighbours read side by side. Along rows: k is the quicker index,
    // which spreads the stores to shared memory over its banks.
    PK_IN bool place(int i, int r, pk_i32 &row, pk_i32 &kk) const {
        pk_i32 u = (pk_i32)pk_tid() + i * PK_BLOCK;
        if (m.along_k) {
            pk_i32 run = u + r * BLOCKS;
            row = run / (BK / 4);
            kk = run % (BK / 4) * 4;
        } else {
            kk = u % (BK / 4) * 4 + r;
            row = u / (BK / 4) * 4;
        }
        return u < BLOCKS;
    }
    PK_IN void fetch() {
        PK_UNROLL
        for (int i = 0; i < N; i++) {
            PK_UNROLL
            for (int r = 0; r < 4; r++) {
                pk_i32 row, kk;
                bool in = place(i, r, row, kk);
                row += first;
                kk += at;
                const pk_half *q = m.p + (pk_i64)row * m.row_stride + (pk_i64)kk * m.k_stride;
                pk_i32 n = m.along_k ? (row < m.rows ? m.k - kk : 0) : (kk < m.k ? m.rows - row : 0);
                pk_load4(reg[i][r], q, m.along_k ? 1 : m.row_stride, in ? n : 0, m.wide);
            }
        }
        at += BK;
    }
    PK_IN void put(pk_half *lds) const {
        PK_UNROLL
        for (int i = 0; i < N; i++) {
            PK_UNROLL
            for (int r = 0; r < 4; r++) {
                pk_i32 row, kk;
                if (!place(i, m.along_k ? r : 0, row, kk)) continue;
                pk_half h[4];
                PK_UNROLL
                for (int j = 0; j < 4; j++) h[j] = m.along_k ? reg[i][r][j] : reg[i][j][r];
                pk_u2 v = {{(pk_u32)h[0].v | (pk_u32)h[1].v << 16, (pk_u32)h[2].v | (pk_u32)h[3].v << 16}};
                *(pk_u2 *)(lds + (m.along_k ? row : row + r) * LD + kk) = v;
            }
        }
    }
};

// Where results go: element (row, column) of the tile's matrix. `at` gives the place in c and residual, `bias_at` that in bias.
template <class T> struct pk_gemm_out {
    T *c;
    const T *bias, *residual;
    pk_i64 bias_row, bias_col, residual_row;
    pk_i32 rows, cols, activation;
    float alpha, lo, hi;
    PK_IN void store(pk_i32 row, pk_i32 col, float v) const {
        v *= alpha;
#ifndef PK_NO_BIAS
        if (bias) v += pk_get(bias[row * bias_row + col * bias_col]);
#endif
#ifndef PK_NO_RESIDUAL
        if (residual) v += pk_get(residual[row * residual_row + col]);
#endif
#ifdef PK_NO_ACTIVATION
        pk_set(c + ((pk_i64)row * cols + col), v);
#else
        pk_set(c + ((pk_i64)row * cols + col), pk_activate(activation, v, lo, hi));
#endif
    }
};

// Stores a slice of sums: shared memory holds float [n_rows][BN + 4]; its row r is row `row_of(r)` of the matrix.
template <int BN, class Out, class RowOf>
PK_FN void pk_store_slice(const Out &out, const float *lds, int n_rows, pk_i32 col0, RowOf row_of) {
    PK_ROLLED
    for (pk_i32 e = (pk_i32)pk_tid(); e < n_rows * BN; e += PK_BLOCK) {
        pk_i32 r = e / BN, col = col0 + e % BN, row = row_of(r);
        if (row < out.rows && col < out.cols) out.store(row, col, lds[r * (BN + 4) + e % BN]);
    }
}

// Rows a thread's sums belong to, for `pk_store_slice`.
struct pk_rows {
    pk_i32 first, group, group_stride;
    // Slice row r: group r / group, and within it r % group.
    __device__ pk_i32 operator()(pk_i32 r) const { return first + r / group * group_stride + r % group; }
};

// A tile of BM x BN by FMA: 16 x 16 threads, each (BM/16) x (BN/16) sums as blocks of 4. Bound by 2 BM BN flops a step of k.
template <int BM, int BN, class LA, class LB, class Out>
PK_FN void pk_tile_fma(LA a, LB b, const Out &out, pk_i32 row0, pk_i32 col0, pk_i32 k, float *lds) {
    enum { BK = 16, TM = BM / 16, TN = BN / 16, LDA = BM + 4, LDB = BN + 4, STEP = BK * (LDA + LDB) };
    float acc[TM][TN];
    PK_UNROLL
    for (int i = 0; i < TM; i++) {
        PK_UNROLL
        for (int j = 0; j < TN; j++) acc[i][j] = 0.f;
    }
    pk_i32 tx = (pk_i32)pk_tid() & 15, ty = (pk_i32)pk_tid() >> 4;
    pk_i32 steps = (k + BK - 1) / BK;
    if (steps > 0) {
        a.fetch();
        b.fetch();
        a.put(lds);
        b.put(lds + BK * LDA);
    }
    PK_TILE_SYNC();
    PK_ROLLED
    for (pk_i32 s = 0; s < steps; s++) {
        const float *la = lds + (s & 1) * STEP, *lb = la + BK * LDA;
        bool more = s + 1 < steps;
        if (more) {
            a.fetch();
            b.fetch();
        }
        // No further: more loads in flight would cost the registers that hold the sums.
        PK_UNROLL_4
        for (int kk = 0; kk < BK; kk++) {
            float x[TM], y[TN];
            PK_UNROLL
            for (int i = 0; i < TM; i += 4) {
                pk_u4 v = *(const pk_u4 *)(la + kk * LDA + i * 16 + ty * 4);
                PK_UNROLL
                for (int e = 0; e < 4; e++) x[i + e] = pk_float(v.v[e]);
            }
            PK_UNROLL
            for (int j = 0; j < TN; j += 4) {
                pk_u4 v = *(const pk_u4 *)(lb + kk * LDB + j * 16 + tx * 4);
                PK_UNROLL
                for (int e = 0; e < 4; e++) y[j + e] = pk_float(v.v[e]);
            }
            PK_UNROLL
            for (int i = 0; i < TM; i++) {
                PK_UNROLL
                for (int j = 0; j < TN; j++) acc[i][j] = pk_fma(x[i], y[j], acc[i][j]);
            }
        }
        if (more) {
            a.put(lds + ((s + 1) & 1) * STEP);
            b.put(lds + ((s + 1) & 1) * STEP + BK * LDA);
        }
        PK_TILE_SYNC();
    }
    // One row of each thread at a time: 16 rows of the tile. The loop stays one; which row it is, only the writes ask.
    PK_ROLLED
    for (int now = 0; now < TM; now++) {
        PK_UNROLL
        for (int i = 0; i < TM; i++) {
            if (i != now) continue;
            PK_UNROLL
            for (int j = 0; j < TN; j += 4) {
                pk_u4 v;
                PK_UNROLL
                for (int e = 0; e < 4; e++) v.v[e] = pk_bits(acc[i][j + e]);
                *(pk_u4 *)(lds + ty * LDB + j * 16 + tx * 4) = v;
            }
        }
        PK_TILE_SYNC();
        pk_rows rows = {row0 + (now / 4) * 64 + now % 4, 1, 4};
        pk_store_slice<BN>(out, lds, 16, col0, rows);
        PK_TILE_SYNC();
    }
}

#if defined(PK_MMA)
// A tile of BM x BN by the matrix units: WR x (waves / WR) waves, each TM x TN squares of 16.
template <int BM, int BN, int WR, class LA, class LB, class Out>
PK_FN void pk_tile_mma(LA a, LB b, const Out &out, pk_i32 row0, pk_i32 col0, pk_i32 k, pk_u8 *lds_bytes) {
    enum {
        BK = 32,
        LD = BK + 8,
        WC = PK_BLOCK / PK_WAVE / WR,
        TM = BM / WR / 16,
        TN = BN / WC / 16,
        STEP = (BM + BN) * LD
    };
    pk_half *lds = (pk_half *)lds_bytes;
    pk_acc acc[TM][TN];
    PK_UNROLL
    for (int i = 0; i < TM; i++) {
        PK_UNROLL
        for (int j = 0; j < TN; j++) acc[i][j] = pk_acc_zero();
    }
    pk_i32 wave = (pk_i32)pk_tid() / PK_WAVE, wr = wave / WC, wc = wave % WC;
    pk_i32 steps = (k + BK - 1) / BK;
    if (steps > 0) {
        a.fetch();
        b.fetch();
        a.put(lds);
        b.put(lds + BM * LD);
    }
    PK_TILE_SYNC();
    PK_ROLLED
    for (pk_i32 s = 0; s < steps; s++) {
        const pk_half *la = lds + (s & 1) * STEP + wr * TM * 16 * LD;
        const pk_half *lb = lds + (s & 1) * STEP + (BM + wc * TN * 16) * LD;
        bool more = s + 1 < steps;
        if (more) {
            a.fetch();
            b.fetch();
        }
        PK_UNROLL
        for (int kk = 0; kk < BK; kk += 16) {
            pk_frag fa[TM], fb[TN];
            PK_UNROLL
            for (int i = 0; i < TM; i++) fa[i] = pk_frag_a(la + i * 16 * LD + kk, LD);
            PK_UNROLL
            for (int j = 0; j < TN; j++) fb[j] = pk_frag_b(lb + j * 16 * LD + kk, LD);
            PK_UNROLL
            for (int i = 0; i < TM; i++) {
                PK_UNROLL
                for (int j = 0; j < TN; j++) acc[i][j] = pk_mma(fa[i], fb[j], acc[i][j]);
            }
        }
        if (more) {
            a.put(lds + ((s + 1) & 1) * STEP);
            b.put(lds + ((s + 1) & 1) * STEP + BM * LD);
        }
        PK_TILE_SYNC();
    }
    // One row of squares of each wave at a time: 16 WR rows of the tile.
    float *sums = (float *)lds_bytes;
    PK_ROLLED
    for (int now = 0; now < TM; now++) {
        PK_UNROLL
        for (int i = 0; i < TM; i++) {
            if (i != now) continue;
            PK_UNROLL
            for (int j = 0; j < TN; j++) {
                PK_UNROLL
                for (pk_u32 e = 0; e < PK_ACC; e++) {
                    sums[(wr * 16 + (pk_i32)pk_acc_row(e)) * (BN + 4) + (wc * TN + j) * 16 + (pk_i32)pk_acc_col(e)] =
                        acc[i][j][e];
                }
            }
        }
        PK_TILE_SYNC();
        pk_rows rows = {row0 + now * 16, 16, TM * 16};
        pk_store_slice<BN>(out, sums, 16 * WR, col0, rows);
        PK_TILE_SYNC();
    }
}
#endif

// Index of the thread in a launch of one thread a result: x holds up to 2^23 blocks, y the rest.
PK_FN pk_i64 pk_linear() { return ((pk_i64)pk_bid_y() * 8388608 + pk_bid()) * PK_BLOCK + pk_tid(); }
