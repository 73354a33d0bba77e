// Positions of the least keys of each row in ascending order. A block of 512 threads sorts a row: chunks of 1024 keys in shared memory,
// then merges of twice the length over global memory. It is the bitonic network in which every comparison puts the lesser one first:
// what lies beyond the end of the row counts as greatest and never moves, so rows have any length. O(n log² n) by one block for a row.
//
// Where few of many are wanted, the best so far stand in order in one half of shared memory and keys that come before the last of them
// are collected in the other; when that is full, both are sorted. O(n) for keys in random order.

enum { PK_CHUNK = 1024, PK_SORTERS = PK_CHUNK / 2 };

struct pk_keyed {
    pk_u64 key;
    pk_i64 at;
};

// By field: copies of whole elements become calls of memcpy.
PK_FN pk_keyed pk_keyed_at(const pk_keyed *p) {
    pk_keyed v;
    v.key = p->key;
    v.at = p->at;
    return v;
}
PK_FN void pk_keyed_set(pk_keyed *p, pk_keyed v) {
    p->key = v.key;
    p->at = v.at;
}

// Of equal keys the first position is first: no two elements are equal, and the order is the only one.
PK_FN bool pk_before(pk_keyed a, pk_keyed b) { return a.key < b.key || (a.key == b.key && a.at < b.at); }
PK_FN void pk_order(pk_keyed *v, pk_i64 i, pk_i64 j, pk_i64 n) {
    if (j >= n) return;
    pk_keyed a = pk_keyed_at(v + i), b = pk_keyed_at(v + j);
    if (pk_before(a, b)) return;
    pk_keyed_set(v + i, b);
    pk_keyed_set(v + j, a);
}
// Pair t of the step that compares runs of `size` with themselves read backwards.
PK_FN void pk_mirror(pk_keyed *v, pk_i64 t, pk_i64 size, pk_i64 n) {
    pk_i64 half = size >> 1, first = t / half * size, r = t % half;
    pk_order(v, first + r, first + size - 1 - r, n);
}
// Pair t of the step that compares elements `far` apart.
PK_FN void pk_apart(pk_keyed *v, pk_i64 t, pk_i64 far, pk_i64 n) {
    pk_i64 i = t / far * (2 * far) + t % far;
    pk_order(v, i, i + far, n);
}
PK_FN void pk_merge_chunk(pk_keyed *lds, pk_i64 from, pk_i64 n) {
    PK_ROLLED
    for (pk_i64 far = from; far > 0; far >>= 1) {
        pk_apart(lds, pk_tid(), far, n);
        PK_TILE_SYNC();
    }
}
PK_FN void pk_sort_chunk(pk_keyed *lds, pk_i64 n) {
    PK_ROLLED
    for (pk_i64 size = 2; size <= PK_CHUNK; size <<= 1) {
        pk_mirror(lds, pk_tid(), size, n);
        PK_TILE_SYNC();
        pk_merge_chunk(lds, size >> 2, n);
    }
}

