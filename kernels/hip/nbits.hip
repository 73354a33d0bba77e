// c[m, n] = sum_k a[m, k] * (b[n, k] - zero[n, k / block]) * scale[n, k / block] + bias[n], sums in f32: b has 2, 4 or 8 bits a number,
// in rows of whole blocks, lowest bits of a byte first; zero points are packed the same way, half of the range where there are none.
//
// A wave makes a column of up to 4 rows; its lanes take neighboring bytes of the row of b, so that b is read once for 4 rows. 256 threads,
// no shared memory. Bound: the bytes of b, n * k * bits / 8 for 4 rows. Grid: x groups of 256 / wave columns, y and z groups of 4 rows
// (y is at most 32768).

#define PK_NBITS_ARGS(T)                                                                                               \
    const T *a, const pk_u8 *b, const T *scales, const pk_u8 *zeros, const T *bias, T *c, pk_i64 m, pk_i64 n, pk_i64 k, \
        pk_i64 bits, pk_i64 block

PK_FN pk_i32 pk_log2(pk_i32 x) {
    pk_i32 r = 0;
    while (x >> 1 >> r) r++;
    return r;
}

template <class T> PK_FN void pk_nbits(PK_NBITS_ARGS(T)) {
    pk_i64 row = ((pk_i64)pk_bid_y() + (pk_i64)pk_bid_z() * 32768) * 4;
    pk_i64 col = (pk_i64)pk_bid() * (256 / PK_WAVE) + (pk_i64)pk_tid() / PK_WAVE;
    if (row >= m || col >= n) return;
    pk_i32 lane = (pk_i32)pk_lane(), width = (pk_i32)bits, per = 8 / width, mask = (1 << width) - 1;
    pk_i32 blocks = (pk_i32)((k + block - 1) / block), bytes = (pk_i32)block / per, log_bytes = pk_log2(bytes);
    pk_i64 whole = (pk_i64)blocks * bytes, zero_row = ((pk_i64)blocks * width + 7) / 8;
    b += col * whole;
    scales += col * blocks;
    if (zeros) zeros += col * zero_row;
    a += row * k;
    pk_i32 rows = m - row < 4 ? (pk_i32)(m - row) : 4;
    float acc[4] = {0.f, 0.f, 0.f, 0.f};
    for (pk_i64 i = lane; i < whole; i += PK_WAVE) {
        pk_i32 at = (pk_i32)(i >> log_bytes), code = b[i];
        float scale = pk_get(scales[at]);
        pk_i32 bit = at * width, zero = zeros ? zeros[bit >> 3] >> (bit & 7) & mask : 1 << (width - 1);
        for (pk_i32 j = 0; j < per; j++, code >>= width) {
            pk_i64 t = i * per + j;
            if (t >= k) break;
            float w = (float)((code & mask) - zero) * scale;
            PK_UNROLL
            for (int r = 0; r < 4; r++) {
                if (r < rows) acc[r] = pk_fma(pk_get(a[r * k + t]), w, acc[r]);
            }
        }
    }
    PK_UNROLL
    for (int r = 0; r < 4; r++) {
        PK_UNROLL
        for (pk_u32 o = PK_WAVE / 2; o; o >>= 1) acc[r] += pk_shfl_xor(acc[r], o);
    }
    float v = lane == 0 ? acc[0] : lane == 1 ? acc[1] : lane == 2 ? acc[2] : acc[3];
    if (lane >= rows) return;
#if !defined(PK_NO_BIAS)
    if (bias) v += pk_get(bias[col]);
#endif
    pk_set(&c[(row + lane) * n + col], v);
}
PK_KERNEL(256) hip_ep_nbits_f32(PK_NBITS_ARGS(float)) {
    pk_nbits<float>(a, b, scales, zeros, bias, c, m, n, k, bits, block);
}
PK_KERNEL(256) hip_ep_nbits_f16(PK_NBITS_ARGS(pk_half)) {
    pk_nbits<pk_half>(a, b, scales, zeros, bias, c, m, n, k, bits, block);
}
