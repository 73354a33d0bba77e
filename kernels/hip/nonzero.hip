// Counting and listing elements that are not 0 (NaN is not). One block of 1024 threads goes over x in order, so that the list is in
// row-major order and no other block has to be waited for; bound by one block's share of the bandwidth.

enum { PK_NZ = 1024 };

template <class T> PK_FN bool pk_nonzero(T v) { return v != (T)0; }

// Sum over the block of a number a lane group holds the same of: `mine` is this wave's; returns those of earlier waves and of all.
template <int THREADS> PK_FN void pk_scan_waves(pk_i32 mine, pk_i32 *lds, pk_i32 &before, pk_i32 &all) {
    pk_i32 wave = (pk_i32)pk_tid() / PK_WAVE;
    if (pk_lane() == 0) lds[wave] = mine;
    PK_TILE_SYNC();
    before = 0;
    all = 0;
    PK_ROLLED
    for (pk_i32 i = 0; i < THREADS / PK_WAVE; i++) {
        if (i < wave) before += lds[i];
        all += lds[i];
    }
    PK_TILE_SYNC();
}

template <class T> PK_FN void pk_count(const T *x, pk_i64 *count, pk_i64 n, pk_i32 *lds) {
    pk_i64 sum = 0;
    for (pk_i64 at = 0; at < n; at += PK_NZ) {
        pk_i64 i = at + pk_tid();
        sum += pk_popcount(pk_ballot(i < n && pk_nonzero(x[i])));
    }
    // In parts of 16 bits, so that their sums over waves fit 32.
    pk_i32 before, all;
    pk_i64 total = 0;
    PK_ROLLED
    for (int part = 0; part < 3; part++) {
        pk_scan_waves<PK_NZ>((pk_i32)(sum >> (16 * part) & 0xffff), lds, before, all);
        total += (pk_i64)all << (16 * part);
    }
    if (pk_tid() == 0) *count = total + PK_SHIFT;
}

// `dims` are in shared memory: the loop over axes stays a loop.
template <class T>
PK_FN void pk_fill(const T *x, pk_i64 *y, pk_i64 rank, pk_i64 count, const pk_i64 *dims, pk_i32 *lds) {
    pk_i64 n = 1, base = 0;
    PK_ROLLED
    for (int i = 0; i < rank; i++) n *= dims[i];
    PK_ROLLED
    for (pk_i64 at = 0; at < n; at += PK_NZ) {
        pk_i64 i = at + pk_tid();
        bool set = i < n && pk_nonzero(x[i]);
        pk_u64 votes = pk_ballot(set);
        pk_i32 before, all;
        pk_scan_waves<PK_NZ>((pk_i32)pk_popcount(votes), lds, before, all);
        pk_i64 to = base + before + pk_popcount(votes & (((pk_u64)1 << pk_lane()) - 1));
        base += all;
        // More than was counted is never written.
        if (set && to < count) {
            pk_i64 rest = i + PK_SHIFT;
            PK_ROLLED
            for (pk_i64 axis = rank - 1; axis >= 0; axis--) {
                y[axis * count + to] = rest % dims[axis];
                rest /= dims[axis];
            }
        }
    }
}
#define PK_NONZERO(COUNT, FILL, T)                                                                                     \
    PK_KERNEL(1024) COUNT(const T *x, pk_i64 *count, pk_i64 n) {                                                       \
        PK_SHARED pk_i32 lds[PK_NZ / PK_WAVE];                                                                         \
        pk_count<T>(x, count, n, lds);                                                                                 \
    }                                                                                                                  \
    PK_KERNEL(1024) FILL(const T *x, pk_i64 *y, pk_i64 rank, pk_i64 count, pk_i64 d0, pk_i64 d1, pk_i64 d2, pk_i64 d3, \
                         pk_i64 d4, pk_i64 d5, pk_i64 d6, pk_i64 d7) {                                                 \
        PK_SHARED pk_i32 lds[PK_NZ / PK_WAVE];                                                                         \
        PK_SHARED pk_i64 dims[8];                                                                                      \
        const pk_i64 all[8] = {d0, d1, d2, d3, d4, d5, d6, d7};                                                        \
        if (pk_tid() == 0) {                                                                                           \
            PK_UNROLL                                                                                                  \
            for (int i = 0; i < 8; i++) dims[i] = all[i];                                                              \
        }                                                                                                              \
        PK_TILE_SYNC();                                                                                                \
        pk_fill<T>(x, y, rank, count, dims, lds);                                                                      \
    }
PK_NONZERO(hip_ep_nonzero_count_bool, hip_ep_nonzero_fill_bool, pk_u8)
PK_NONZERO(hip_ep_nonzero_count_f32, hip_ep_nonzero_fill_f32, float)
PK_NONZERO(hip_ep_nonzero_count_i64, hip_ep_nonzero_fill_i64, pk_i64)
PK_NONZERO(hip_ep_nonzero_count_i32, hip_ep_nonzero_fill_i32, pk_i32)
