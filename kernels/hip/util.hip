// Small stores in stream order, so that the host neither writes device memory nor waits.

// dst[i] = v_i for i < n <= 16. `dtype` is ONNX's number: 6 (i32) or 7 (i64); the caller has checked the range. One block of 64 threads.
PK_KERNEL(64)
hip_ep_store_ints(pk_u8 *dst, pk_i64 dtype, pk_i64 n, pk_i64 v0, pk_i64 v1, pk_i64 v2, pk_i64 v3, pk_i64 v4, pk_i64 v5,
                  pk_i64 v6, pk_i64 v7, pk_i64 v8, pk_i64 v9, pk_i64 v10, pk_i64 v11, pk_i64 v12, pk_i64 v13,
                  pk_i64 v14, pk_i64 v15) {
    const pk_i64 v[16] = {v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15};
    if (pk_tid() != 0) return;
    PK_UNROLL
    for (int i = 0; i < 16; i++) {
        if (i < n && dtype == 7) ((pk_i64 *)dst)[i] = v[i];
        if (i < n && dtype == 6) ((pk_i32 *)dst)[i] = (pk_i32)v[i];
    }
}

// dst[i] = the low `size` bytes of `value` for i < n; size is 1, 2, 4 or 8. One thread an element.
PK_KERNEL(256) hip_ep_fill(pk_u8 *dst, pk_i64 size, pk_i64 n, pk_i64 value) {
    pk_i64 i = pk_linear();
    if (i >= n) return;
    if (size == 1) dst[i] = (pk_u8)value;
    if (size == 2) ((pk_u16 *)dst)[i] = (pk_u16)value;
    if (size == 4) ((pk_u32 *)dst)[i] = (pk_u32)value;
    if (size == 8) ((pk_u64 *)dst)[i] = (pk_u64)value;
}

// words[3] = what a draw of random numbers depends on: see the catalog. One block of 64 threads, of which one writes.
PK_KERNEL(64)
hip_ep_draw_i64(pk_i64 *words, pk_i64 stream, pk_i64 seed, pk_i64 session, pk_i64 draw, pk_i64 run) {
    if (pk_tid() != 0) return;
    words[0] = seed < 0 ? session ^ (pk_i64)((pk_u64)stream << 32) : (pk_i64)((pk_u64)seed | (pk_u64)1 << 63);
    words[1] = draw;
    words[2] = seed < 0 ? run : 0;
}