PK_KERNEL(512)
hip_ep_argsort_u64(const pk_u64 *keys, pk_i64 *positions, pk_keyed *work, pk_i64 rows, pk_i64 n, pk_i64 k) {
    PK_SHARED pk_keyed lds[PK_CHUNK];
    pk_i64 row = (pk_i64)pk_bid_y() + (pk_i64)pk_bid_z() * 32768;
    if (row >= rows) return;
    keys += row * n;
    positions += row * k;
    work += row * n;
    PK_ROLLED
    for (pk_i64 base = 0; base < n; base += PK_CHUNK) {
        pk_i64 here = n - base < PK_CHUNK ? n - base : PK_CHUNK;
        PK_ROLLED
        for (pk_i64 i = pk_tid(); i < here; i += PK_SORTERS) {
            lds[i].key = keys[base + i];
            lds[i].at = base + i;
        }
        PK_TILE_SYNC();
        pk_sort_chunk(lds, here);
        PK_ROLLED
        for (pk_i64 i = pk_tid(); i < here; i += PK_SORTERS) pk_keyed_set(work + base + i, pk_keyed_at(lds + i));
        PK_TILE_SYNC();
    }
    PK_ROLLED
    for (pk_i64 size = 2 * PK_CHUNK; size < 2 * n; size <<= 1) {
        pk_i64 pairs = (n + size - 1) / size * (size >> 1);
        PK_ROLLED
        for (pk_i64 t = pk_tid(); t < pairs; t += PK_SORTERS) pk_mirror(work, t, size, n);
        PK_TILE_SYNC();
        PK_ROLLED
        for (pk_i64 far = size >> 2; far >= PK_CHUNK; far >>= 1) {
            PK_ROLLED
            for (pk_i64 t = pk_tid(); t < pairs; t += PK_SORTERS) pk_apart(work, t, far, n);
            PK_TILE_SYNC();
        }
        PK_ROLLED
        for (pk_i64 base = 0; base < n; base += PK_CHUNK) {
            pk_i64 here = n - base < PK_CHUNK ? n - base : PK_CHUNK;
            PK_ROLLED
            for (pk_i64 i = pk_tid(); i < here; i += PK_SORTERS) pk_keyed_set(lds + i, pk_keyed_at(work + base + i));
            PK_TILE_SYNC();
            pk_merge_chunk(lds, PK_CHUNK / 2, here);
            PK_ROLLED
            for (pk_i64 i = pk_tid(); i < here; i += PK_SORTERS) pk_keyed_set(work + base + i, pk_keyed_at(lds + i));
            PK_TILE_SYNC();
        }
    }
    PK_ROLLED
    for (pk_i64 i = pk_tid(); i < k; i += PK_SORTERS) positions[i] = work[i].at + PK_SHIFT;
}

// As above for k up to 512.
PK_KERNEL(512)
hip_ep_argsort_u64_few(const pk_u64 *keys, pk_i64 *positions, pk_keyed *, pk_i64 rows, pk_i64 n, pk_i64 k) {
    PK_SHARED pk_keyed lds[PK_CHUNK];
    PK_SHARED pk_i32 waves[PK_SORTERS / PK_WAVE];
    const pk_keyed last = {~(pk_u64)0, (pk_i64)(~(pk_u64)0 >> 1)};
    pk_i64 row = (pk_i64)pk_bid_y() + (pk_i64)pk_bid_z() * 32768;
    if (row >= rows) return;
    keys += row * n;
    positions += row * k;
    pk_keyed *found = lds + PK_SORTERS;
    pk_i32 held = 0, tid = (pk_i32)pk_tid();
    pk_keyed_set(lds + tid, last);
    pk_u64 next = tid < n ? keys[tid] : 0;
    PK_TILE_SYNC();
    PK_ROLLED
    for (pk_i64 base = 0; base < n; base += PK_SORTERS) {
        pk_keyed mine = {next, base + tid};
        if (mine.at + PK_SORTERS < n) next = keys[mine.at + PK_SORTERS];
        bool counts = mine.at < n && pk_before(mine, pk_keyed_at(lds + k - 1));
        pk_u64 votes = pk_ballot(counts);
        pk_i32 before, all;
        pk_scan_waves<PK_SORTERS>((pk_i32)pk_popcount(votes), waves, before, all);
        if (held + all > PK_SORTERS) {
            if (tid >= held) pk_keyed_set(found + tid, last);
            PK_TILE_SYNC();
            pk_sort_chunk(lds, PK_CHUNK);
            held = 0;
        }
        if (counts) pk_keyed_set(found + held + before + (pk_i32)pk_popcount(votes & (((pk_u64)1 << pk_lane()) - 1)), mine);
        held += all;
    }
    if (tid >= held) pk_keyed_set(found + tid, last);
    PK_TILE_SYNC();
    pk_sort_chunk(lds, PK_CHUNK);
    if (tid < k) positions[tid] = lds[tid].at + PK_SHIFT;
}
