// Choice of boxes: along each row of `order`, a box that is eligible and covers no kept one by more than `iou` (intersection over
// union) is kept, until there are `limit`; kept[row] lists them, then -1. Boxes are two opposite corners y, x, or with `center` the
// middle x, y with width and height.
//
// A block of 256 threads makes a row: one candidate after the other, each compared by all threads with what is kept so far. Bound: two
// barriers a candidate and n * kept / 256 comparisons a thread. Shared memory: 4 bytes a wave. Products round before sums, as on CPUs:
// a comparison at the threshold must come out alike.

enum { PK_NMS = 256 };

struct pk_box {
    float x0, y0, x1, y1;
};

// fma would round once where CPUs round twice.
PK_FN float pk_times(float a, float b) { return pk_fma(a, b, -0.f); }
PK_FN float pk_lesser(float a, float b) { return a < b ? a : b; }
PK_FN float pk_greater(float a, float b) { return a > b ? a : b; }
PK_FN pk_box pk_corners(const float *b, bool center) {
    pk_box c;
    if (center) {
        float w = b[2] * 0.5f, h = b[3] * 0.5f;
        c.x0 = b[0] - w;
        c.y0 = b[1] - h;
        c.x1 = b[0] + w;
        c.y1 = b[1] + h;
    } else {
        c.x0 = pk_lesser(b[1], b[3]);
        c.y0 = pk_lesser(b[0], b[2]);
        c.x1 = pk_greater(b[1], b[3]);
        c.y1 = pk_greater(b[0], b[2]);
    }
    return c;
}
PK_FN float pk_area(pk_box c) { return pk_times(c.x1 - c.x0, c.y1 - c.y0); }
PK_FN bool pk_covers(pk_box a, pk_box b, float iou) {
    float w = pk_lesser(a.x1, b.x1) - pk_greater(a.x0, b.x0), h = pk_lesser(a.y1, b.y1) - pk_greater(a.y0, b.y0);
    float meet = pk_times(w, h), of_a = pk_area(a), of_b = pk_area(b), all = of_a + of_b - meet;
    return w > 0.f && h > 0.f && meet > 0.f && of_a > 0.f && of_b > 0.f && all > 0.f && meet / all > iou;
}

PK_KERNEL(256)
hip_ep_nms_f32(const float *boxes, const pk_i64 *order, const pk_u8 *eligible, const pk_i64 *limit, const float *iou, pk_i64 *kept,
               pk_i64 batch, pk_i64 classes, pk_i64 n, pk_i64 center) {
    PK_SHARED pk_i32 lds[PK_NMS / PK_WAVE];
    pk_i64 row = (pk_i64)pk_bid_y() + (pk_i64)pk_bid_z() * 32768, most = *limit, count = 0;
    if (row >= batch * classes) return;
    boxes += row / classes * n * 4;
    order += row * n;
    eligible += row * n;
    kept += row * n;
    float most_iou = *iou;
    PK_ROLLED
    for (pk_i64 i = 0; i < n && count < most; i++) {
        // The same for every thread, as is `count`.
        if (!eligible[i]) continue;
        pk_i64 at = order[i];
        pk_box mine = pk_corners(boxes + at * 4, center != 0);
        bool covered = false;
        PK_ROLLED
        for (pk_i64 k = pk_tid(); k < count; k += PK_NMS)
            covered = covered || pk_covers(pk_corners(boxes + kept[k] * 4, center != 0), mine, most_iou);
        pk_i32 before, all;
        pk_scan_waves<PK_NMS>((pk_i32)pk_popcount(pk_ballot(covered)), lds, before, all);
        if (all) continue;
        if (pk_tid() == 0) kept[count] = at + PK_SHIFT;
        count++;
        PK_TILE_SYNC();
    }
    PK_ROLLED
    for (pk_i64 k = count + pk_tid(); k < n; k += PK_NMS) kept[k] = -1;
}
